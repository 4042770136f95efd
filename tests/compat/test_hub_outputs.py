"""Outputs behave as transformers' ModelOutput does, for people and for the libraries that take models apart."""

from __future__ import annotations

import copy
import inspect
import pickle
import sys
import warnings
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from torch.utils import _pytree as pytree
from transformers import modeling_outputs as their_outputs
from transformers.models.bert.modeling_bert import BertForPreTrainingOutput

from bertie.model import outputs as our_outputs
from compat.hub_cases import CLASSES, inputs, labels, settings
from parity.oracle import check_same, difference, pair

NAMES = [
    "BaseModelOutputWithPastAndCrossAttentions",
    "BaseModelOutputWithPoolingAndCrossAttentions",
    "MaskedLMOutput",
    "NextSentencePredictorOutput",
    "SequenceClassifierOutput",
    "TokenClassifierOutput",
    "MultipleChoiceModelOutput",
    "CausalLMOutputWithCrossAttentions",
    "QuestionAnsweringModelOutput",
    "Seq2SeqLMOutput",
]
LOGITS = torch.arange(6.0).view(2, 3)
LOSS = torch.tensor(0.5)


def both(*args: Any, **named: Any) -> list[Any]:
    return [
        their_outputs.SequenceClassifierOutput(*args, **named),
        our_outputs.SequenceClassifierOutput(*args, **named),
    ]


def contents(output: Any) -> list[tuple[str, Any]]:
    return [(name, value.tolist() if isinstance(value, Tensor) else value) for name, value in output.items()]


def test_every_class_has_the_hubs_fields_in_its_order() -> None:
    theirs = {name: getattr(their_outputs, name) for name in NAMES} | {
        "BertForPreTrainingOutput": BertForPreTrainingOutput
    }
    for name, cls in theirs.items():
        assert list(inspect.signature(getattr(our_outputs, name)).parameters) == list(inspect.signature(cls).parameters)


@pytest.mark.parametrize(
    "make",
    [
        lambda: both(LOSS, LOGITS),
        lambda: both(logits=LOGITS),
        lambda: both({"loss": LOSS, "logits": LOGITS}),
        lambda: both([("logits", LOGITS), ("loss", None)]),
        lambda: both((LOSS, LOGITS)),
        lambda: both(),
    ],
    ids=["fields", "one field", "dictionary", "pairs", "a tuple as first field", "nothing"],
)
def test_construction_iteration_and_indices_are_the_hubs(make: Any) -> None:
    theirs, ours = make()
    assert isinstance(ours, dict)
    assert list(ours) == list(theirs)
    assert len(ours) == len(theirs)
    check_same(theirs.to_tuple(), ours.to_tuple())
    check_same(theirs[:1], ours[:1])
    for name in ("loss", "logits", "attentions"):
        assert (name in ours) == (name in theirs)
        assert difference(getattr(theirs, name), getattr(ours, name)) == 0
        assert type(ours.get(name)) is type(theirs.get(name))


def test_assignments_keep_items_and_attributes_in_step() -> None:
    for output in both(LOSS, LOGITS):
        output["loss"] = torch.tensor(1.0)
        assert output.loss == 1.0
        output.logits = LOGITS + 1
        assert torch.equal(output["logits"], LOGITS + 1)
        output["extra"] = torch.tensor(7.0)
        assert output.extra == 7.0
        assert list(output) == ["loss", "logits", "extra"]
        output.attentions = (LOGITS,)  # a field that was None stays out of the items
        assert "attentions" not in output


@pytest.mark.parametrize(
    "refused",
    [
        lambda output: output.pop("loss"),
        lambda output: output.update(loss=None),
        lambda output: output.setdefault("loss", 1),
        lambda output: output.__delitem__("loss"),
    ],
    ids=["pop", "update", "setdefault", "del"],
)
def test_what_the_hub_refuses_is_refused(refused: Any) -> None:
    for output in both(LOSS, LOGITS):
        with pytest.raises(Exception, match=type(output).__name__):
            refused(output)
        assert list(output) == ["loss", "logits"]


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, lambda output: pickle.loads(pickle.dumps(output))])
def test_copies_and_pickles_are_whole(way: Any) -> None:
    output = our_outputs.LogitsOutput(LOSS, LOGITS, hidden_states=(LOGITS, LOGITS))
    output["extra"] = LOSS
    again = way(output)
    assert type(again) is our_outputs.LogitsOutput
    assert list(again) == ["loss", "logits", "hidden_states", "extra"]
    check_same(output.to_tuple(), again.to_tuple())
    assert again.attentions is None


