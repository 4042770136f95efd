"""A compiled model follows its weights: whatever is done to them, its answer is the model's own."""

from __future__ import annotations

import copy
import io
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.tiny_models import tiny, tokenizer
from torch import Tensor, nn

import bertie
from bertie.engine.cpu import runner as cpu_runner
from bertie.engine.cpu.library import instruction_set
from bertie.engine.runner import ReferenceRunner, Refused
from bertie.errors import InputError
from bertie.ops.packing import Packing

pytestmark = pytest.mark.skipif(instruction_set() is None, reason="the kernels were not built: no C++ compiler")

IDS = torch.randint(5, 100, (12,), generator=torch.Generator().manual_seed(0))
ENDS = torch.tensor([0, 5, 12])


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERTIE_CACHE", str(tmp_path))


@torch.no_grad()
def answer(model: Any, ids: Tensor = IDS) -> Tensor:
    found: Tensor = model(ids, cu_seqlens=ENDS)[0]
    return found


def optimizer_step(model: Any, **options: Any) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, **options)
    model.train()
    model(IDS, cu_seqlens=ENDS)[0].square().mean().backward()
    optimizer.step()
    model.eval()


def query(model: Any, layer: int = 1) -> nn.Linear:
    found: nn.Linear = model.base_model.encoder.layer[layer].attention.self.query
    return found


def under_no_grad(model: Any) -> None:
    with torch.no_grad():
        query(model).weight.mul_(-2)


def one_number(model: Any) -> None:
    with torch.no_grad():
        query(model).weight[0, 0] = 30


def data_in_place(model: Any) -> None:
    query(model).weight.data.mul_(-2)


def another_data(model: Any) -> None:
    query(model).weight.data = query(model).weight.data * -2


def inference_data(model: Any) -> None:
    with torch.inference_mode():
        another = query(model).weight * -2
    query(model).weight.data = another


def through_numpy(model: Any) -> None:
    query(model).weight.detach().numpy()[:] *= -2


def swapped(model: Any) -> None:
    torch.utils.swap_tensors(query(model).weight, nn.Parameter(query(model).weight.detach() * -2))


def in_shared_memory(model: Any) -> None:
    """The numbers move to other memory, and the tensors and their storages stay the same objects."""
    model.share_memory()
    query(model).weight.data.mul_(-2)


def another_parameter(model: Any) -> None:
    query(model).weight = nn.Parameter(query(model).weight.detach() * -2)


def another_module(model: Any) -> None:
    new = nn.Linear(32, 32)
    nn.init.normal_(new.weight)
    model.base_model.encoder.layer[0].attention.self.key = new


def another_layer(model: Any) -> None:
    model.base_model.encoder.layer[0] = copy.deepcopy(model.base_model.encoder.layer[2])


def one_layer_fewer(model: Any) -> None:
    del model.base_model.encoder.layer[2]


def loaded(model: Any) -> None:
    model.load_state_dict(tiny("BertModel", seed=5).state_dict())


def assigned(model: Any) -> None:
    model.load_state_dict(tiny("BertModel", seed=5).state_dict(), assign=True)


def state_dict_in_place(model: Any) -> None:
    for value in model.state_dict().values():
        value.mul_(1.5)


def initialised(model: Any) -> None:
    for module in model.base_model.encoder.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.3)


def loaded_vector(model: Any) -> None:
    flat = nn.utils.parameters_to_vector(model.parameters())
    nn.utils.vector_to_parameters(flat.detach() * 1.5, model.parameters())


CHANGES: dict[str, Callable[[Any], Any]] = {
    "in place under no_grad": under_no_grad,
    "one number": one_number,
    "in place through data": data_in_place,
    "another data": another_data,
    "data of inference mode": inference_data,
    "through numpy": through_numpy,
    "swap_tensors": swapped,
    "share_memory": in_shared_memory,
    "another parameter": another_parameter,
    "another module": another_module,
    "another layer": another_layer,
    "one layer fewer": one_layer_fewer,
    "load_state_dict": loaded,
    "load_state_dict assigned": assigned,
    "state_dict in place": state_dict_in_place,
    "initialised again": initialised,
    "vector_to_parameters": loaded_vector,
    "prune_heads": lambda model: model.prune_heads({0: [1], 2: [0, 3]}),
}


