"""A compiled model is the model: same class, same calls, same answers; what it cannot do is said by name."""

from __future__ import annotations

import copy
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tiny_models import tiny, tokenizer
from torch import Tensor

import bertie
from bertie.engine import FastBert
from bertie.engine import compile as compile_model
from bertie.engine.calibration import own_texts
from bertie.engine.compile import dtype_name, with_runner
from bertie.engine.cpu.library import instruction_set
from bertie.engine.runner import ReferenceRunner, Refused
from bertie.errors import InputError
from bertie.ops.packing import Packing

HEADS = [
    "BertForPreTraining",
    "BertForMaskedLM",
    "BertForNextSentencePrediction",
    "BertForSequenceClassification",
    "BertForTokenClassification",
    "BertForQuestionAnswering",
]


class Reference(ReferenceRunner):
    """A runner that is the reference itself, and counts."""

    calls = 0

    def __call__(self, *given: Any, **named: Any) -> list[Tensor]:
        self.calls += 1
        return super().__call__(*given, **named)


def pair(name: str = "BertModel", **config: Any) -> tuple[Any, Any, Reference]:
    model = tiny(name, **config)
    runner = Reference(copy.deepcopy(model.base_model))
    return model, with_runner(model, lambda base: runner), runner


@pytest.mark.parametrize("name", HEADS)
def test_every_head_keeps_its_class_and_answers(name: str) -> None:
    model, fast, runner = pair(name)
    ids, ends = torch.arange(5, 25), torch.tensor([0, 7, 8, 20])
    assert type(fast) is type(model)
    found, wanted = fast(ids, cu_seqlens=ends), model(ids, cu_seqlens=ends)
    assert runner.calls == 1
    for a, b in zip(found.to_tuple(), wanted.to_tuple(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=0)
    assert model.base_model is not fast.base_model
    assert not isinstance(model.base_model, FastBert)  # the model that was given is as it was


def test_padded_batches_on_either_side_and_with_holes() -> None:
    model, fast, runner = pair()
    ids = torch.randint(5, 100, (4, 9), generator=torch.Generator().manual_seed(0))
    mask = torch.ones(4, 9, dtype=torch.long)
    mask[0, 5:] = 0
    mask[1, :3] = 0
    mask[2, 4] = 0
    types = (torch.arange(9) > 4).long().expand(4, 9)
    found = fast(ids, attention_mask=mask, token_type_ids=types)
    wanted = model(ids, attention_mask=mask, token_type_ids=types)
    keep = mask.bool()
    torch.testing.assert_close(found.last_hidden_state[keep], wanted.last_hidden_state[keep], atol=1e-5, rtol=0)
    assert (found.last_hidden_state[~keep] == 0).all()
    assert runner.calls == 1


def test_what_the_runner_cannot_do_goes_to_the_reference(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "bertie.engine")
    model, fast, runner = pair()
    ids = torch.randint(5, 100, (2, 6), generator=torch.Generator().manual_seed(0))
    maps = fast(ids, output_attentions=True).attentions
    for a, b in zip(maps, model(ids, output_attentions=True).attentions, strict=True):
        torch.testing.assert_close(a, b)
    head_mask = torch.tensor([1.0, 0.0, 1.0, 1.0])
    torch.testing.assert_close(fast(ids, head_mask=head_mask)[0], model(ids, head_mask=head_mask)[0])
    three = torch.ones(2, 6, 6).tril()
    torch.testing.assert_close(fast(ids, attention_mask=three)[0], model(ids, attention_mask=three)[0])
    hidden_whole = torch.tensor([[1] * 6, [0] * 6])
    assert fast(ids, attention_mask=hidden_whole)[0].isfinite().all()
    assert runner.calls == 0
    assert len([record for record in caplog.records if "the reference answers" in record.message]) == 1


def test_all_states_and_tuples() -> None:
    model, fast, _ = pair()
    ids = torch.randint(5, 100, (2, 6), generator=torch.Generator().manual_seed(0))
    found = fast(ids, output_hidden_states=True, return_dict=False)
    wanted = model(ids, output_hidden_states=True, return_dict=False)
    assert len(found) == len(wanted) == 3
    for a, b in zip(found[2], wanted[2], strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=0)


def test_bad_input_is_refused_as_by_the_reference() -> None:
    _, fast, _ = pair()
    with pytest.raises(InputError, match="vocab_size"):
        fast(torch.tensor([[5, 100_000]]))
    with pytest.raises(InputError, match="shape"):
        fast(torch.tensor([5, 6]))


def test_a_compiled_model_does_not_train() -> None:
    _, fast, _ = pair("BertForSequenceClassification")
    with pytest.raises(InputError, match="cannot be trained"):
        fast.train()
    assert not fast.bert.training


def test_compiling_twice_is_refused() -> None:
    _, fast, _ = pair()
    with pytest.raises(InputError, match="compiled already"):
        bertie.compile(fast)


@pytest.mark.parametrize(
    ("given", "name"),
    [("bf16", "bfloat16"), (torch.float16, "float16"), ("fp8", "fp8"), (torch.float32, "float32"), ("int8", "int8")],
)
def test_names_of_dtypes(given: Any, name: str) -> None:
    assert dtype_name(given) == name


def test_unknown_dtype_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"int4.*\n.*int8"):
        dtype_name("int4")


