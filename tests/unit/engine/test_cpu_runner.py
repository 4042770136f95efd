"""The C++ runner against the reference: every shape, every instruction set this machine has, alone and in company."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tiny_models import SENTENCES, TEXTS, tiny, tokenizer

import bertie
from bertie.engine import FastBert
from bertie.engine.cpu import calibrate
from bertie.engine.cpu import library as cpu_library
from bertie.engine.cpu import runner as cpu_runner
from bertie.engine.cpu.library import instruction_set
from bertie.engine.runner import Refused
from bertie.ops.packing import Packing

pytestmark = pytest.mark.skipif(instruction_set() is None, reason="the kernels were not built: no C++ compiler")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERTIE_CACHE", str(tmp_path))


def batch(lengths: list[int], *, vocabulary: int = 100, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    chance = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, vocabulary, (sum(lengths),), generator=chance)
    return ids, torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()])


def largest_difference(fast: Any, model: Any, lengths: list[int], **more: Any) -> float:
    ids, ends = batch(lengths)
    with torch.no_grad():
        found = fast(ids, cu_seqlens=ends, **more).last_hidden_state
        wanted = model(ids, cu_seqlens=ends, **more).last_hidden_state
    assert found.isfinite().all()
    return float((found - wanted).abs().max())


SHAPES: list[dict[str, Any]] = [
    {},
    {"hidden_size": 20, "num_attention_heads": 2, "intermediate_size": 7},  # nothing is a multiple of 16
    {"hidden_size": 312, "num_attention_heads": 12, "intermediate_size": 1200},  # TinyBERT's
    {"hidden_size": 96, "num_attention_heads": 1, "intermediate_size": 400},
    {"hidden_size": 64, "num_attention_heads": 1, "intermediate_size": 900},
    {"hidden_act": "relu"},
    {"hidden_act": "gelu_new"},
    {"layer_norm_eps": 1e-3, "type_vocab_size": 5},
]


@pytest.mark.parametrize("config", SHAPES, ids=lambda config: "-".join(map(str, config.values())) or "plain")
def test_float32_equals_the_reference(config: dict[str, Any]) -> None:
    model = tiny("BertModel", **{"max_position_embeddings": 512, "initializer_range": 0.05, **config})
    fast = bertie.compile(model)
    assert isinstance(fast, FastBert)
    assert largest_difference(fast, model, [3, 1, 17, 64, 65, 2, 100, 33]) <= 1e-5


def test_lengths_from_1_to_512() -> None:
    model = tiny("BertModel", max_position_embeddings=512, initializer_range=0.1)
    fast = bertie.compile(model)
    for length in (1, 2, 5, 6, 7, 15, 16, 17, 31, 48, 63, 64, 65, 95, 96, 97, 128, 200, 511, 512):
        assert largest_difference(fast, model, [length]) <= 1e-5, length
    assert largest_difference(fast, model, [512, 1, 300, 2, 2, 512]) <= 1e-5


def test_types_positions_and_all_states() -> None:
    model = tiny("BertModel", max_position_embeddings=64)
    fast = bertie.compile(model)
    ids, ends = batch([5, 9, 1])
    types = torch.randint(0, 2, (15,), generator=torch.Generator().manual_seed(1))
    positions = torch.randint(0, 64, (15,), generator=torch.Generator().manual_seed(2))
    found = fast(ids, token_type_ids=types, position_ids=positions, cu_seqlens=ends, output_hidden_states=True)
    wanted = model(ids, token_type_ids=types, position_ids=positions, cu_seqlens=ends, output_hidden_states=True)
    assert len(found.hidden_states) == len(wanted.hidden_states)
    for a, b in zip(found.hidden_states, wanted.hidden_states, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=0)
    assert torch.equal(found.hidden_states[-1], found.last_hidden_state)


def test_pruned_heads() -> None:
    model = tiny("BertModel")
    model.prune_heads({0: [1, 3], 2: [0]})
    assert largest_difference(bertie.compile(model), model, [7, 30]) <= 1e-5
    model.prune_heads({1: [0, 1, 2, 3]})
    assert largest_difference(bertie.compile(model), model, [7, 30]) <= 1e-5


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("lengths", [[1], [7, 30], [48] * 12], ids=["one", "two", "many"])
def test_layers_of_different_sizes(lengths: list[int], threads: int) -> None:
    model = tiny("BertModel", pruned_heads={0: [1], 1: [0, 1, 2, 3]}, intermediate_sizes=[48, 16, 0])
    assert largest_difference(bertie.compile(model, threads=threads), model, lengths) <= 1e-5


def test_int8_of_layers_of_different_sizes() -> None:
    model = tiny("BertModel", pruned_heads={1: [0, 1, 2, 3]}, intermediate_sizes=[48, 0, 17], initializer_range=0.05)
    rows = [[2, *range(5, 5 + length), 3] for length in (4, 9, 14, 20, 26, 30)]
    fast = bertie.compile(model, dtype="int8", calibration=rows)
    assert fast.runner.num_products == 8  # four, none, four
    assert "products" not in fast.runner.describe()
    ids = torch.tensor(rows[-1])
    ends = torch.tensor([0, len(ids)])
    found, wanted = (one(ids, cu_seqlens=ends).last_hidden_state.detach() for one in (fast, model))
    assert float(torch.nn.functional.cosine_similarity(found, wanted).mean()) >= 0.999


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("threads", [1, 3])
def test_an_answer_does_not_depend_on_its_company_or_on_threads(
    dtype: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_runner, "usable_cores", lambda: threads)
    model = tiny("BertModel", max_position_embeddings=512)
    fast = bertie.compile(model, dtype=dtype, tokenizer=tokenizer(), threads=threads)
    one = bertie.compile(model, dtype=dtype, tokenizer=tokenizer(), threads=1)
    chance = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 130, (60,), generator=chance).tolist()
    ids, ends = batch(lengths)
    together = fast(ids, cu_seqlens=ends).last_hidden_state
    for number in range(60):
        a, b = ends[number], ends[number + 1]
        alone = one(ids[a:b], cu_seqlens=torch.tensor([0, b - a])).last_hidden_state
        assert torch.equal(alone, together[a:b])


def test_many_python_threads_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_runner, "usable_cores", lambda: 2)
    model = tiny("BertModel", max_position_embeddings=128)
    fast = bertie.compile(model, threads=2)
    jobs = [batch([1 + seed, 40, 7, 100], seed=seed) for seed in range(8)]
    wanted = [fast(ids, cu_seqlens=ends).last_hidden_state for ids, ends in jobs]
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(30):
            ids, ends = jobs[number]
            if not torch.equal(fast(ids, cu_seqlens=ends).last_hidden_state, wanted[number]):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong


SCRIPT = """
import sys, torch
torch.set_num_threads(2)
sys.path.insert(0, {root!r})
import bertie
from tests.tiny_models import tiny, tokenizer
from tests.unit.engine.test_cpu_runner import batch, largest_difference
from bertie.engine.cpu.library import instruction_set
from bertie.ops.packing import Packing
odd = {{"hidden_size": 20, "num_attention_heads": 2, "intermediate_size": 7}}
configs = ({{}}, odd, {{"hidden_act": "gelu_new"}})
for config in configs if instruction_set() not in ("tiles", "pairs") else ():  # whose plain loops are slow
    model = tiny("BertModel", max_position_embeddings=512, initializer_range=0.1, **config)
    assert largest_difference(bertie.compile(model), model, [1, 40, 17, 130, 512]) <= 1e-5
