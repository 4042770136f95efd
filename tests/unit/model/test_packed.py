"""A packed batch gives the answers of a padded one: every head, any mix of lengths."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bertie.ops import Packing
from unit.model.plain import some_ids, tiny

POSITIONS = ["absolute", "relative_key", "relative_key_query"]


def batches(lengths: list[int], vocab: int = 61) -> tuple[dict[str, Tensor], dict[str, Tensor], Tensor]:
    """The same texts padded and packed, and where the real tokens are in the rectangle."""
    longest = max(lengths)
    keep = torch.arange(longest) < torch.tensor(lengths)[:, None]
    ids = some_ids(len(lengths), longest, vocab=vocab).masked_fill(~keep, 0)
    types = torch.randint(0, 2, ids.shape)
    padded = {"input_ids": ids, "attention_mask": keep.long(), "token_type_ids": types}
    ends = torch.tensor([0, *lengths]).cumsum(0)
    packed = {"input_ids": ids[keep], "token_type_ids": types[keep], "cu_seqlens": ends}
    return padded, packed, keep


def difference(a: Tensor, b: Tensor) -> float:
    assert a.shape == b.shape, (a.shape, b.shape)
    return float((a.detach() - b.detach()).abs().max())


@settings(max_examples=25)
@given(
    lengths=st.lists(st.integers(1, 512), min_size=1, max_size=6),
    positions=st.sampled_from(POSITIONS),
    decoder=st.booleans(),
    head_mask=st.booleans(),
)
def test_packed_model_equals_padded(lengths: list[int], positions: str, decoder: bool, head_mask: bool) -> None:
    torch.manual_seed(0)
    model = tiny(position_embedding_type=positions, is_decoder=decoder, use_cache=False, max_position_embeddings=512)
    padded, packed, keep = batches(lengths)
    extra: dict[str, Any] = {"head_mask": torch.rand(2, 3)} if head_mask else {}
    with torch.no_grad():
        wanted, got = model(**padded, **extra), model(**packed, **extra)
    assert difference(wanted.last_hidden_state[keep], got.last_hidden_state) <= 1e-5
    assert difference(wanted.pooler_output, got.pooler_output) <= 1e-5


LABELLED = ["MaskedLM", "LMHead", "PreTraining", "NextSentence", "Sequence", "Token", "Choice", "Answer"]


def labelled(kind: str, lengths: list[int], keep: Tensor) -> tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Class, config, padded labels and packed labels."""
    tokens = torch.randint(0, 61, keep.shape).masked_fill(~keep, -100)
    texts = len(lengths)
    if kind == "MaskedLM":
        return "BertForMaskedLM", {}, {"labels": tokens}, {"labels": tokens[keep]}
    if kind == "LMHead":
        return "BertLMHeadModel", {"is_decoder": True}, {"labels": tokens}, {"labels": tokens[keep]}
    if kind == "PreTraining":
        following = torch.randint(0, 2, (texts,))
        padded = {"labels": tokens, "next_sentence_label": following}
        return "BertForPreTraining", {}, padded, padded | {"labels": tokens[keep]}
    if kind == "NextSentence":
        both = {"labels": torch.randint(0, 2, (texts,))}
        return "BertForNextSentencePrediction", {}, both, both
    if kind == "Sequence":
        both = {"labels": torch.randint(0, 4, (texts,)), "smoothing": 0.1, "class_weights": torch.rand(4) + 0.5}
        return "BertForSequenceClassification", {"num_labels": 4}, both, both
    if kind == "Token":
        tags = torch.randint(0, 5, keep.shape).masked_fill(~keep, -100)
        return "BertForTokenClassification", {"num_labels": 5}, {"labels": tags}, {"labels": tags[keep]}
    if kind == "Choice":
        labels = torch.randint(0, 2, (texts // 2,))
        return "BertForMultipleChoice", {}, {"labels": labels}, {"labels": labels, "num_choices": 2}
    both = {"start_positions": torch.zeros(texts).long(), "end_positions": torch.tensor(lengths) - 1}
    return "BertForQuestionAnswering", {}, both, both


@pytest.mark.parametrize("kind", LABELLED)
@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("lengths", [[3, 17, 1, 9], [8, 8], [20, 1, 1, 1, 19, 16]], ids=str)
def test_packed_head_equals_padded_in_logits_loss_and_gradients(kind: str, positions: str, lengths: list[int]) -> None:
    padded, packed, keep = batches(lengths)
    name, config, padded_labels, packed_labels = labelled(kind, lengths, keep)
    model = tiny(name, position_embedding_type=positions, **config)
    if kind == "Choice":
        padded = {k: v.view(len(lengths) // 2, 2, -1) for k, v in padded.items()}
    wanted, got = model(**padded, **padded_labels), model(**packed, **packed_labels)
    for field in ("logits", "prediction_logits", "seq_relationship_logits", "start_logits", "end_logits"):
        a, b = getattr(wanted, field, None), getattr(got, field, None)
        if a is not None:
            assert difference(a[keep] if a.shape[:2] == keep.shape and kind != "Choice" else a, b) <= 1e-5
    if kind == "Answer":
        # A padded batch lets padding compete for the answer; the same texts one by one have none, like a packed batch.
        alone = [
            model(padded["input_ids"][i : i + 1, :n], token_type_ids=padded["token_type_ids"][i : i + 1, :n],
                  start_positions=torch.tensor([0]), end_positions=torch.tensor([n - 1])).loss
            for i, n in enumerate(lengths)
        ]  # fmt: skip
        wanted.loss = torch.stack(alone).mean()
    assert difference(wanted.loss, got.loss) <= 1e-5
    gradients = []
    for loss in (wanted.loss, got.loss):
        model.zero_grad()
        loss.backward()
        gradients.append({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    assert max(difference(gradients[0][n], gradients[1][n]) for n in gradients[0]) <= 1e-5


def test_packed_maps_come_per_text() -> None:
    model = tiny()
    padded, packed, _ = batches([5, 9, 2])
    wanted = model(**padded, output_attentions=True).attentions
    got = model(**packed, output_attentions=True).attentions
    assert len(got) == 2
    for layer in range(2):
        for text, length in enumerate([5, 9, 2]):
            assert difference(wanted[layer][text, :, :length, :length], got[layer][text]) <= 1e-5
    pairs = model(**packed, output_attentions=[(1, 2)]).attentions
    assert difference(pairs[1, 2][1], got[1][1][2]) <= 1e-6


def test_packed_embeds_equal_packed_ids() -> None:
    model = tiny()
    _, packed, _ = batches([5, 9, 2])
    embeds = model.get_input_embeddings()(packed["input_ids"])
    got = model(
        inputs_embeds=embeds, token_type_ids=packed["token_type_ids"], cu_seqlens=packed["cu_seqlens"]
    ).last_hidden_state
    assert difference(model(**packed).last_hidden_state, got) <= 1e-6


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_packed_half_precision_is_finite(dtype: torch.dtype) -> None:
    model = tiny(position_embedding_type="relative_key").to(dtype)
    _, packed, _ = batches([1, 20, 7, 1])
    assert torch.isfinite(model(**packed).last_hidden_state).all()


@given(st.lists(st.integers(1, 600), min_size=1, max_size=40))
def test_groups_hold_every_token_once_and_little_padding(lengths: list[int]) -> None:
    packing = Packing.of(lengths)
    cells = sum(group.tokens.numel() for group in packing.groups)
    assert cells <= max(packing.num_tokens / 0.75, 16 * len(lengths)) + 1
    kept = torch.cat([g.tokens.flatten() if g.keep is None else g.tokens[g.keep] for g in packing.groups])
    assert torch.equal(kept[packing.ungroup], torch.arange(packing.num_tokens))
    assert sorted(text for group in packing.groups for text in group.texts) == list(range(len(lengths)))


def test_pad_lays_texts_in_rows() -> None:
    rectangle = Packing.of([2, 3]).pad(torch.tensor([1.0, 2, 3, 4, 5]), -1)
    assert rectangle.tolist() == [[1, 2, -1], [3, 4, 5]]


@pytest.mark.parametrize("ends", [[0, 5], [0, 3, 6], [0, 2, 7]])
@torch.no_grad()
def test_a_layer_without_heads_reads_packed_texts(ends: list[int]) -> None:
    model = tiny()
    model.prune_heads({0: [0, 1, 2]})
    ids = some_ids(ends[-1])
    packed = model(ids, cu_seqlens=torch.tensor(ends)).last_hidden_state
    alone = [model(ids[None, a:b]).last_hidden_state[0] for a, b in itertools.pairwise(ends)]
    assert float((packed - torch.cat(alone)).abs().max()) <= 1e-5


@torch.no_grad()
def test_an_answer_outside_its_own_text_is_left_out_of_the_loss() -> None:
    model, ids, ends = tiny("BertForQuestionAnswering"), some_ids(9), torch.tensor([0, 3, 9])
    # 4 is beyond the first text, though the second one is longer
    both = model(ids, cu_seqlens=ends, start_positions=torch.tensor([4, 1]), end_positions=torch.tensor([4, 2]))
    second = model(ids[None, 3:], start_positions=torch.tensor([1]), end_positions=torch.tensor([2]))
    assert float((both.loss - second.loss).abs()) <= 1e-5
