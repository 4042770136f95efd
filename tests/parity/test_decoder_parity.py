"""Decoder mode against transformers 4.57.6: causality, cross-attention, caches, generation, two BERTs joined."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

import bertie
from parity.oracle import TINY, check_same, check_same_gradients, difference, ids, pair, scalar

POSITIONS = ["absolute", "relative_key", "relative_key_query"]
DECODER: dict[str, Any] = {"is_decoder": True}
CROSS: dict[str, Any] = {"is_decoder": True, "add_cross_attention": True}


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("mask", ["none", "2-D", "3-D"])
@pytest.mark.parametrize("cross", ["none", "no mask", "2-D", "3-D"])
def test_decoder_equals_reference(positions: str, mask: str, cross: str) -> None:
    theirs, ours = pair("BertModel", **CROSS, position_embedding_type=positions)
    inputs: dict[str, Any] = {"input_ids": ids(2, 8), "use_cache": False, "output_attentions": True}
    if mask == "2-D":
        inputs["attention_mask"] = torch.tensor([[1] * 8, [1] * 5 + [0] * 3])
    elif mask == "3-D":
        inputs["attention_mask"] = torch.ones(2, 8, 8).triu(-1)
    if cross != "none":
        inputs["encoder_hidden_states"] = torch.randn(2, 5, TINY["hidden_size"])
        if cross == "2-D":
            inputs["encoder_attention_mask"] = torch.tensor([[1, 1, 1, 0, 0], [1] * 5])
        elif cross == "3-D":
            inputs["encoder_attention_mask"] = torch.randint(0, 2, (2, 8, 5)).index_fill(2, torch.tensor([0]), 1)
        inputs["head_mask"] = torch.rand(2, 3)
    if cross == "none":
        theirs.config.add_cross_attention = False  # or 4.57 looks for cross-attentions that are not there
    wanted, got = theirs(**inputs), ours(**inputs)
    check_same(wanted, got)
    check_same_gradients(theirs, ours, scalar(wanted), scalar(got))


@pytest.mark.parametrize("cross", [False, True])
def test_cached_steps_equal_reference_cached_steps(cross: bool) -> None:
    theirs, ours = pair("BertLMHeadModel", **(CROSS if cross else DECODER))
    tokens = ids(2, 9)
    extra = {"encoder_hidden_states": torch.randn(2, 5, TINY["hidden_size"])} if cross else {}
    their_cache = our_cache = None
    for start, end in ((0, 4), (4, 5), (5, 9)):
        wanted = theirs(tokens[:, start:end], past_key_values=their_cache, use_cache=True, **extra)
        got = ours(tokens[:, start:end], past_key_values=our_cache, use_cache=True, **extra)
        check_same(wanted, got)
        their_cache, our_cache = wanted.past_key_values, got.past_key_values


def test_legacy_tuples_are_accepted_and_can_be_asked_for() -> None:
    theirs, ours = pair("BertLMHeadModel", **CROSS)
    tokens, states = ids(2, 9), torch.randn(2, 5, TINY["hidden_size"])
    wanted = theirs(tokens[:, :6], encoder_hidden_states=states, use_cache=True).past_key_values.to_legacy_cache()
    got = ours(tokens[:, :6], encoder_hidden_states=states, use_cache=True).past_key_values.to_legacy()
    check_same(wanted, got)
    whole = ours(tokens, encoder_hidden_states=states, use_cache=False).logits[:, 6:]
    check_same(whole, ours(tokens[:, 6:], encoder_hidden_states=states, past_key_values=wanted).logits)


@pytest.mark.parametrize("positions", POSITIONS)
@settings(max_examples=15)
@given(splits=st.lists(st.integers(1, 19), max_size=5, unique=True).map(sorted), padded=st.booleans())
def test_cached_decoding_equals_uncached_for_any_split(positions: str, splits: list[int], padded: bool) -> None:
    torch.manual_seed(0)
    config = bertie.BertConfig.from_dict(TINY | CROSS | {"position_embedding_type": positions})
    model = bertie.BertLMHeadModel(config).eval()
    tokens, states = ids(2, 20), torch.randn(2, 5, TINY["hidden_size"])
    mask = torch.ones(2, 20).index_fill(1, torch.arange(3), 0) if padded else None
    common = {"encoder_hidden_states": states}
    whole = model(tokens, mask, use_cache=False, **common).logits
    cache, pieces = None, []
    for start, end in zip([0, *splits], [*splits, 20], strict=True):
        seen = None if mask is None else mask[:, :end]
        output = model(tokens[:, start:end], seen, past_key_values=cache, use_cache=True, **common)
        cache = output.past_key_values
        pieces.append(output.logits)
    real = slice(3 if padded else 0, None)  # what padding computes from nothing is nobody's business
    check_same(whole[:, real], torch.cat(pieces, dim=1)[:, real])


def test_relative_positions_with_a_cache_are_wrong_in_the_reference_and_right_here() -> None:
    """4.57 gives every query of a prefill the distances of the last one."""
    theirs, ours = pair("BertLMHeadModel", **DECODER, position_embedding_type="relative_key")
    tokens = ids(2, 9)
    uncached = theirs(tokens, use_cache=False).logits
    assert difference(uncached, theirs(tokens, use_cache=True).logits) > 1e-2
    check_same(uncached, ours(tokens, use_cache=True).logits)


GREEDY_AND_BEAMS: list[dict[str, Any]] = [
    {"max_length": 12},
    {"max_new_tokens": 5, "eos_token_id": 7},
    {"max_length": 15, "repetition_penalty": 1.7},
    {"max_length": 14, "min_length": 10, "eos_token_id": [3, 7, 11, 20, 33]},
    {"max_length": 14, "min_new_tokens": 4, "eos_token_id": [3, 7, 11, 20, 33]},
    {"max_length": 12, "num_beams": 3},
    {"max_length": 15, "num_beams": 4, "eos_token_id": [3, 7, 11, 20, 33]},
    {"max_length": 15, "num_beams": 4, "eos_token_id": 7, "length_penalty": 2.0},
    {"max_length": 15, "num_beams": 3, "eos_token_id": [5, 9, 40, 41, 42, 43], "early_stopping": True},
    {"max_length": 15, "num_beams": 3, "eos_token_id": [5, 9, 40, 41, 42, 43], "length_penalty": 0.0},
    {"max_length": 13, "num_beams": 4, "num_return_sequences": 3, "eos_token_id": [5, 9, 40, 41, 42]},
    {"max_length": 12, "num_beams": 2, "repetition_penalty": 1.3, "min_length": 8, "eos_token_id": 4},
]


@pytest.mark.parametrize("options", GREEDY_AND_BEAMS, ids=str)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("use_cache", [True, False])
def test_generation_equals_reference(options: dict[str, Any], seed: int, use_cache: bool) -> None:
    torch.manual_seed(seed)
    # An id other than 0 pads: with 0, 4.57's beam search fills up with the end token instead.
    theirs, ours = pair("BertLMHeadModel", **DECODER, pad_token_id=2, initializer_range=0.6)
    prompts = torch.randint(3, TINY["vocab_size"], (3, 5))
    wanted = theirs.generate(prompts, **options, pad_token_id=2, use_cache=use_cache, do_sample=False)
    assert ours.generate(prompts, **options, pad_token_id=2, use_cache=use_cache).tolist() == wanted.tolist()


@pytest.mark.parametrize("options", [{}, {"num_beams": 3, "eos_token_id": [5, 9, 13]}])
def test_left_padded_prompts_equal_reference_and_equal_themselves_alone(options: dict[str, Any]) -> None:
    theirs, ours = pair("BertLMHeadModel", **DECODER, pad_token_id=2, initializer_range=0.6)
    prompts = torch.randint(3, TINY["vocab_size"], (3, 6))
    mask = torch.ones_like(prompts)
    mask[0, :4], mask[1, :1] = 0, 0
    prompts = prompts.masked_fill(mask == 0, 2)
    options = options | {"max_length": 14, "pad_token_id": 2}
    got = ours.generate(prompts, mask, **options)
    wanted = theirs.generate(prompts, attention_mask=mask, **options, do_sample=False)
    assert got.tolist() == wanted.tolist()
    for row, skip in enumerate((4, 1, 0)):
        alone = ours.generate(prompts[row : row + 1, skip:], **(options | {"max_length": 14 - skip}))[0].tolist()
        assert got[row, skip : skip + len(alone)].tolist() == alone


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("use_cache", [True, False])
def test_segments_go_on_as_in_the_reference(num_beams: int, use_cache: bool) -> None:
    theirs, ours = pair("BertLMHeadModel", **DECODER, pad_token_id=2, initializer_range=0.6)
    prompts = torch.randint(3, TINY["vocab_size"], (2, 6))
    segments = torch.tensor([[0, 0, 1, 1, 1, 2], [2, 1, 0, 0, 1, 1]])
    options = {"max_length": 14, "num_beams": num_beams, "use_cache": use_cache, "pad_token_id": 2}
    wanted = theirs.generate(prompts, token_type_ids=segments, **options, do_sample=False)
    assert ours.generate(prompts, token_type_ids=segments, **options).tolist() == wanted.tolist()
    assert ours.generate(prompts, **options).tolist() != wanted.tolist()
    mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1] * 6])
    segments = segments[:1].expand(2, 6)
    wanted = theirs.generate(prompts, attention_mask=mask, token_type_ids=segments, **options, do_sample=False)
    assert ours.generate(prompts, mask, token_type_ids=segments[0], **options).tolist() == wanted.tolist()


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("use_cache", [True, False])
def test_positions_go_on_from_the_last_one(num_beams: int, use_cache: bool) -> None:
    """4.57 gives every new token the prompt's last position, and without a cache fails."""
    _, ours = pair("BertLMHeadModel", **DECODER, pad_token_id=2, initializer_range=0.6)
    prompts = torch.randint(3, TINY["vocab_size"], (2, 6))
    options = {"max_new_tokens": 8, "num_beams": num_beams, "use_cache": use_cache}
    plain = ours.generate(prompts, **options).tolist()
    assert ours.generate(prompts, position_ids=torch.arange(6), **options).tolist() == plain
    later = torch.arange(3, 9).expand(2, 6)
    got = ours.generate(prompts, position_ids=later, **options).tolist()
    assert got != plain
    with torch.no_grad():  # the same table, read three rows later
        table = ours.bert.embeddings.position_embeddings.weight
        table.copy_(table.roll(-3, dims=0))
    assert ours.generate(prompts, **options).tolist() == got