print(instruction_set())
for width in (64, 144):  # 144: whole squares of a matrix unit, and a part of one, in every direction
    model = tiny("BertModel", max_position_embeddings=512, hidden_size=width, initializer_range=0.05)
    fast = bertie.compile(model, dtype="int8", tokenizer=tokenizer())
    ids, ends = batch([1, 40, 17, 130, 33])
    near = torch.cosine_similarity(fast(ids, cu_seqlens=ends)[0], model(ids, cu_seqlens=ends)[0])
    assert near.min() > 0.999, near.min()
"""
SETS = ["portable", "tiles", "pairs", "avx2", "avx512-vnni", "avx512-bf16", "amx"]


@pytest.mark.parametrize("name", SETS)
def test_every_instruction_set(name: str, tmp_path: Path) -> None:
    if SETS.index(name) > SETS.index(str(instruction_set())):
        pytest.skip(f"this machine has no {name}")
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(__file__))))
    environment = os.environ | {"BERTIE_CPU": name, "BERTIE_CACHE": str(tmp_path / name)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(root=root)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [name]


# -- int8 --------------------------------------------------------------------------------------------------------------


def test_int8_is_near_float32_and_says_what_it_cost() -> None:
    model = tiny("BertModel", hidden_size=64, initializer_range=0.05)
    fast = bertie.compile(model, dtype="int8", tokenizer=tokenizer(), calibration=SENTENCES * 3)
    report = fast.runner.report  # type: ignore[attr-defined]
    assert report.cosine_mean >= 0.999
    assert report.kept_float32 == ()
    assert "int8" in fast.runner.describe()
    rows = tokenizer().encode_ids(TEXTS, max_length=48)
    ids = torch.tensor([token for row in rows for token in row])
    ends = torch.tensor([0, *torch.tensor([len(row) for row in rows]).cumsum(0).tolist()])
    near = torch.cosine_similarity(fast(ids, cu_seqlens=ends)[0], model(ids, cu_seqlens=ends)[0])
    assert near.min() > 0.99


def test_products_return_to_float32_until_the_budget_is_met() -> None:
    model = tiny("BertModel", initializer_range=0.3)
    loose = bertie.compile(model, dtype="int8", tokenizer=tokenizer(), calibration=SENTENCES * 3, accuracy=0.5)
    found = loose.runner.report.cosine_mean  # type: ignore[attr-defined]
    wanted = 1 - (1 - found) / 4
    tight = bertie.compile(model, dtype="int8", tokenizer=tokenizer(), calibration=SENTENCES * 3, accuracy=wanted)
    report = tight.runner.report  # type: ignore[attr-defined]
    assert report.cosine_mean >= wanted
    assert 0 < len(report.kept_float32) < 12
    assert "in float32" in tight.runner.describe()


def test_the_fit_is_kept_and_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("BertModel")
    first = bertie.compile(model, dtype="int8", tokenizer=tokenizer())
    monkeypatch.setattr(calibrate, "_fit", lambda *_: pytest.fail("fitted again"))
    again = bertie.compile(model, dtype="int8", tokenizer=tokenizer())
    ids, ends = batch([9, 30])
    assert torch.equal(first(ids, cu_seqlens=ends)[0], again(ids, cu_seqlens=ends)[0])
    assert again.runner.report == first.runner.report  # type: ignore[attr-defined]


def test_a_damaged_or_unwritable_cache_only_costs_time(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("BertModel")
    bertie.compile(model, dtype="int8", tokenizer=tokenizer())
    (kept,) = (tmp_path / "int8").iterdir()
    kept.write_bytes(kept.read_bytes()[:100])
    bertie.compile(model, dtype="int8", tokenizer=tokenizer())
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("BERTIE_CACHE", str(tmp_path / "file"))
    bertie.compile(model, dtype="int8", tokenizer=tokenizer())


def test_minilm_in_int8_on_real_text() -> None:
    """The bars: cosine mean ≥ 0.999, min ≥ 0.997."""
    from bertie.defaults import default_embedding_model
    from bertie.errors import BertieError

    try:
        path = default_embedding_model()
    except BertieError:
        pytest.skip("all-MiniLM-L6-v2 is not installed")
    texts = bertie.BertTokenizer.from_pretrained(path)
    model = bertie.BertModel.from_pretrained(path, add_pooling_layer=False).eval()
    fast = bertie.compile(model, dtype="int8", tokenizer=texts)
    facts = Path("examples/facts.jsonl").read_text(encoding="utf-8").splitlines()[:60]
    rows = texts.encode_ids(facts, max_length=128)
    wanted = calibrate._states(cpu_runner.CpuRunner(model), rows)
    mean, least, _ = calibrate._compare(calibrate._states(fast.runner, rows), wanted, rows)  # type: ignore[attr-defined]
    assert mean >= 0.999
    assert least >= 0.997
    # Without smoothing its few large channels cost more.
    plain = {key: torch.ones_like(value) for key, value in calibrate.smooth_channels(model, rows).items()}
    coarse, _, _ = calibrate._compare(calibrate._states(cpu_runner.CpuRunner(model, plain), rows), wanted, rows)
    assert 1 - mean < 0.8 * (1 - coarse)


def test_int8_is_fitted_to_other_scripts_too() -> None:
    from bertie.defaults import default_embedding_model
    from bertie.engine.calibration import own_texts
    from bertie.errors import BertieError

    try:
        path = default_embedding_model()
    except BertieError:
        pytest.skip("all-MiniLM-L6-v2 is not installed")
    texts = bertie.BertTokenizer.from_pretrained(path)
    model = bertie.BertModel.from_pretrained(path, add_pooling_layer=False).eval()
    foreign = [
        "水在结冰时会膨胀，因此管道在冬天会破裂，冰也会浮在池塘上。",
        "博物馆十点开门，星期一除外。请在入口处购买门票。",
        "물은 얼면 부피가 커진다. 그래서 겨울에 파이프가 터진다.",
        "水は凍ると膨張するので、冬には水道管が破裂する。",
        "น้ำขยายตัวเมื่อแข็งตัว",
        "Wasser dehnt sich beim Gefrieren aus; darum platzen im Winter die Rohre.",
        "4711 0815 1234567890 99.99 2024-03-01 10:45",
        "🍕🌍🤖❤️ 🎂🎂",
    ]
    assert not set(foreign) & set(own_texts("unusual"))
    rows = texts.encode_ids(foreign, max_length=128)
    wanted = calibrate._states(cpu_runner.CpuRunner(model), rows)
    found = {}
    for name, calibration in (("prose", own_texts("prose")), ("all", None)):
        fast: Any = bertie.compile(model, dtype="int8", tokenizer=texts, calibration=calibration)
        found[name] = calibrate._compare(calibrate._states(fast.runner, rows), wanted, rows)
    assert found["all"][0] > found["prose"][0]
    assert found["all"][0] > 0.998
    report = fast.runner.report
    assert report.kept_float32 == ()
    assert report.cosine_mean >= 0.999
    assert 0.998 <= report.unusual_mean < report.cosine_mean
    assert report.unusual_min >= 0.995
    assert "unusual" in str(report)


def test_products_return_to_float32_for_unusual_texts_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("BertModel", hidden_size=64, initializer_range=0.05)
    monkeypatch.setattr(calibrate, "_compare_parts", lambda *_: ((1.0, 1.0, 1.0), (0.99, 0.9, 0.9)))
    _, _, report = calibrate._fit(model, [[2, 7, 3]] * 4, [[2, 9, 3]] * 4, 0.999, 1)
    assert len(report.kept_float32) == 12


def test_a_model_that_loses_much_on_unusual_texts_says_so(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny("BertModel")
    fast = bertie.compile(model, dtype="int8", tokenizer=tokenizer())
    assert "texts unlike" not in caplog.text
    monkeypatch.setattr(calibrate, "_LOW", 1.1)
    fast = bertie.compile(model, dtype="int8", tokenizer=tokenizer())
    ids, ends = batch([9, 30])
    for _ in range(3):
        fast(ids, cu_seqlens=ends)
    assert caplog.text.count("texts unlike English prose: the lowest cosine") == 1


def test_a_fit_of_an_older_rule_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("BertModel")
    bertie.compile(model, dtype="int8", tokenizer=tokenizer())
    fitted = []
    fit = calibrate._fit
    monkeypatch.setattr(calibrate, "_fit", lambda *given: fitted.append(1) or fit(*given))
    monkeypatch.setattr(calibrate, "_VERSION", calibrate._VERSION + 1)
    bertie.compile(model, dtype="int8", tokenizer=tokenizer())
    bertie.compile(model, dtype="int8", tokenizer=tokenizer())
    assert len(fitted) == 1


ODD = 99  # a token at which one inner unit of `with_odd_token` gives a value that no other token comes near


def with_odd_token() -> Any:
    model = tiny("BertModel", hidden_size=64, max_position_embeddings=256)
    direction = torch.randn(64, generator=torch.Generator().manual_seed(0))
    first = model.encoder.layer[0]
    with torch.no_grad():
        model.embeddings.word_embeddings.weight[ODD] = 50 * direction
        first.attention.output.dense.weight.mul_(0.1)  # so that it arrives as it is
        for norm in (model.embeddings.LayerNorm, first.attention.output.LayerNorm):
            norm.reset_parameters()
        first.intermediate.dense.weight[0] = direction
        first.intermediate.dense.bias[0] = -30  # silent at all others
    return model


def odd_texts(*which: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Five texts of three to 200 ordinary tokens, and the odd token last in some of them."""
    ids, ends = batch([3, 200, 7, 190, 30], vocabulary=ODD, seed=3)
    for text in which:
        ids[ends[text + 1] - 1] = ODD
    return ids, ends


