"""Pruning, resizing, tying, counting, initialising."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bertie
from bertie.errors import ConfigError, InputError
from bertie.model.empty import to_be_filled
from unit.model.plain import TINY, some_ids, tiny

POSITIONS = ["absolute", "relative_key", "relative_key_query"]


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a.detach() - b.detach()).abs().max())


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("heads", [{0: [1]}, {0: [0, 2], 1: [1]}, {1: [0, 1, 2]}])
def test_pruning_heads_equals_masking_them(positions: str, heads: dict[int, list[int]]) -> None:
    model = tiny(position_embedding_type=positions)
    ids = some_ids(2, 9)
    mask = torch.ones(2, 3)
    for layer, numbers in heads.items():
        mask[layer, numbers] = 0
    masked = model(ids, head_mask=mask)
    before = model.num_parameters()
    model.prune_heads(heads)
    assert difference(masked.last_hidden_state, model(ids).last_hidden_state) <= 1e-5
    # With a mask in the original numbering the pruned heads' entries no longer matter.
    assert difference(masked.last_hidden_state, model(ids, head_mask=mask.clamp(min=0)).last_hidden_state) <= 1e-5
    width, size = TINY["hidden_size"], TINY["hidden_size"] // 3
    per_head = 3 * (width * size + size) + size * width  # q, k, v with bias; the output's columns
    assert before - model.num_parameters() == per_head * sum(map(len, heads.values()))


@pytest.mark.parametrize(
    "heads",
    [{0: torch.tensor([1, 2])}, {0: ["1", 2]}, {"0": (1, 2)}, {np.int64(0): np.array([1, 2])}],
    ids=str,
)
def test_heads_may_be_named_by_any_kind_of_whole_number(heads: Any, tmp_path: Path) -> None:
    model = tiny()
    model.prune_heads(heads)
    assert model.encoder.layer[0].attention.self.heads == [0]
    model.save_pretrained(tmp_path)
    assert bertie.BertModel.from_pretrained(tmp_path).config.pruned_heads == {0: [1, 2]}


def test_pruning_twice_equals_pruning_once_in_the_original_numbering() -> None:
    once = tiny("BertForTokenClassification")
    twice = copy.deepcopy(once)
    once.prune_heads({0: [0, 2], 1: [1]})
    twice.prune_heads({0: [0]})
    twice.prune_heads({0: [0, 2]})
    twice.prune_heads({1: [1]})
    assert once.config.pruned_heads == twice.config.pruned_heads == {0: [0, 2], 1: [1]}
    assert all(torch.equal(a, b) for a, b in zip(once.parameters(), twice.parameters(), strict=True))


def test_pruned_heads_survive_config_and_state_dict() -> None:
    model = tiny("BertForSequenceClassification")
    model.prune_heads({0: [1, 2]})
    config = bertie.BertConfig.from_dict(model.config.to_dict())
    again = bertie.BertForSequenceClassification(config).eval()
    again.load_state_dict(model.state_dict())
    ids = some_ids(2, 5)
    assert torch.equal(model(ids).logits, again(ids).logits)
    again.prune_heads({0: [0]})
    assert again.bert.encoder.layer[0].attention.self.heads == []
    assert torch.isfinite(again(ids).logits).all()


@pytest.mark.parametrize(("heads", "message"), [({7: [0]}, "layer 7"), ({0: [3]}, "head 3")])
def test_pruning_what_is_not_there_is_refused_before_anything_changes(heads: Any, message: str) -> None:
    model = tiny()
    with pytest.raises(ConfigError, match=message):
        model.prune_heads(heads)
    assert model.config.pruned_heads == {}


def test_resized_embeddings_keep_the_pad_row_and_stay_tied() -> None:
    model = tiny("BertForMaskedLM")
    assert model.get_input_embeddings().weight[0].abs().max() == 0
    model.resize_token_embeddings(70)
    assert model.get_input_embeddings().weight[0].abs().max() == 0
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert model.cls.predictions.bias is model.cls.predictions.decoder.bias
    assert model(torch.tensor([[69, 68]])).logits.shape == (1, 2, 70)
    model.resize_token_embeddings(40)
    assert model(torch.tensor([[1, 2]])).logits.shape == (1, 2, 40)
    model.config.pad_token_id = 5
    with pytest.raises(InputError, match="more than the padding id"):
        model.resize_token_embeddings(5)


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("how", ["interpolate", "repeat"])
def test_more_positions_read_longer_texts(positions: str, how: str) -> None:
    model = tiny(position_embedding_type=positions)
    long, short = some_ids(1, 33), some_ids(1, 12)
    before = model(short).last_hidden_state
    with pytest.raises(InputError, match="33 tokens long"):
        model(long)
    model.resize_position_embeddings(40, how=how)
    assert model.config.max_position_embeddings == 40
    assert torch.isfinite(model(long).last_hidden_state).all()
    if how == "repeat":  # what was learned for the old positions is unchanged
        assert difference(before, model(short).last_hidden_state) <= 1e-6
    model.resize_position_embeddings(20, how=how)
    if how == "repeat":
        assert difference(before, model(short).last_hidden_state) <= 1e-6
    again = bertie.BertModel(bertie.BertConfig.from_dict(model.config.to_dict()))
    again.load_state_dict(model.state_dict())


def test_interpolated_positions_keep_the_ends() -> None:
    model = tiny()
    old = model.embeddings.position_embeddings.weight.detach().clone()
    model.resize_position_embeddings(39)
    new = model.embeddings.position_embeddings.weight
    assert difference(new[0], old[0]) <= 1e-6
    assert difference(new[-1], old[-1]) <= 1e-6
    assert difference(new[2::2][:10], old[1:11]) <= 1e-5
    with pytest.raises(InputError, match="'interpolate' or 'repeat'"):
        model.resize_position_embeddings(50, how="guess")


def test_bert_base_cased_has_the_published_sizes() -> None:
    with torch.device("meta"):
        model = bertie.BertForMaskedLM(bertie.BertConfig(vocab_size=28996))
    count = {name: sum(p.numel() for p in module.parameters()) for name, module in model.named_modules()}
    embeddings = "bert.embeddings."
    assert count[embeddings + "word_embeddings"] == 22_268_928
    assert count[embeddings + "position_embeddings"] == 393_216
    assert count[embeddings + "token_type_embeddings"] == 1_536
    assert count[embeddings + "LayerNorm"] == 1_536
    assert count["bert.encoder"] == 85_054_464
    assert count["cls.predictions.transform"] == 592_128
    assert count["cls.predictions.decoder"] == 22_297_924
    assert model.num_parameters() == sum(p.numel() for p in model.parameters())


def test_counting_leaves_out_what_is_asked() -> None:
    model = tiny("BertForMaskedLM")
    for p in model.bert.embeddings.parameters():
        p.requires_grad_(False)
    assert model.num_parameters(only_trainable=True) < model.num_parameters()
    tables = sum(p.numel() for n, p in model.named_parameters() if "_embeddings" in n)
    assert model.num_parameters() - model.num_parameters(exclude_embeddings=True) == tables


def test_initialisation_follows_the_paper() -> None:
    model = bertie.BertForPreTraining(bertie.BertConfig.preset("mini", vocab_size=2000, initializer_range=0.05))
    for name, p in model.named_parameters():
        if "LayerNorm.weight" in name:
            assert (p == 1).all(), name
        elif name.endswith("bias"):
            assert (p == 0).all(), name
        elif p.numel() > 5000:
            assert abs(float(p.detach().std()) - 0.05) < 0.003, name
            assert abs(float(p.detach().mean())) < 0.003, name
    assert model.get_input_embeddings().weight[0].abs().max() == 0


def test_untied_head_has_its_own_matrix() -> None:
    model = tiny("BertForMaskedLM", tie_word_embeddings=False)
    assert model.get_output_embeddings().weight is not model.get_input_embeddings().weight
    model.resize_token_embeddings(70)
    assert model.get_output_embeddings().weight.shape == (70, 24)
    assert model.get_output_embeddings().weight is not model.get_input_embeddings().weight


def test_new_embeddings_can_be_set_and_are_tied() -> None:
    model = tiny("BertForMaskedLM")
    fresh = torch.nn.Embedding(61, 24)
    model.set_input_embeddings(fresh)
    assert model.get_output_embeddings().weight is fresh.weight
    with pytest.raises(ConfigError, match="no output embeddings"):
        tiny().set_output_embeddings(torch.nn.Linear(2, 2))


def test_sparse_logits_equal_the_full_ones_at_the_labels() -> None:
    for name in ("BertForMaskedLM", "BertForPreTraining"):
        model = tiny(name)
        ids = some_ids(3, 7)
        labels = torch.full((3, 7), -100)
        labels[0, 2], labels[2, 5], labels[2, 6] = 4, 9, 11
        full, sparse = model(ids, labels=labels), model(ids, labels=labels, sparse_logits=True)
        logits = (lambda o: o.logits) if name == "BertForMaskedLM" else (lambda o: o.prediction_logits)
        assert logits(full).shape == (3, 7, 61)
        assert logits(sparse).shape == (3, 61)
        assert difference(logits(full)[labels != -100], logits(sparse)) <= 1e-6
        assert difference(full.loss, sparse.loss) <= 1e-6
        positions = torch.tensor([[2, 0], [1, 1], [5, 6]])
        at = model(ids, masked_positions=positions)
        assert difference(logits(full)[torch.arange(3)[:, None], positions], logits(at)) <= 1e-6
        wanted = torch.tensor([[4, -100], [-100, -100], [9, 11]])
        assert difference(model(ids, masked_positions=positions, labels=wanted).loss, full.loss) <= 1e-6
        assert difference(model(ids, masked_positions=positions, labels=labels).loss, full.loss) <= 1e-6
        ends = torch.tensor([0, 7, 14, 21])
        flat = torch.tensor([2, 19, 20])
        packed = model(ids.flatten(), cu_seqlens=ends, masked_positions=flat, labels=labels.flatten())
        assert difference(logits(packed), logits(sparse)) <= 1e-5
        assert difference(packed.loss, full.loss) <= 1e-5


def test_class_weights_and_smoothing_are_torchs() -> None:
    model = tiny("BertForSequenceClassification", num_labels=4)
    ids, labels, weights = some_ids(5, 6), torch.tensor([0, 3, 1, 1, 2]), torch.rand(4) + 0.1
    output = model(ids, labels=labels, class_weights=weights, smoothing=0.2)
    wanted = torch.nn.functional.cross_entropy(output.logits, labels, weight=weights, label_smoothing=0.2)
    assert difference(output.loss, wanted) <= 1e-6
    tagger = tiny("BertForTokenClassification", num_labels=4)
    tags = torch.randint(0, 4, (5, 6))
    output = tagger(ids, labels=tags, class_weights=weights, smoothing=0.1)
    wanted = torch.nn.functional.cross_entropy(
        output.logits.flatten(0, 1), tags.flatten(), weight=weights, label_smoothing=0.1
    )
    assert difference(output.loss, wanted) <= 1e-6
    assert model.config.problem_type is None


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("BertForMaskedLM", {"labels": torch.full((2, 5), -100)}),
        ("BertForTokenClassification", {"labels": torch.full((2, 5), -100)}),
        ("BertForQuestionAnswering", {"start_positions": torch.tensor([9, 9]), "end_positions": torch.tensor([9, 9])}),
    ],
)
def test_a_batch_without_labels_has_loss_zero_not_nan(name: str, labels: dict[str, torch.Tensor]) -> None:
    model = tiny(name)
    loss = model(some_ids(2, 5), **labels).loss
    loss.backward()
    assert float(loss.detach()) == 0
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def test_a_head_without_a_bias_is_resized() -> None:
    model = tiny("BertForMaskedLM")
    model.set_output_embeddings(torch.nn.Linear(TINY["hidden_size"], TINY["vocab_size"], bias=False))
    model.tie_weights()
    model.resize_token_embeddings(70)
    assert model(some_ids(1, 4)).logits.shape == (1, 4, 70)


def test_question_answering_has_two_scores_whatever_the_labels_were(tmp_path: Path) -> None:
    tiny("BertForSequenceClassification", id2label={0: "no", 1: "maybe", 2: "yes"}).save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match="qa_outputs"):
        model = bertie.BertForQuestionAnswering.from_pretrained(tmp_path)
    assert model.config.num_labels == 2
    assert model(some_ids(1, 4)).start_logits.shape == (1, 4)


@pytest.mark.parametrize("labels", [torch.zeros(2, 1).long(), torch.zeros(2).long()])
def test_labels_may_have_sizes_of_one(labels: torch.Tensor) -> None:
    assert bool(tiny("BertForSequenceClassification")(some_ids(2, 4), labels=labels).loss > 0)


@pytest.mark.parametrize("kind", [torch.uint8, torch.int32])
def test_next_tokens_as_small_numbers(kind: torch.dtype) -> None:
    model, ids = tiny("BertLMHeadModel", is_decoder=True), some_ids(2, 5)
    assert torch.equal(model(ids, labels=ids.to(kind)).loss, model(ids, labels=ids).loss)


@pytest.mark.parametrize("name", [name for name in bertie.__all__ if name.startswith("BertFor") or name == "BertModel"])
def test_a_model_that_is_about_to_be_filled_takes_no_memory(name: str, tmp_path: Path) -> None:
    # A configuration that claims a billion words costs nothing until the weights have been compared with it.
    model = to_be_filled(getattr(bertie, name), bertie.BertConfig(**{**TINY, "vocab_size": 10**9}))
    assert {tensor.device.type for tensor in (*model.parameters(), *model.buffers())} == {"meta"}
    # What a checkpoint lacks is initialised as in a new model.
    tiny().save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match="random") if name != "BertModel" else nullcontext():
        filled = getattr(bertie, name).from_pretrained(tmp_path)
    assert all(torch.isfinite(tensor).all() for tensor in filled.parameters())
    biases = [value for key, value in filled.named_parameters() if key.startswith("cls.") and key.endswith("bias")]
    assert all(not bias.any() for bias in biases)