@pytest.mark.parametrize("changed", ["the model", "the compiled one"])
@pytest.mark.parametrize("name", CHANGES)
def test_the_answer_is_that_of_the_weights_as_they_are(name: str, changed: str) -> None:
    model = tiny("BertModel")
    fast = bertie.compile(model)
    before = answer(fast)
    CHANGES[name](model if changed == "the model" else fast)
    after = answer(fast)
    torch.testing.assert_close(after, answer(model), atol=1e-5, rtol=0)
    assert not torch.allclose(after, before, atol=1e-3)
    assert not isinstance(fast.runner, ReferenceRunner)


@pytest.mark.parametrize("how", [{}, {"foreach": True}, {"fused": True}])
def test_a_model_may_be_trained_on(how: dict[str, bool]) -> None:
    model = tiny("BertModel")
    fast = bertie.compile(model)
    for _ in range(2):
        before = answer(fast)
        optimizer_step(model, **how)
        torch.testing.assert_close(answer(fast), answer(model), atol=1e-5, rtol=0)
        assert not torch.allclose(answer(fast), before, atol=1e-3)


@pytest.mark.parametrize("length", [20, 47, 60])
@pytest.mark.parametrize("vocabulary", [120, 900])
def test_tables_of_another_size(length: int, vocabulary: int) -> None:
    model = tiny("BertModel")
    fast = bertie.compile(model)
    model.resize_position_embeddings(length)
    fast.resize_token_embeddings(vocabulary)
    ids = torch.arange(vocabulary - length, vocabulary)
    found, wanted = (m(ids[None])[0] for m in (fast, model))
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)


def test_ids_of_a_grown_vocabulary_have_their_own_vectors() -> None:
    model = tiny("BertForMaskedLM")
    fast = bertie.compile(model)
    answer(fast)
    old = model.config.vocab_size
    model.resize_token_embeddings(old + 50_000)
    ids = torch.full((12,), old + 49_999)
    found = answer(fast, ids)
    assert found.shape == (12, old + 50_000)
    torch.testing.assert_close(found, answer(model, ids), atol=1e-4, rtol=0)


def test_ids_of_a_shrunken_vocabulary_are_refused() -> None:
    model = tiny("BertModel")
    fast = bertie.compile(model)
    model.resize_token_embeddings(50)
    with pytest.raises(InputError, match="vocab_size is 50"):
        answer(fast)


def test_unchanged_weights_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    make = cpu_runner.CpuRunner.of.__func__
    monkeypatch.setattr(cpu_runner.CpuRunner, "of", classmethod(lambda *given: made.append(1) or make(*given)))
    model = tiny("BertForSequenceClassification")
    fast = bertie.compile(model)
    for _ in range(5):
        answer(fast)
        with torch.no_grad():  # the head and the pooler are not compiled
            model.classifier.weight.add_(1)
            model.bert.pooler.dense.weight.add_(1)
    torch.testing.assert_close(answer(fast), answer(model), atol=1e-4, rtol=1e-5)
    assert len(made) == 1
    under_no_grad(model)
    for _ in range(5):
        answer(fast)
    assert len(made) == 2


def test_what_changed_is_named(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "bertie.engine")
    model = tiny("BertModel")
    fast = bertie.compile(model)
    under_no_grad(model)
    answer(fast)
    assert "(encoder.layer.1.attention.self.query.weight): compiling again" in caplog.text
    model.prune_heads({0: [1]})
    answer(fast)
    assert "(encoder.layer.0.attention.self.query.weight and 7 more)" in caplog.text


def test_weights_in_eight_bits_follow_too() -> None:
    model = tiny("BertModel", hidden_size=64, initializer_range=0.05)
    fast = bertie.compile(model, dtype="int8", tokenizer=tokenizer())
    optimizer_step(model)
    assert torch.cosine_similarity(answer(fast), answer(model)).min() > 0.99
    assert "int8" in fast.runner.describe()


def test_a_model_made_in_inference_mode_is_compiled() -> None:
    with torch.inference_mode():
        model = tiny("BertModel")
        fast = bertie.compile(model)
        torch.testing.assert_close(answer(fast), answer(model), atol=1e-5, rtol=0)
        under_no_grad(model)
    torch.testing.assert_close(answer(fast), answer(model), atol=1e-5, rtol=0)


# -- what the engine does not know -------------------------------------------------------------------------------------