def compiled_with_odd_token(threads: int) -> Any:
    chance = torch.Generator().manual_seed(1)
    rows = [torch.randint(5, ODD, (20,), generator=chance).tolist() for _ in range(80)]
    return bertie.compile(with_odd_token(), dtype="int8", calibration=rows, accuracy=0.5, threads=threads)


@pytest.mark.parametrize("threads", [1, 3])
def test_texts_unlike_the_calibration_are_counted_and_said_once(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_runner, "usable_cores", lambda: threads)
    fast = compiled_with_odd_token(threads)
    ids, ends = odd_texts()
    for _ in range(3):
        fast(ids, cu_seqlens=ends)  # a warning would be an error here
    assert fast.runner.outside.texts == 0
    assert 0.5 < fast.runner.outside.times < 2
    ids, ends = odd_texts(1, 4)
    with pytest.warns(bertie.CalibrationWarning) as said:
        found = fast(ids, cu_seqlens=ends)[0]
    (warning,) = said
    outside = fast.runner.outside
    assert (outside.texts, outside.product) == (2, "layer 0 down")
    assert outside.times > 2
    for part in ("2 of the texts read so far are unlike", f"{outside.times:.1f} times", "calibration=", "float32"):
        assert part in str(warning.message)
    again = fast(ids, cu_seqlens=ends)[0]  # not a second time
    assert torch.equal(found, again)
    assert fast.runner.outside == replace(outside, texts=4)
    kept = compiled_with_odd_token(threads)  # from the disk
    assert kept.runner.outside.texts == 0
    with pytest.warns(bertie.CalibrationWarning, match=r"^1 of the texts read so far is"):
        kept(*odd_texts(3)[:1], cu_seqlens=ends)