@pytest.mark.parametrize(
    "options", [{"top_k": 0}, {"top_k": 5}, {"top_p": 0.6, "top_k": 0}, {"temperature": 2.5, "top_k": 20, "top_p": 0.9}]
)
def test_sampling_draws_what_the_reference_draws(options: dict[str, Any]) -> None:
    theirs, ours = pair("BertLMHeadModel", **DECODER, pad_token_id=2)
    prompts = torch.randint(3, TINY["vocab_size"], (4, 3))
    torch.manual_seed(5)
    wanted = theirs.generate(prompts, do_sample=True, max_length=18, pad_token_id=2, **options)
    torch.manual_seed(5)
    assert ours.generate(prompts, do_sample=True, max_length=18, **options).tolist() == wanted.tolist()


def joined(encoder_width: int = 24, **decoder: Any) -> tuple[Any, Any]:
    """(theirs, ours): an encoder and a decoder with the same weights."""
    values = {"vocab_size": 50, "hidden_size": encoder_width, "num_attention_heads": 4}
    their_encoder, our_encoder = pair("BertModel", **values)
    their_decoder, our_decoder = pair("BertLMHeadModel", **CROSS, pad_token_id=2, **decoder)
    theirs = transformers.EncoderDecoderModel(encoder=their_encoder, decoder=their_decoder).eval()
    theirs.config.decoder_start_token_id, theirs.config.pad_token_id = 1, 2
    ours = bertie.BertEncoderDecoder.from_encoder_decoder(
        our_encoder, our_decoder, decoder_start_token_id=1, pad_token_id=2
    ).eval()
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