def test_outputs_go_through_pytrees_whatever_takes_the_tensors_place() -> None:
    for output in both(None, LOGITS, hidden_states=(LOGITS, LOGITS)):
        leaves, spec = pytree.tree_flatten(output)
        assert len(leaves) == 3
        assert torch.equal(pytree.tree_unflatten(leaves, spec).logits, LOGITS)
    ours = our_outputs.LogitsOutput(None, LOGITS, hidden_states=(LOGITS,))
    shapes = pytree.tree_map(lambda tensor: list(tensor.shape), ours)
    assert shapes.logits == [2, 3]
    assert shapes.hidden_states == ([2, 3],)


def test_a_dataclass_of_ones_own() -> None:
    @dataclass
    class Mine(our_outputs.ModelOutput):
        loss: Tensor | None = None
        span: Tensor | None = None

    output = Mine(span=LOGITS)
    assert list(output) == ["span"]
    assert output[0] is LOGITS
    with pytest.raises(TypeError, match="dataclass"):
        type("Plain", (our_outputs.ModelOutput,), {})()


def test_printing_shows_shapes() -> None:
    output = our_outputs.LogitsOutput(LOSS, LOGITS, hidden_states=(LOGITS, LOGITS))
    assert repr(output) == "LogitsOutput(loss=tensor(0.5000), logits=Tensor[2, 3], hidden_states=2 × Tensor[2, 3])"


@pytest.mark.parametrize("name", CLASSES)
def test_data_parallel_gathers_every_field(name: str) -> None:
    """`DataParallel` rebuilds outputs from the pairs of its replicas'; without GPUs, by the rule it has for them."""
    theirs, ours = pair(name, **settings(name))
    given = inputs(name, 2, 6) | labels(name, 2, 6)

    def gathered(model: Any) -> Any:
        replicas = [model(**given, output_hidden_states=True) for _ in range(2)]

        def gather(values: list[Any]) -> Any:  # torch.nn.parallel.scatter_gather.gather, but for its copy to a GPU
            if isinstance(values[0], Tensor):
                return torch.cat([value.reshape(-1, *value.shape[1:]) for value in values])
            if isinstance(values[0], dict):
                return type(values[0])((key, gather([value[key] for value in values])) for key in values[0])
            return type(values[0])(map(gather, zip(*values, strict=True)))

        return gather(replicas)

    check_same(gathered(theirs), gathered(ours))


def test_accelerate_rebuilds_outputs() -> None:
    operations = pytest.importorskip("accelerate.utils.operations")
    for output in both(LOSS.half(), LOGITS.half(), hidden_states=(LOGITS.half(),)):
        for rebuilt in (operations.send_to_device(output, "cpu"), operations.convert_to_fp32(output)):
            assert type(rebuilt) is type(output)
            check_same(tuple(x.float() for x in output[:2]), tuple(x.float() for x in rebuilt[:2]))
        assert operations.convert_to_fp32(output).hidden_states[0].dtype == torch.float32


def test_torchinfo_and_tensorboard_read_a_model(tmp_path: Any) -> None:
    torchinfo = pytest.importorskip("torchinfo")
    theirs, ours = pair("BertForSequenceClassification")
    given = inputs("BertForSequenceClassification", 2, 6)
    counts = [torchinfo.summary(model, input_data=given, verbose=0).total_params for model in (theirs, ours)]
    assert counts[0] == counts[1]
    if "tensorflow" in sys.modules:  # another test's stand-in, which TensorBoard would take for the real one
        return
    tensorboard = pytest.importorskip("torch.utils.tensorboard", exc_type=ImportError)
    with warnings.catch_warnings(), tensorboard.SummaryWriter(tmp_path) as writer:
        warnings.simplefilter("ignore")  # about tracing, and about its age
        writer.add_graph(ours, (given["input_ids"], given["attention_mask"]), use_strict_trace=False)
    assert any(path.stat().st_size > 1000 for path in tmp_path.iterdir())


def test_models_are_the_hubs_kind_once_transformers_is_imported() -> None:
    _, ours = pair("BertForMaskedLM")
    assert isinstance(ours, transformers.PreTrainedModel)
    output = ours(torch.tensor([[4, 5]]))
    assert isinstance(output, transformers.utils.ModelOutput)  # pipelines index what is, and nothing else
    assert isinstance(pickle.loads(pickle.dumps(output)), transformers.utils.ModelOutput)
    assert isinstance(copy.deepcopy(ours), transformers.PreTrainedModel)
    assert isinstance(pickle.loads(pickle.dumps(ours)), transformers.PreTrainedModel)
