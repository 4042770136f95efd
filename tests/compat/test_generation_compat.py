"""generate() beside transformers': the same tokens, scores, states and attentions for the same arguments."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

import bertie
from bertie.errors import InputError
from parity.oracle import TINY, pair
from parity.test_decoder_parity import DECODER, joined

EOS = [5, 9, 40, 41, 42]


@pytest.fixture(scope="module")
def both() -> tuple[Any, Any]:
    torch.manual_seed(0)
    # An id other than 0 pads: with 0, 4.57's beam search fills up with the end token instead.
    return pair("BertLMHeadModel", **DECODER, pad_token_id=2, initializer_range=0.6, max_position_embeddings=40)


@pytest.fixture(scope="module")
def prompts() -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randint(3, TINY["vocab_size"], (3, 5))


def drawn(model: Any, *given: Any, **options: Any) -> Any:
    torch.manual_seed(11)
    return model.generate(*given, pad_token_id=2, **({"do_sample": False} | options))


RULES: list[dict[str, Any]] = [
    {},
    {"no_repeat_ngram_size": 1, "max_new_tokens": 12},
    {"no_repeat_ngram_size": 2, "max_new_tokens": 20},
    {"no_repeat_ngram_size": 3, "max_new_tokens": 20, "num_beams": 3},
    {"bad_words_ids": [[n] for n in range(3, 40)], "max_new_tokens": 8},
    {"bad_words_ids": [[a, b] for a in range(3, 50) for b in range(3, 20)], "max_new_tokens": 8, "num_beams": 2},
    {"sequence_bias": {(7,): 5.0, (9, 8): 4.0}, "max_new_tokens": 10},
    {"suppress_tokens": list(range(3, 45)), "begin_suppress_tokens": [50, 51, 52], "max_new_tokens": 6},
    {"forced_eos_token_id": 7, "max_new_tokens": 6, "eos_token_id": 7},
    {"exponential_decay_length_penalty": (2, 1.6), "max_new_tokens": 12, "eos_token_id": EOS},
    {"renormalize_logits": True, "remove_invalid_values": True, "num_beams": 3, "max_new_tokens": 6},
    {"repetition_penalty": 1.4, "min_length": 9, "eos_token_id": EOS, "max_length": 14},
    {"do_sample": True, "top_k": 0, "min_p": 0.05, "max_new_tokens": 10},
    {"do_sample": True, "top_k": 0, "typical_p": 0.4, "max_new_tokens": 10},
    {"do_sample": True, "top_k": 0, "epsilon_cutoff": 0.02, "max_new_tokens": 10},
    {"do_sample": True, "top_k": 0, "eta_cutoff": 0.03, "max_new_tokens": 10},
    {"do_sample": True, "num_return_sequences": 3, "temperature": 1.7, "max_new_tokens": 6},
    {"do_sample": True, "num_beams": 3, "max_new_tokens": 8, "eos_token_id": EOS},
    {"do_sample": True, "num_beams": 4, "num_return_sequences": 2, "top_k": 3, "top_p": 0.7, "max_new_tokens": 7},
    {"num_beams": 4, "early_stopping": "never", "eos_token_id": EOS, "length_penalty": 2.0, "max_new_tokens": 9},
    {"num_beams": 3, "early_stopping": "never", "eos_token_id": EOS, "length_penalty": -1.0, "max_new_tokens": 9},
]


@pytest.mark.parametrize("options", RULES, ids=str)
def test_tokens_are_the_same(both: tuple[Any, Any], prompts: torch.Tensor, options: dict[str, Any]) -> None:
    theirs, ours = both
    assert drawn(ours, prompts, **options).tolist() == drawn(theirs, prompts, **options).tolist()


def test_never_stopping_early_is_not_stopping_early(prompts: torch.Tensor) -> None:
    told_apart = 0
    for seed in range(12):
        torch.manual_seed(seed)
        theirs, ours = pair(
            "BertLMHeadModel", **DECODER, pad_token_id=2, initializer_range=0.9, max_position_embeddings=40
        )
        options = {"num_beams": 3, "eos_token_id": EOS, "length_penalty": 1.5, "max_new_tokens": 12}
        for early in (True, False, "never"):
            wanted = drawn(theirs, prompts, early_stopping=early, **options).tolist()
            assert drawn(ours, prompts, early_stopping=early, **options).tolist() == wanted
        told_apart += wanted != drawn(ours, prompts, early_stopping=True, **options).tolist()
    assert told_apart


def same(wanted: Any, got: Any) -> None:
    if isinstance(wanted, torch.Tensor):
        assert wanted.shape == got.shape
        finite = wanted.isfinite()
        assert torch.equal(finite, got.isfinite())
        assert (wanted[finite].double() - got[finite].double()).abs().max().item() <= 1e-4 if finite.any() else True
    else:
        assert len(wanted) == len(got)
        for one, other in zip(wanted, got, strict=True):
            same(one, other)


ASKED = {
    "return_dict_in_generate": True,
    "output_scores": True,
    "output_logits": True,
    "output_attentions": True,
    "output_hidden_states": True,
}


@pytest.mark.parametrize(
    "options", [{}, {"num_beams": 3, "num_return_sequences": 2, "eos_token_id": EOS}, {"do_sample": True}], ids=str
)
def test_the_dictionary_holds_what_the_reference_gives(
    both: tuple[Any, Any], prompts: torch.Tensor, options: dict[str, Any]
) -> None:
    theirs, ours = both
    theirs.set_attn_implementation("eager")
    wanted = drawn(theirs, prompts, max_new_tokens=6, **ASKED, **options)
    got = drawn(ours, prompts, max_new_tokens=6, **ASKED, **options)
    assert set(wanted.keys()) == set(got.keys())
    for name in set(wanted.keys()) - {"past_key_values"}:
        same(wanted[name], got[name])
    assert got.past_key_values.get_seq_length() == wanted.past_key_values.get_seq_length()


@pytest.mark.parametrize("options", [{}, {"num_beams": 2, "eos_token_id": EOS}], ids=str)
def test_the_dictionary_of_an_encoder_and_decoder(options: dict[str, Any]) -> None:
    theirs, ours = joined(initializer_range=0.6)
    theirs.set_attn_implementation("eager")
    torch.manual_seed(3)
    tokens = torch.randint(3, 50, (2, 7))
    rest = {"max_new_tokens": 5, **ASKED, **options, "no_repeat_ngram_size": 2, "encoder_no_repeat_ngram_size": 2}
    wanted = drawn(theirs, tokens, decoder_start_token_id=1, **rest)
    got = drawn(ours, tokens, **rest)
    for name in set(wanted.keys()) - {"past_key_values"}:
        same(wanted[name], got[name])
    encoded = ours.encode(tokens)
    plain = {"max_new_tokens": 5, **options}
    again = drawn(ours, encoder_outputs=encoded, **plain)
    assert again.tolist() == drawn(ours, tokens, **plain).tolist()


def test_processors_criteria_and_prefixes_are_called(both: tuple[Any, Any], prompts: torch.Tensor) -> None:
    theirs, ours = both

    class Only(transformers.LogitsProcessor):
        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            return scores.index_fill(1, torch.arange(30, scores.shape[1]), -float("inf"))

    class Enough(transformers.StoppingCriteria):
        def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
            return input_ids[:, -1] % 3 == 0

    for beams in (1, 3):
        options = {
            "logits_processor": transformers.LogitsProcessorList([Only()]),
            "stopping_criteria": transformers.StoppingCriteriaList([Enough()]),
            "prefix_allowed_tokens_fn": lambda batch, sent: list(range(batch, 60, 2)),
            "max_new_tokens": 9,
            "num_beams": beams,
            "eos_token_id": 7,
        }
        wanted = drawn(theirs, prompts, **options)
        assert drawn(ours, prompts, **options).tolist() == wanted.tolist()


def test_a_streamer_gets_every_token(both: tuple[Any, Any], prompts: torch.Tensor) -> None:
    class Heard:
        def __init__(self) -> None:
            self.said: list[Any] = []

        def put(self, value: torch.Tensor) -> None:
            self.said.append(value.tolist())

        def end(self) -> None:
            self.said.append("end")

    told = []
    for model in both:
        heard = Heard()
        drawn(model, prompts[:1], streamer=heard, max_new_tokens=4)
        told.append(heard.said)
    assert told[0] == told[1]
    with pytest.raises(InputError, match="A streamer was given with beams"):
        both[1].generate(prompts, streamer=Heard(), num_beams=2)


@pytest.mark.parametrize("use_cache", [True, False])
def test_prompts_may_be_embeddings(both: tuple[Any, Any], prompts: torch.Tensor, use_cache: bool) -> None:
    theirs, ours = both
    embeds = ours.get_input_embeddings()(prompts)
    options = {"max_new_tokens": 7, "use_cache": use_cache}
    got = drawn(ours, inputs_embeds=embeds, **options)
    assert got.shape == (3, 7)
    assert got.tolist() == drawn(ours, prompts, **options)[:, 5:].tolist()
    if use_cache:
        assert got.tolist() == drawn(theirs, inputs_embeds=embeds, **options).tolist()
    beams = drawn(ours, inputs_embeds=embeds, num_beams=3, **options)
    assert beams.tolist() == drawn(ours, prompts, num_beams=3, **options)[:, 5:].tolist()


def test_a_generation_config_holds_the_settings_and_keywords_go_before_it(
    both: tuple[Any, Any], prompts: torch.Tensor, tmp_path: Any
) -> None:
    theirs, ours = both
    told = transformers.GenerationConfig(max_new_tokens=9, num_beams=2, no_repeat_ngram_size=2, pad_token_id=2)
    assert ours.generate(prompts, told).tolist() == theirs.generate(prompts, told).tolist()
    assert ours.generate(prompts, told, max_new_tokens=3).shape == (3, 8)
    own = bertie.GenerationConfig(max_new_tokens=4)
    own.save_pretrained(tmp_path)
    assert bertie.GenerationConfig.from_pretrained(tmp_path) == own
    assert ours.generate(prompts, generation_config=own).shape == (3, 9)
    before = ours.generation_config
    ours.generation_config = own
    assert ours.generate(prompts).shape == (3, 9)
    ours.generation_config = before
    assert ours.generate(prompts).shape == theirs.generate(prompts, pad_token_id=2).shape == (3, 25)


def test_prepared_inputs_are_what_a_step_reads(both: tuple[Any, Any], prompts: torch.Tensor) -> None:
    _, ours = both
    first = ours.prepare_inputs_for_generation(prompts, attention_mask=torch.ones_like(prompts))
    output = ours(**first, use_cache=True)
    longer = torch.cat([prompts, output.logits[:, -1:].argmax(-1)], dim=1)
    second = ours.prepare_inputs_for_generation(longer, past_key_values=output.past_key_values)
    assert second["input_ids"].shape == (3, 1)
    cached = ours(**second, use_cache=True).logits[:, -1]
    assert (cached - ours(longer).logits[:, -1]).abs().max() <= 1e-4