def test_fp8_needs_a_gpu_and_int8_a_cpu() -> None:
    with pytest.raises(InputError, match="fp8 needs a GPU"):
        compile_model(tiny("BertModel"), dtype="fp8")
    with pytest.raises(InputError, match="int8 is for the CPU"):
        compile_model(tiny("BertModel"), dtype="int8", device="cuda")


def test_int8_asks_for_a_tokenizer_or_rows() -> None:
    with pytest.raises(InputError, match="tokenizer"):
        compile_model(tiny("BertModel"), dtype="int8")
    with pytest.raises(InputError, match="empty"):
        compile_model(tiny("BertModel"), dtype="int8", tokenizer=tokenizer(), calibration=[])


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"position_embedding_type": "relative_key"}, "relative_key"),
        ({"hidden_act": "silu"}, "silu"),
        ({"is_decoder": True}, "decoder"),
    ],
)
def test_refusals_name_what_is_not_there(config: dict[str, Any], named: str) -> None:
    model = tiny("BertModel", **config)
    with pytest.raises(Refused, match=named):
        compile_model(model)
    assert compile_model(model, strict=False) is model


@pytest.mark.parametrize("compiled", [False, True])
def test_whatever_answers_keeps_the_contract_of_runners(compiled: bool) -> None:
    if compiled and instruction_set() is None:
        pytest.skip("the CPU kernels are not built")
    model = tiny("BertModel").eval()
    runner = compile_model(model).runner if compiled else ReferenceRunner(model)
    ids, lengths = torch.arange(5, 25), [7, 1, 12]
    with torch.no_grad():
        last = runner(ids, None, None, Packing.of(lengths), all_states=False)
        states = runner(ids, None, None, Packing.of(lengths), all_states=True)
        alone = runner.last_state(ids, lengths)
    assert len(last) == 1
    assert len(states) == 1 + model.config.num_hidden_layers
    assert torch.equal(last[0], alone)
    assert torch.equal(states[-1], alone)
    assert (alone.device, alone.dtype) == (runner.device, runner.dtype)
    assert runner.token_budget == (8192 if compiled else 2048)
    assert runner.outside is None
    assert "float32" in runner.describe()


def test_texts_that_eight_bits_are_fitted_on_are_installed() -> None:
    assert len(own_texts("prose")) == 48
    assert "" in own_texts("unusual"), "also no text at all"
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))
    assert "engine/*.json" in project["tool"]["setuptools"]["package-data"]["bertie"]


def test_no_runner_for_float16_on_a_cpu() -> None:
    model = tiny("BertModel")
    with pytest.raises(Refused, match="float16 on cpu"):
        compile_model(model, dtype="float16")
    assert compile_model(model, dtype="float16", strict=False).dtype == torch.float16
    assert model.dtype == torch.float32


def test_gelu_by_tanh_costs_less_than_a_hundred_thousandth() -> None:
    """What the GPU engine puts in place of the exact GELU, on real weights: the price in cosine of pooled vectors."""
    from bertie.defaults import default_embedding_model
    from bertie.model.activations import gelu_erf, gelu_tanh

    try:
        folder = default_embedding_model()
    except bertie.errors.CheckpointNotFound:
        pytest.skip("all-MiniLM-L6-v2 is not installed")
    model = bertie.BertModel.from_pretrained(folder).eval()
    texts = ["The cat sat.", "It was the best of times, it was the worst of times.", "E = mc² was on the board, twice."]
    encoded = bertie.BertTokenizer.from_pretrained(folder)(texts, padding=True, return_tensors="pt")
    mask = encoded["attention_mask"][:, :, None]

    def vectors() -> Tensor:
        with torch.no_grad():
            states = model(encoded["input_ids"], attention_mask=encoded["attention_mask"]).last_hidden_state
        return (states * mask).sum(1) / mask.sum(1)

    exact = vectors()
    for layer in model.encoder.layer:
        assert layer.intermediate.intermediate_act_fn is gelu_erf
        layer.intermediate.intermediate_act_fn = gelu_tanh
    bent = vectors()
    assert not torch.equal(exact, bent)
    assert float(1 - torch.cosine_similarity(exact.double(), bent.double()).min()) < 1e-5
