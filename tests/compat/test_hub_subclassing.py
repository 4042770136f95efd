"""Heads that people write for transformers, unchanged on Bertie: loaded, saved, initialised and run alike.

Each class is defined by a function of the library, so that the two differ in the import and in nothing else.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from two_libraries import IDS, MASK, SIZES, base, library, transformers  # noqa: F401

import bertie
from bertie.checkpoint.report import NewlyInitialized

pytestmark = pytest.mark.filterwarnings("ignore::bertie.checkpoint.report.NewlyInitialized")


def crf_tagger(library: Any) -> Any:
    class Crf(nn.Module):
        def __init__(self, num_tags: int) -> None:
            super().__init__()
            self.start = nn.Parameter(torch.empty(num_tags))
            self.transitions = nn.Parameter(torch.empty(num_tags, num_tags))
            nn.init.uniform_(self.start, 0.5, 1.5)
            nn.init.uniform_(self.transitions, 0.5, 1.5)
            self.register_buffer("allowed", torch.ones(num_tags, num_tags).tril())
            self.register_buffer("steps", torch.arange(num_tags), persistent=False)

    class CrfTagger(library.BertPreTrainedModel):  # type: ignore[misc,name-defined]
        _keys_to_ignore_on_load_unexpected = [r"pooler"]  # noqa: RUF012

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.num_labels = config.num_labels
            self.bert = library.BertModel(config, add_pooling_layer=False)
            self.lstm = nn.LSTM(config.hidden_size, 5, bidirectional=True, batch_first=True)
            self.classifier = nn.Linear(10, config.num_labels)
            self.crf = Crf(config.num_labels)
            self.post_init()

        def forward(self, input_ids: Any = None, attention_mask: Any = None, return_dict: Any = None) -> Any:
            return_dict = return_dict if return_dict is not None else self.config.use_return_dict
            outputs = self.bert(input_ids, attention_mask=attention_mask, return_dict=return_dict)
            states, _ = self.lstm(outputs[0])
            scores = self.classifier(states) + self.crf.start + self.crf.steps
            return scores @ (self.crf.transitions * self.crf.allowed)

    return CrfTagger


def convolutions(library: Any) -> Any:
    class Convolutions(library.BertPreTrainedModel):  # type: ignore[misc,name-defined]
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.bert = library.BertModel(config)
            self.conv = nn.Conv1d(config.hidden_size, 6, 3, padding=1)
            self.norm = nn.BatchNorm1d(6)
            self.gru = nn.GRU(6, 4, batch_first=True)
            self.prelu = nn.PReLU()
            self.layer_weights = nn.Parameter(torch.full((config.num_hidden_layers + 1,), 0.5))
            self.register_buffer("count", torch.tensor(7))
            self.head = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, config.num_labels))
            self.init_weights()

        def forward(self, input_ids: Any, attention_mask: Any = None) -> Any:
            outputs = self.bert(input_ids, attention_mask=attention_mask, output_hidden_states=True)
            mixed = sum(w * h for w, h in zip(self.layer_weights, outputs.hidden_states, strict=True))
            states, _ = self.gru(self.prelu(self.norm(self.conv(mixed.transpose(1, 2)))).transpose(1, 2))
            return self.head(states[:, -1]) * self.count

    return Convolutions


def multi_task(library: Any) -> Any:
    class MultiTask(library.BertForSequenceClassification):  # type: ignore[misc,name-defined]
        def __init__(self, config: Any, num_tags: int = 4) -> None:
            super().__init__(config)
            self.tagger = nn.ModuleDict({"tags": nn.Linear(config.hidden_size, num_tags)})
            self.scale = nn.Parameter(torch.tensor(2.0))
            self.norm = nn.LayerNorm(config.hidden_size, elementwise_affine=False)
            self.post_init()

        def forward(self, input_ids: Any, attention_mask: Any = None) -> Any:
            outputs = self.bert(input_ids, attention_mask=attention_mask)
            tags = self.tagger["tags"](self.norm(outputs.last_hidden_state)) * self.scale
            return torch.cat([self.classifier(outputs.pooler_output), tags.mean(1)], dim=-1)

    return MultiTask


STYLES = pytest.mark.parametrize("style", [crf_tagger, convolutions, multi_task])


def run(model: Any) -> torch.Tensor:
    with torch.no_grad():
        answer: torch.Tensor = model.eval()(IDS, attention_mask=MASK)
    return answer


@STYLES
def test_a_trained_subclass_saves_and_loads_whole_in_both(
    style: Any, base: Path, tmp_path: Path, transformers: Any
) -> None:
    ours = style(bertie).from_pretrained(base)
    with torch.no_grad():  # as training would: parameters and buffers change
        for tensor in (*ours.parameters(), *ours.buffers()):
            if tensor.is_floating_point():
                tensor.add_(torch.rand_like(tensor) * 0.1)
            elif tensor.dim() == 0:
                tensor.add_(3)
    before = {name: tensor.clone() for name, tensor in ours.state_dict().items()}
    expected = run(ours)
    ours.save_pretrained(tmp_path / "ours")
    again, report = style(bertie).from_pretrained(tmp_path / "ours", output_loading_info=True)
    theirs, info = style(transformers).from_pretrained(tmp_path / "ours", output_loading_info=True)
    for model, found in ((again, report), (theirs, info)):
        assert list(found["missing_keys"]) == []
        assert list(found["unexpected_keys"]) == []
        assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
        assert model.state_dict().keys() == before.keys()
    assert torch.equal(run(again), expected)
    assert torch.allclose(run(theirs), expected, atol=1e-5)
    theirs.save_pretrained(tmp_path / "theirs")
    back = style(bertie).from_pretrained(tmp_path / "theirs")
    assert torch.equal(run(back), expected)


@STYLES
def test_what_the_checkpoint_lacks_is_what_its_constructor_made(style: Any, base: Path, transformers: Any) -> None:
    ours, report = style(bertie).from_pretrained(base, output_loading_info=True)
    _, info = style(transformers).from_pretrained(base, output_loading_info=True)
    assert set(report["missing_keys"]) == set(info["missing_keys"])
    assert set(report["unexpected_keys"]) == set(info["unexpected_keys"])
    assert not any(tensor.is_meta for tensor in (*ours.parameters(), *ours.buffers()))
    for name, module in ours.named_modules():
        if isinstance(module, nn.LSTM | nn.GRU | nn.Conv1d):  # torch's own range, which is never zero and never 0.2
            assert all(p.std() > 0.01 for p in module.parameters()), name
            assert all(p.abs().max() <= 0.5 for p in module.parameters()), name
        elif isinstance(module, nn.Linear) and not name.startswith("bert"):  # the model's own rule
            assert module.bias.abs().max() == 0, name
            assert module.weight.std() > 0.05, name
    if style is crf_tagger:
        assert ours.crf.transitions.min() >= 0.5
        assert torch.equal(ours.crf.allowed, torch.ones(3, 3).tril())
        assert ours.crf.steps.tolist() == [0, 1, 2]
    if style is convolutions:
        assert ours.layer_weights.tolist() == [0.5] * 3
        assert (ours.norm.running_var.tolist(), int(ours.norm.num_batches_tracked), int(ours.count)) == (
            [1.0] * 6,
            0,
            7,
        )
        assert ours.prelu.weight.tolist() == [0.25]
    if style is multi_task:
        assert ours.scale == 2
    assert torch.isfinite(run(ours)).all()


@STYLES
def test_other_precisions_reach_everything_a_subclass_has(style: Any, base: Path) -> None:
    model = style(bertie).from_pretrained(base, torch_dtype="bfloat16")
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        assert tensor.dtype in (torch.bfloat16, torch.int64), name
    assert run(model).dtype == torch.bfloat16


def test_a_subclass_rule_is_used_for_new_layers_and_only_there(base: Path, library: Any) -> None:
    class Ruled(library.BertPreTrainedModel):  # type: ignore[misc,name-defined]
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.bert = library.BertModel(config)
            self.head = nn.Linear(config.hidden_size, 4)
            self.rnn = nn.RNN(4, 4)
            self.post_init()

        def _init_weights(self, module: nn.Module) -> None:
            if isinstance(module, nn.Linear):
                module.weight.data.fill_(0.125)
                module.bias.data.fill_(3.0)
            elif isinstance(module, nn.RNN):
                for parameter in module.parameters():
                    parameter.data.fill_(0.5)

    for model in (Ruled.from_pretrained(base), Ruled(library.BertConfig(**SIZES))):
        assert model.head.weight.unique().tolist() == [0.125]
        assert model.head.bias.unique().tolist() == [3.0]
        assert all(p.unique().tolist() == [0.5] for p in model.rnn.parameters())
    loaded, stored = Ruled.from_pretrained(base), bertie.BertModel.from_pretrained(base).state_dict()
    assert all(torch.equal(tensor, stored[name]) for name, tensor in loaded.bert.state_dict().items())


def test_new_parts_inside_the_encoder_are_new_and_the_rest_is_loaded(base: Path, library: Any) -> None:
    """Adapters, a second BERT and parts of one are what people put into models; none of them is in the checkpoint."""

    class Adapted(library.BertPreTrainedModel):  # type: ignore[misc,name-defined]
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.bert = library.BertModel(config)
            for layer in self.bert.encoder.layer:
                layer.adapter = nn.Linear(config.hidden_size, 2)
            self.second = library.BertModel(config)
            self.embeddings = nn.Embedding(5, config.hidden_size)
            self.post_init()

    model, report = Adapted.from_pretrained(base, output_loading_info=True)
    stored = bertie.BertModel.from_pretrained(base).state_dict()
    loaded = model.bert.state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in stored.items())
    new = {name for name in model.state_dict() if not name.startswith("bert.") or "adapter" in name}
    assert set(report["missing_keys"]) == new
    assert model.second.encoder.layer[0].attention.self.query.weight.std() > 0.05
    assert not any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))


def test_a_model_under_another_name_is_found(base: Path, library: Any) -> None:
    class Tower(library.BertPreTrainedModel):  # type: ignore[misc,name-defined]
        base_model_prefix = "tower"

        def __init__(self, config: Any, width: int = 2, **options: Any) -> None:
            super().__init__(config)
            self.tower = library.BertModel(config)
            self.project = nn.Linear(config.hidden_size, width)
            self.options = options
            self.post_init()

    model, report = Tower.from_pretrained(base, width=5, mode="cosine", output_loading_info=True)
    assert set(report["missing_keys"]) == {"project.weight", "project.bias"}
    assert (model.project.out_features, model.options) == (5, {"mode": "cosine"})
    assert model.base_model is model.tower
    stored = bertie.BertModel.from_pretrained(base).state_dict()
    assert all(torch.equal(tensor, stored[name]) for name, tensor in model.tower.state_dict().items())


def test_a_subclass_of_bertmodel_changes_its_embeddings(base: Path, library: Any) -> None:
    class Typed(library.BertModel):  # type: ignore[misc,name-defined]
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.kinds = nn.Embedding(4, config.hidden_size)
            self.register_buffer("shift", torch.linspace(0, 1, 3), persistent=False)
            self.post_init()

    model = Typed.from_pretrained(base)
    stored = bertie.BertModel.from_pretrained(base)
    assert torch.equal(model.encoder.layer[1].output.dense.weight, stored.encoder.layer[1].output.dense.weight)
    assert model.kinds.weight.std() > 0.05
    assert torch.allclose(
        model.eval()(IDS, attention_mask=MASK)[0], stored(IDS, attention_mask=MASK).last_hidden_state, atol=1e-5
    )
    if library is bertie:  # transformers leaves what is not in the file on the meta device or undefined
        assert model.shift.tolist() == [0.0, 0.5, 1.0]


def test_tied_weights_of_a_subclass_stay_tied(base: Path, tmp_path: Path, library: Any) -> None:
    class Tied(library.BertPreTrainedModel):  # type: ignore[misc,name-defined]
        _tied_weights_keys = ["decoder.weight"]  # noqa: RUF012

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.bert = library.BertModel(config)
            self.decoder = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
            self.post_init()

        def get_output_embeddings(self) -> nn.Linear:
            return self.decoder

        def set_output_embeddings(self, new: nn.Linear) -> None:
            self.decoder = new

    model, report = Tied.from_pretrained(base, output_loading_info=True)
    assert list(report["missing_keys"]) == []
    for one in (model, Tied.from_pretrained(_saved(model, tmp_path))):
        assert one.decoder.weight is one.bert.embeddings.word_embeddings.weight
    model.resize_token_embeddings(70)
    assert model.decoder.weight is model.bert.embeddings.word_embeddings.weight
    assert model.decoder.weight.shape[0] == 70


def _saved(model: Any, folder: Path) -> Path:
    model.save_pretrained(folder)
    return folder


def test_small_methods_answer_alike(transformers: Any) -> None:
    answers = []
    for one in (transformers, bertie):
        model = one.BertForMaskedLM(one.BertConfig(**SIZES))
        inputs = {"input_ids": IDS}
        answers.append([
            model.num_parameters(), model.num_parameters(True), model.num_parameters(exclude_embeddings=True),
            model.floating_point_ops(inputs), model.floating_point_ops(inputs, exclude_embeddings=False),
            model.estimate_tokens(inputs), model.get_memory_footprint(return_buffers=False), model.framework,
            model.main_input_name, model.base_model_prefix, model.can_generate(), model.is_gradient_checkpointing,
            model.supports_gradient_checkpointing, model.is_parallelizable, model.name_or_path,
            model.get_position_embeddings().num_embeddings if one is bertie else 40,
            model.dummy_inputs["input_ids"].tolist(), model.config._attn_implementation, model._tied_weights_keys,
            type(model.base_model).__name__, one.BertLMHeadModel.can_generate(), model.half().dtype,
            model.float().dtype, sorted(model.state_dict()),
        ])  # fmt: skip
    assert answers[0] == answers[1]


def test_fresh_models_from_one_seed_are_equal(transformers: Any) -> None:
    for name in ("BertModel", "BertForTokenClassification", "BertForPreTraining"):
        states = []
        for one in (transformers, bertie):
            torch.manual_seed(5)
            states.append(getattr(one, name)(one.BertConfig(**SIZES)).state_dict())
        assert states[0].keys() == states[1].keys()
        assert all(torch.equal(tensor, states[1][key]) for key, tensor in states[0].items()), name


def test_resizing_without_the_mean_starts_new_rows_like_a_new_model(library: Any) -> None:
    model = library.BertForMaskedLM(library.BertConfig(**SIZES))
    old = model.get_input_embeddings().weight.detach().clone()
    model.resize_token_embeddings(new_num_tokens=1060, mean_resizing=False)
    new = model.get_input_embeddings().weight.detach()
    assert torch.equal(new[:60], old)
    assert abs(new[60:].std() - 0.2) < 0.01
    assert model.config.vocab_size == 1060
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


def test_gradient_checkpointing_reaches_somebodys_own_encoder(library: Any) -> None:
    class Block(nn.Module):
        gradient_checkpointing = False

    class Own(library.BertPreTrainedModel):  # type: ignore[misc,name-defined]
        supports_gradient_checkpointing = True

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.bert = library.BertModel(config)
            self.block = Block()
            self.post_init()

    model = Own(library.BertConfig(**SIZES))
    model.gradient_checkpointing_enable()
    assert model.block.gradient_checkpointing
    assert model.is_gradient_checkpointing
    model.gradient_checkpointing_disable()
    assert not model.block.gradient_checkpointing
    assert not model.is_gradient_checkpointing


def test_frozen_embeddings_can_pass_gradients_on(library: Any) -> None:
    model = library.BertModel(library.BertConfig(**SIZES))
    model.requires_grad_(False)
    model.enable_input_require_grads()
    assert model(IDS)[0].requires_grad
    model.disable_input_require_grads()
    assert not model(IDS)[0].requires_grad


def test_the_warning_names_every_new_weight(base: Path) -> None:
    with pytest.warns(
        NewlyInitialized, match=r"13 weights are not in the checkpoint .*lstm\.weight_ih_l0.*classifier\.bias"
    ):
        crf_tagger(bertie).from_pretrained(base)


def test_torchs_layers_are_left_as_they_are(base: Path) -> None:
    """Loading exchanges nothing in torch that another thread, or code after it, could see."""
    script = f"""
import torch, bertie, warnings
before = [kind.reset_parameters for kind in (torch.nn.Linear, torch.nn.Embedding, torch.nn.LayerNorm)]
bertie.BertModel.from_pretrained({str(base)!r})
class Broken(bertie.BertModel):
    def __init__(self, config):
        super().__init__(config)
        self.bert = bertie.BertModel(config)
        raise KeyError("on purpose")
for source in (Broken, bertie.BertForMaskedLM):
    try:
        source.from_pretrained({str(base)!r}, hidden_size=25)
    except Exception as error:
        print(type(error).__name__)
    after = [kind.reset_parameters for kind in (torch.nn.Linear, torch.nn.Embedding, torch.nn.LayerNorm)]
    assert before == after
    assert not torch.empty(2).is_meta
assert torch.nn.Linear(3, 3).weight.abs().sum() > 0
assert bertie.BertModel(bertie.BertConfig.preset("tiny", vocab_size=9)).pooler.dense.weight.std() > 0.01
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