class Lora(nn.Module):
    """As adapters are injected: a Linear's place is taken by something that still has its weight."""

    def __init__(self, inside: nn.Linear) -> None:
        super().__init__()
        self.base_layer = inside
        self.down, self.up = nn.Linear(inside.in_features, 2), nn.Linear(2, inside.out_features)

    weight = property(lambda self: self.base_layer.weight)
    bias = property(lambda self: self.base_layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.base_layer(x) + self.up(self.down(x))
        return found


def with_lora(model: Any) -> None:
    model.encoder.layer[1].attention.self.query = Lora(query(model))


def with_parametrization(model: Any) -> None:
    nn.utils.parametrizations.weight_norm(model.encoder.layer[1].output.dense)
    with torch.no_grad():
        model.encoder.layer[1].output.dense.parametrizations.weight.original0.mul_(3)


def with_another_forward(model: Any) -> None:
    model.encoder.layer[0].attention.forward = lambda x, plan, **_: (torch.zeros_like(x), None)


@pytest.mark.parametrize("change", [with_lora, with_parametrization])
def test_parts_the_engine_does_not_know_go_to_the_reference(
    change: Callable[[Any], None], caplog: pytest.LogCaptureFixture
) -> None:
    model = tiny("BertModel")
    fast = bertie.compile(model)
    before = answer(fast)
    change(model)
    after = answer(fast)
    assert torch.equal(after, answer(model))
    assert not torch.allclose(after, before, atol=1e-3)
    answer(fast)
    assert caplog.text.count("the reference answers from now on: encoder.layer.1.") == 1


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (with_lora, "encoder.layer.1.attention.self.query is a .*Lora"),
        (with_parametrization, "encoder.layer.1.output.dense is a .*ParametrizedLinear"),
        (with_another_forward, "encoder.layer.0.attention is a .*with a forward of its own"),
        (lambda m: setattr(m.encoder.layer[1].output.LayerNorm, "eps", 0.5), "layer.1.output.LayerNorm has eps=0.5"),
        (lambda m: setattr(m.encoder.layer[1].intermediate, "intermediate_act_fn", torch.tanh), "Layer 1 has another"),
    ],
)
def test_parts_the_engine_does_not_know_are_refused_by_name(change: Callable[[Any], None], named: str) -> None:
    model = tiny("BertModel")
    change(model)
    with pytest.raises(Refused, match=named):
        bertie.compile(model)
    assert bertie.compile(model, strict=False) is model


def test_a_subclass_with_its_own_forward_is_refused() -> None:
    class Mine(bertie.BertModel):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return super().forward(*args, **kwargs)

    with pytest.raises(Refused, match="Mine has a forward of its own"):
        bertie.compile(Mine(tiny("BertModel").config))


TENSORS = [
    "embeddings.word_embeddings.weight",
    "embeddings.LayerNorm.weight",
    "encoder.layer.1.attention.self.query.weight",
    "encoder.layer.0.attention.output.dense.bias",
    "encoder.layer.2.output.dense.weight",
]


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("name", TENSORS)
def test_weights_that_overflow_are_refused_by_name(name: str, dtype: str) -> None:
    for value in (float("nan"), float("inf"), -float("inf"), 1e30, -1e8):
        model = tiny("BertModel")
        with torch.no_grad():
            model.get_parameter(name).view(-1)[300 if "weight" in name and "Norm" not in name else 3] = value
        with pytest.raises(Refused, match=rf"{name} holds"):
            bertie.compile(model, dtype=dtype, tokenizer=tokenizer())
        plain = bertie.compile(model, dtype=dtype, tokenizer=tokenizer(), strict=False)
        torch.testing.assert_close(answer(plain), answer(model), rtol=0, atol=0, equal_nan=True)


def test_weights_as_large_as_are_taken_give_the_reference_s_answer() -> None:
    for name in TENSORS:
        model = tiny("BertModel")
        with torch.no_grad():
            model.get_parameter(name).clamp_(-1, 1).mul_(1e4)
            found, wanted = answer(bertie.compile(model)), answer(model)
        assert found.isfinite().all()
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)


def test_a_model_that_diverges_after_compiling_gives_the_reference_s_nan(caplog: pytest.LogCaptureFixture) -> None:
    model = tiny("BertModel")
    fast = bertie.compile(model)
    with torch.no_grad():
        query(model).weight.fill_(float("nan"))
    assert answer(fast).isnan().all()
    assert "encoder.layer.1.attention.self.query.weight holds nan" in caplog.text


def test_hooks_are_called_while_there_are_any() -> None:
    model = tiny("BertModel")
    fast = bertie.compile(model)
    seen: list[int] = []
    handle = model.encoder.layer[1].register_forward_hook(lambda *_: seen.append(1))
    torch.testing.assert_close(answer(fast), answer(model), atol=1e-5, rtol=0)
    assert len(seen) == 2
    handle.remove()
    answer(fast)
    assert len(seen) == 2


