"""The benchmark harness from end to end on a tiny model, without peers: it runs, compares and draws."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks import contest, cpu, machine, report
from benchmarks.peers import CONTESTANTS
from benchmarks.peers.batches import Batch, Padded, Setting
from benchmarks.texts import paragraphs, rows_of_length

from tiny_models import saved

ROWS = [[2, 7, 8, 3], [2, 9, 3], [2, 4, 5, 6, 7, 3], [2, 3]]


@pytest.fixture(autouse=True)
def _pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contest, "_PAUSE", 0.0)


@pytest.mark.slow  # it runs a whole benchmark
def test_a_quick_run_ends_in_ratios_and_names_the_peer_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine, "RESULTS", tmp_path)
    monkeypatch.setattr(cpu, "RESULTS", tmp_path)
    broken = CONTESTANTS | {"a peer that is not there": CONTESTANTS["OpenVINO"]}
    monkeypatch.setattr(cpu, "CONTESTANTS", broken)  # its process knows no such name, so it fails there
    folder = saved(tmp_path / "model", "BertModel")
    words = ["--folder", folder, "--quick", "--texts", "12", "--threads", "1", "--work", str(tmp_path / "work")]
    figures = tmp_path / "figures.json"
    words += ["--data", str(tmp_path), "--json", str(figures)]
    (model,) = cpu.main([*words, "--peers", "a peer that is not there"])
    assert json.loads(figures.read_text())["rows"][0]["contestants"] == model["contestants"]
    *own, third = model["contestants"]
    assert [one["name"] for one in own] == ["bertie", "bertie bf16", "bertie int8"]
    for ours in own:
        assert ours["sorted_rate"] > 0
        assert ours["stream_rate"] > 0
        assert ours["latency_ms"] > 0
        assert ours["embed_rate"] > 0
        assert ours["cosine_min"] > 0.95
    assert third["error"].startswith("KeyError")
    assert "sorted_rate" not in third
    assert model["linearity"]["bertie"]["tokens"] == sorted(model["linearity"]["bertie"]["tokens"])
    printed = capsys.readouterr().out
    assert "a peer that is not there did not run: KeyError" in printed
    assert "STAND-INS" in printed  # the data folder is empty
    assert "arithmetic floor" in printed
    for question in ("sorted pass", "stream pass", "latencies", "embed pass"):  # as they come, not only at the end
        assert f"  {question}: bertie int8 " in printed


def test_several_numbers_of_threads_are_read_and_nothing_else() -> None:
    assert cpu._threads("1,2,16") == [1, 2, 16]
    for wrong in ("", "0", "two", "1,,2", "-1"):
        with pytest.raises(SystemExit, match="--threads takes a number"):
            cpu._threads(wrong)


def _model() -> dict[str, Any]:
    def one(name: str, sorted_rate: float, cosine: float, latency: float = 1.0) -> dict[str, Any]:
        return {
            "name": name,
            "precision": CONTESTANTS[name].precision,
            "sorted_rate": sorted_rate,
            "stream_rate": sorted_rate / 2,
            "latency_ms": latency,
            "latency_p99_ms": 2 * latency,
            "cosine_mean": cosine,
            "cosine_min": cosine,
            "settings": "size 32",
        }

    floor = {
        "precision": "float32",
        "flops_per_token": 1e6,
        "attention_share": 0.1,
        "arithmetic_rate": 8000.0,
        "memory_rate": 9000.0,
        "arithmetic_latency_ms": 1.0,
        "memory_latency_ms": 1.0,
    }
    line = {"tokens": [1, 2], "seconds": [1.0, 2.0], "slope": 1.0, "intercept": 0.0, "r_squared": 1.0}
    return {
        "model": "minilm",
        "title": "MiniLM",
        "trained": True,
        "workload": "4 texts",
        "floors": [floor, floor | {"precision": "bfloat16"}, floor | {"precision": "int8"}],
        "stsb_reference": 0.82,
        "linearity": {"bertie": line | {"lengths": [8, 16], "microseconds_per_token": [1.0, 1.5]}},
        "contestants": [
            one("bertie", 2000.0, 1.0, 0.7),
            one("bertie bf16", 3000.0, 0.99997) | {"embed_rate": 2700.0},
            one("bertie int8", 6000.0, 0.9995, 0.5) | {"stsb": 0.8195},
            one("transformers", 1000.0, 1.0),
            one("OpenVINO bf16", 1500.0, 0.9999),
            one("OpenVINO int8", 4000.0, 0.99),
            {"name": "CTranslate2", "precision": "float32", "error": "ImportError: No module named 'ctranslate2'"},
        ],
    }


def test_ratios_are_to_the_fastest_peer_of_the_kind_asked_for() -> None:
    found = {ratio.what: ratio for ratio in report.ratios(_model())}
    assert found["int8 / fastest peer of any precision"].value == 1.5
    assert found["int8 / fastest peer of any precision"].reached is False
    assert found["int8 / fastest peer of cosine ≥0.999"].value == 4.0
    assert found["int8 / its products' floor"].value == 0.75
    assert found["int8 / its products' floor"].reached is False
    with_matrix_unit = {ratio.what: ratio for ratio in report.ratios(_model() | {"kernels": "amx"})}
    assert with_matrix_unit["int8 / its products' floor"].reached is True
    assert found["fp32 / fastest fp32 peer"].value == 2.0
    assert found["bf16 / fastest bf16 peer"].value == 2.0
    assert found["bf16 cosine, mean"].reached is False  # 0.99999 is asked for
    assert found["text to vectors / the model, bertie bf16"].value == pytest.approx(0.9)
    assert found["arrival order, int8 / transformers"].value == 6.0
    assert found["latency of one short text, fp32 / transformers"].reached is False  # 0.7 is not 0.6
    assert found["latency of one short text, int8 / transformers"].reached is True
    assert found["STS-B Spearman loss of int8"].value == pytest.approx(0.0005)


def test_a_result_is_saved_as_figures_a_page_and_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(machine, "RESULTS", tmp_path)
    monkeypatch.setattr(cpu, "RESULTS", tmp_path)
    plan = cpu.Plan(1, 2, False, tuple(CONTESTANTS), tmp_path, tmp_path, True)
    texts = paragraphs(4, data=tmp_path)
    written = cpu.save([_model()], "cpu", "python -m benchmarks.cpu", plan, texts, threads="2", load=0.1)
    result, page, *pictures = written
    assert json.loads(result.read_text())["figures"][0]["value"] == 1.5
    text = page.read_text()
    assert "did not run: ImportError: No module named 'ctranslate2'" in text
    assert "Expected before measuring" in text
    assert {path.suffix for path in pictures} == {".png", ".svg"}
    assert all(path.stat().st_size > 2000 for path in pictures)


class _Echo:
    """A peer whose vector is the row's first two tokens after [CLS]: shows which row an answer belongs to."""

    lanes = (1,)
    variants = ("",)

    def prepare(self, folder: Path, workdir: Path, threads: int) -> str:
        return ""

    def choose(self, variant: str, lanes: int) -> None: ...

    def start_lane(self) -> None: ...

    def run(self, batch: Batch) -> Any:
        return batch.ids[:, :2].astype("float32") + batch.lengths[:, None]


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("size", [1, 3, 32])
def test_padded_batches_cover_every_row_once_in_order(lanes: int, size: int) -> None:
    peer = Padded(_Echo())
    peer.choose(Setting(size, lanes))
    wanted = [[row[0] + len(row), row[1] + len(row)] for row in ROWS]
    assert peer.stream(ROWS).tolist() == wanted
    batches = peer.batches(ROWS)
    places = [place for batch in batches for place in batch.places]
    assert sorted(places) == list(range(len(ROWS)))
    found = [vector for part in peer.run(batches) for vector in part.tolist()]
    assert found == [wanted[place] for place in places]
    assert all(batch.mask.sum() == batch.lengths.sum() for batch in batches)


def test_rows_of_a_length_are_framed_like_texts() -> None:
    rows = rows_of_length(ROWS, 5, 3)
    assert [len(row) for row in rows] == [5, 5, 5]
    assert {(row[0], row[-1]) for row in rows} == {(2, 3)}