@pytest.mark.parametrize("width", [24, 32])
def test_encoder_decoder_equals_reference(width: int) -> None:
    theirs, ours = joined(width)
    tokens, labels = ids(2, 7, vocab=50), ids(2, 5)
    labels[0, 3:] = -100
    inputs = {"input_ids": tokens, "attention_mask": torch.tensor([[1] * 7, [1] * 4 + [0] * 3]), "labels": labels}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about how it computed losses five years ago
        wanted = theirs(**inputs)
    got = ours(**inputs)
    check_same((wanted.loss, wanted.logits), (got.loss, got.logits))
    check_same_gradients(theirs, ours, wanted.loss, got.loss)


@pytest.mark.parametrize("options", [{}, {"num_beams": 3, "eos_token_id": [5, 9, 13]}, {"eos_token_id": 7}])
@pytest.mark.parametrize("width", [24, 32])
def test_encoder_decoder_generation_equals_reference(options: dict[str, Any], width: int) -> None:
    theirs, ours = joined(width, initializer_range=0.6)
    tokens, mask = ids(3, 7, vocab=50), torch.tensor([[1] * 7, [1] * 4 + [0] * 3, [1] * 7])
    options = options | {"max_length": 12, "pad_token_id": 2}
    wanted = theirs.generate(tokens, attention_mask=mask, decoder_start_token_id=1, do_sample=False, **options)
    assert ours.generate(tokens, mask, **options).tolist() == wanted.tolist()