def test_looking_at_how_wide_texts_are_changes_no_bit() -> None:
    fast = compiled_with_odd_token(2)
    ids, ends = odd_texts(0, 2)
    unwatched = cpu_runner.CpuRunner(with_odd_token(), fast.runner.smoothing)
    assert unwatched.outside is None
    wanted = unwatched(ids, None, None, Packing.of(ends.diff().tolist()), all_states=False)[0]
    with pytest.warns(bertie.CalibrationWarning):
        assert torch.equal(fast(ids, cu_seqlens=ends)[0], wanted)


def test_tokens_of_zeros_are_not_wide() -> None:
    model = tiny("BertModel", hidden_act="relu")
    with torch.no_grad():
        model.encoder.layer[0].intermediate.dense.weight.zero_()
        model.encoder.layer[0].intermediate.dense.bias.fill_(-1)
    fast: Any = bertie.compile(model, dtype="int8", tokenizer=tokenizer())
    ids, ends = batch([9, 30])
    found = fast(ids, cu_seqlens=ends)[0]
    assert torch.cosine_similarity(found, model(ids, cu_seqlens=ends)[0]).min() > 0.99
    assert fast.runner.widest[0, 3] < 1e-6
    assert fast.runner.outside.texts == 0


@pytest.mark.parametrize("name", ["embeddings", "encoder.layer.1.attention.output", "encoder.layer.0.output"])
def test_a_norm_with_another_epsilon_is_refused_by_name(name: str) -> None:
    model = tiny("BertModel")
    model.get_submodule(f"{name}.LayerNorm").eps = 0.1
    with pytest.raises(Refused, match=rf"^{name}.LayerNorm has eps=0.1; config.layer_norm_eps is 1e-12."):
        bertie.compile(model)


# -- without the library -----------------------------------------------------------------------------------------------


def test_without_a_compiler_the_reference_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_runner, "load_library", lambda: None)
    model = tiny("BertModel")
    with pytest.raises(Refused, match="not built"):
        bertie.compile(model)
    assert bertie.compile(model, strict=False) is model
    assert bertie.compile(model, dtype="int8", tokenizer=tokenizer(), strict=False) is model


def test_a_library_of_another_version_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_library, "VERSION", -1)
    cpu_library.load_library.cache_clear()
    try:
        assert cpu_library.load_library() is None
    finally:
        monkeypatch.undo()
        cpu_library.load_library.cache_clear()