# -- conversion, copies, threads ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_converted_models_answer_in_their_new_type(dtype: torch.dtype) -> None:
    model = tiny("BertForSequenceClassification")
    fast = bertie.compile(model)
    before = answer(fast)
    model.to(dtype)
    assert answer(fast).dtype == dtype
    if dtype == torch.bfloat16:  # which the engine has, too
        torch.testing.assert_close(answer(fast), answer(model), atol=0.05, rtol=0.05)
    else:
        assert torch.equal(answer(fast), answer(model))
    model.to(torch.float32)
    assert "C++" in fast.bert.runner.describe()
    torch.testing.assert_close(answer(fast), before, atol=0.1, rtol=0.1)


def pickled(model: Any) -> Any:
    return pickle.loads(pickle.dumps(model))


def saved_by_torch(model: Any) -> Any:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, pickled, saved_by_torch])
def test_a_copy_has_a_runner_of_its_own(copied: Callable[[Any], Any], dtype: str) -> None:
    model = tiny("BertForSequenceClassification", hidden_size=64)
    fast = bertie.compile(model, dtype=dtype, tokenizer=tokenizer())
    wanted = answer(fast)
    again = copied(fast)
    assert torch.equal(answer(again), wanted)
    if copied is not copy.copy:
        under_no_grad(model)
        assert torch.equal(answer(again), wanted)
        assert not torch.equal(answer(fast), wanted)
        wanted = answer(fast)
    del again
    assert torch.equal(answer(fast), wanted)


def test_a_model_in_training_mode_is_not_asked_through_its_compiled_form() -> None:
    model = tiny("BertForSequenceClassification")
    fast = bertie.compile(model)
    model.train()
    with pytest.raises(InputError, match=r"training mode.*\nCall model.eval\(\)"):
        answer(fast)
    model.eval()
    torch.testing.assert_close(answer(fast), answer(model), atol=1e-5, rtol=0)


def test_compiling_leaves_a_model_in_one_mode() -> None:
    model = tiny("BertForSequenceClassification").train()
    bertie.compile(model)
    assert not any(module.training for module in model.modules())


def test_threads_that_ask_while_weights_change() -> None:
    model = tiny("BertModel")
    fast = bertie.compile(model, threads=2)
    changes = 12
    allowed = []
    twin = copy.deepcopy(model)
    for _ in range(changes + 1):
        allowed.append(answer(twin))
        with torch.no_grad():
            query(twin).weight.mul_(-1.1)
    wrong: list[float] = []
    ended = threading.Event()

    def ask() -> None:
        while not ended.is_set():
            found = answer(fast)
            least = min(float((found - wanted).abs().max()) for wanted in allowed)
            if not least < 1e-4:
                wrong.append(least)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(changes):
        with torch.no_grad():
            # in one step, as seen by others: another tensor in the place of the old
            query(model).weight = nn.Parameter(query(model).weight.detach() * -1.1)
        answer(fast)
    ended.set()
    for thread in threads:
        thread.join(60)
    assert not wrong
    torch.testing.assert_close(answer(fast), allowed[-1], atol=1e-4, rtol=0)


# -- never beyond a table ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ids", "types", "positions", "named"),
    [
        ([5, 10**12, 7], None, None, "input_ids holds 1000000000000"),
        ([5, -1, 7], None, None, "input_ids holds -1"),
        ([5, 6, 100], None, None, r"input_ids holds 100 at \[2\]; it must be 0 to 99"),
        ([5, 6, 7], [0, 1, 2], None, "token_type_ids holds 2"),
        ([5, 6, 7], None, [0, 1, 10**9], "position_ids holds 1000000000"),
        (list(range(49)), None, None, "position_ids holds 48"),
    ],
)
def test_the_library_reads_no_row_that_its_tables_do_not_have(
    ids: list[int], types: list[int] | None, positions: list[int] | None, named: str
) -> None:
    runner = cpu_runner.CpuRunner(tiny("BertModel", vocab_size=100))
    given = (None if x is None else torch.tensor(x) for x in (ids, types, positions))
    with pytest.raises(InputError, match=named):
        runner(*given, Packing.of([len(ids)]), all_states=False)  # type: ignore[arg-type]


def test_checks_that_are_off_leave_the_library_s_own() -> None:
    fast = bertie.compile(tiny("BertModel", vocab_size=100))
    fast.check_inputs = False
    with pytest.raises(InputError, match="input_ids holds 100000"):
        answer(fast, torch.full((12,), 100_000))
