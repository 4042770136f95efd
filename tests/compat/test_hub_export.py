"""A model that is traced or exported answers for other shapes and masks than the example's as the model itself does."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.export import Dim

import bertie
from compat.hub_cases import CLASSES, inputs, settings
from parity.oracle import TINY, check_same, difference, pair

# Recording warns that it is deprecated, and of every size it sees; what matters is what the recording answers.
pytestmark = [
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

LONG = {"max_position_embeddings": 80}
RELATIVE = [{"position_embedding_type": kind} for kind in ("relative_key", "relative_key_query")]
CASES: list[tuple[str, dict[str, Any]]] = [
    *((name, settings(name)) for name in CLASSES),
    *(("BertModel", more) for more in RELATIVE),
]
IDS = [f"{name} {more.get('position_embedding_type', '')}".strip() for name, more in CASES]
# An example without padding, and what is asked later: another batch, another length (more than one block of relative
# positions), with padding.
EXAMPLE, LATER = (2, 6), (5, 71)


def model_and_batches(name: str, more: dict[str, Any]) -> tuple[Any, Any, dict[str, Tensor], dict[str, Tensor]]:
    theirs, ours = pair(name, **LONG, **more)
    return theirs, ours, inputs(name, *EXAMPLE, padded=False), inputs(name, *LATER)


def sizes(name: str) -> dict[int, str]:
    return {0: "batch", 2 if name == "BertForMultipleChoice" else 1: "length"}


def tensors(output: Any) -> tuple[Tensor, ...]:
    values = output.to_tuple() if isinstance(output, dict) else output
    return tuple(value for value in values if isinstance(value, Tensor))


@pytest.mark.parametrize(("name", "more"), CASES, ids=IDS)
def test_a_traced_model_heeds_masks_it_has_not_seen(name: str, more: dict[str, Any]) -> None:
    theirs, ours, example, later = model_and_batches(name, more | {"return_dict": False})
    traced = torch.jit.trace(ours, tuple(example.values()))
    with torch.no_grad():
        answer = traced(*later.values())
        check_same(tensors(theirs(**later)), tensors(answer))
        unmasked = tensors(ours(later["input_ids"], None, later["token_type_ids"]))
    assert difference(unmasked[0], tensors(answer)[0]) > 1e-3  # the mask matters, so heeding it shows


def test_a_traced_model_may_answer_with_a_dictionary() -> None:
    theirs, ours, example, later = model_and_batches("BertForSequenceClassification", {})
    traced = torch.jit.trace(ours, example_kwarg_inputs=example, strict=False)
    with torch.no_grad():
        check_same(theirs(**later).logits, traced(**later)["logits"])


@pytest.mark.parametrize(("name", "more"), CASES, ids=IDS)
def test_an_exported_program_has_batch_and_length_open(name: str, more: dict[str, Any]) -> None:
    theirs, ours, example, later = model_and_batches(name, more)
    names = {"batch": Dim("batch"), "length": Dim("length", min=2, max=80)}
    dynamic = {key: {axis: names[size] for axis, size in sizes(name).items()} for key in example}
    program = torch.export.export(ours, (), example, dynamic_shapes=dynamic)
    with torch.no_grad():
        answer = program.module()(**later)
        assert isinstance(answer, dict)
        check_same(theirs(**later), answer)


def test_an_exported_program_is_saved_and_loaded() -> None:
    _, ours, example, _ = model_and_batches("BertForQuestionAnswering", {})
    file = io.BytesIO()
    torch.export.save(torch.export.export(ours, (), example), file)
    file.seek(0)
    answer = torch.export.load(file).module()(**example)
    check_same(ours(**example).to_tuple(), answer.to_tuple())


def test_an_exported_decoder_returns_its_cache() -> None:
    _, ours = pair("BertLMHeadModel", is_decoder=True)
    ids = inputs("BertLMHeadModel", 2, 5)["input_ids"]
    program = torch.export.export(ours, (ids,))
    answer, wanted = program.module()(ids), ours(ids)
    check_same(wanted.past_key_values.to_legacy(), answer.past_key_values.to_legacy())
    check_same(wanted.logits, answer.logits)


@pytest.mark.parametrize(("name", "more"), [CASES[0], CASES[-1]], ids=[IDS[0], IDS[-1]])
def test_the_older_onnx_exporter(name: str, more: dict[str, Any], tmp_path: Path) -> None:
    check_older_exporter(name, more, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "more"), CASES[1:-1], ids=IDS[1:-1])
def test_the_older_onnx_exporter_takes_every_class(name: str, more: dict[str, Any], tmp_path: Path) -> None:
    check_older_exporter(name, more, tmp_path)


def check_older_exporter(name: str, more: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    theirs, ours, example, later = model_and_batches(name, more | {"return_dict": False})
    torch.onnx.export(
        ours,
        tuple(example.values()),
        str(tmp_path / "model.onnx"),
        input_names=list(example),
        dynamic_axes={key: sizes(name) for key in example},
        dynamo=False,
    )
    check_session(theirs, tmp_path / "model.onnx", later)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "more"), CASES, ids=IDS)
def test_the_newer_onnx_exporter(name: str, more: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    theirs, ours, example, later = model_and_batches(name, more)
    dynamic = {key: dict.fromkeys(sizes(name), Dim.DYNAMIC) for key in example}
    program = torch.onnx.export(ours, (), kwargs=example, dynamic_shapes=dynamic, dynamo=True, verbose=False)
    assert program is not None
    program.save(tmp_path / "model.onnx")
    check_session(theirs, tmp_path / "model.onnx", later)


def check_session(theirs: Any, file: Path, later: dict[str, Tensor]) -> None:
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    wanted_names = {given.name for given in session.get_inputs()}
    assert "attention_mask" in wanted_names
    answer = session.run(None, {key: value.numpy() for key, value in later.items() if key in wanted_names})
    with torch.no_grad():
        wanted = tensors(theirs(**later, return_dict=False))
    assert len(wanted) == len(answer)
    assert max(difference(a, torch.from_numpy(b)) for a, b in zip(wanted, answer, strict=True)) <= 1e-4


def test_a_packed_batch_is_not_recorded() -> None:
    model = bertie.BertModel(bertie.BertConfig(**TINY, return_dict=False))
    ids, ends = torch.tensor([4, 5, 6]), torch.tensor([0, 1, 3])
    with pytest.raises(bertie.BertieError, match="cannot be traced or exported"):
        torch.jit.trace(model, example_kwarg_inputs={"input_ids": ids, "cu_seqlens": ends})


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_vmap_and_fake_tensors_pass_through() -> None:
    theirs, ours = pair("BertModel")
    batch = inputs("BertModel", 3, 5)
    mapped = torch.func.vmap(lambda ids, mask: ours(ids[None], mask[None]).last_hidden_state[0], randomness="same")
    with torch.no_grad():
        got = mapped(batch["input_ids"], batch["attention_mask"])
        check_same(theirs(batch["input_ids"], batch["attention_mask"]).last_hidden_state, got)
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = {key: mode.from_tensor(value) for key, value in batch.items()}
        assert ours(**fake).last_hidden_state.shape == (3, 5, 24)
