"""What is done with a bulk job's files: DuckDB, FAISS, LanceDB, our own search, a manifest for Kubernetes."""

from __future__ import annotations

import importlib.util
import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

import bertie
from bertie.cli.main import cli, main
from bertie.errors import DataError
from bulk_jobs import jsonl_file

EXAMPLES = Path(__file__).parents[2] / "examples"
QUERY = "how do animals find food at night?"


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The facts of examples/ with their vectors and one row that has none; and the fact that is nearest to QUERY."""
    folder = tmp_path_factory.mktemp("recipes")
    facts = [json.loads(line)["text"] for line in (EXAMPLES / "facts.jsonl").read_text().splitlines()][:60]
    jsonl_file(folder / "facts.jsonl", [*({"text": text} for text in facts), {"text": None}])
    bertie.bulk("embed", folder / "facts.jsonl", folder / "vectors", piece_rows=25)
    scores = bertie.embed(facts) @ bertie.embed(QUERY)
    return folder / "vectors", facts[int(np.argmax(scores))]


def example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_duckdb_finds_the_nearest_text_in_the_files(embedded: tuple[Path, str]) -> None:
    pytest.importorskip("duckdb", reason="DuckDB is not installed: make test brings it")
    folder, nearest = embedded
    found = example("vectors_to_duckdb").search(str(folder), QUERY)
    assert found[0][0] == nearest
    assert found[0][1] > found[1][1] > found[2][1]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_lancedb_holds_every_row_without_an_error(embedded: tuple[Path, str], tmp_path: Path) -> None:
    pytest.importorskip("lancedb", reason="LanceDB is not installed: make test-all brings it")
    folder, nearest = embedded
    module = example("vectors_to_lancedb")
    table = module.load(str(folder), str(tmp_path / "lance"))
    assert table.count_rows() == 60
    found = module.search(table, QUERY)
    assert found[0][0] == nearest
    assert found[0][1] >= found[1][1]


def test_faiss_holds_every_row_without_an_error(embedded: tuple[Path, str]) -> None:
    pytest.importorskip("faiss", reason="FAISS is not installed: make test brings it")
    folder, nearest = embedded
    module = example("vectors_to_faiss")
    index = module.load(str(folder))
    assert index.ntotal == 60
    found = module.search(str(folder), index, QUERY)
    assert found[0][0] == nearest
    assert found[0][1] >= found[1][1] >= found[2][1]


def test_search_answers_from_the_vectors_without_embedding_them_again(
    embedded: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, nearest = embedded
    read: list[int] = []
    actual = bertie.tasks.Embedder.pooled
    monkeypatch.setattr(
        bertie.tasks.Embedder, "pooled", lambda self, pieces: read.append(len(pieces)) or actual(self, pieces)
    )
    files = sorted(map(str, folder.glob("*.parquet")))
    made = str(tmp_path / "index")
    assert main(["index", *files, "-o", made, "--vector-column", "embedding", "--skip-bad"]) == 0
    assert sum(read) < 20  # probes of the model, and not 60 texts
    assert json.loads(capsys.readouterr().out)["texts"] == 60
    (hit,) = bertie.Index.open(made).search(QUERY, k=1)
    assert (hit.text, hit.score) == (
        nearest,
        pytest.approx(float(bertie.embed(nearest) @ bertie.embed(QUERY)), abs=1e-5),
    )
    assert len(bertie.build_index(pq.read_table(folder).slice(0, 5), tmp_path / "five", vector_column="embedding")) == 5


def test_vectors_of_another_model_or_size_are_refused(embedded: tuple[Path, str], tmp_path: Path) -> None:
    rows = pq.read_table(embedded[0]).slice(0, 3).to_pylist()
    turned = [{**row, "embedding": row["embedding"][::-1]} for row in rows]
    with pytest.raises(DataError, match=r"is not the one of this model \(cosine -?0\.\d+\)") as caught:
        bertie.build_index(turned, tmp_path / "turned", vector_column="embedding")
    assert "Name the model=" in str(caught.value.remedy)
    rows[1]["embedding"] = [1.0, 2.0]
    with pytest.raises(DataError, match=r"'embedding' should hold 384 numbers, .* and holds \[1.0, 2.0\]"):
        bertie.build_index(rows, tmp_path / "short", vector_column="embedding")


def test_the_manifest_for_kubernetes_asks_for_what_the_command_has() -> None:
    job = yaml.safe_load((EXAMPLES / "kuberay-bulk.yaml").read_text(encoding="utf-8"))
    words = shlex.split(job["spec"]["entrypoint"])
    assert words[:3] == ["bertie", "bulk", "embed"]
    command: Any = cli.get_command(None, "bulk").commands["embed"]  # type: ignore[arg-type, union-attr]
    parsed = command.make_context("embed", words[3:]).params
    assert (parsed["ray"], parsed["gpus_per_worker"], parsed["output"]) == ("auto", 1.0, "s3://my-bucket/vectors")
    groups = job["spec"]["rayClusterSpec"]
    (worker,) = groups["workerGroupSpecs"][0]["template"]["spec"]["containers"]
    assert int(worker["resources"]["limits"]["cpu"]) >= parsed["cpus_per_worker"]
    assert worker["resources"]["limits"]["nvidia.com/gpu"] == "1"
    head = groups["headGroupSpec"]["template"]["spec"]["containers"][0]
    assert head["image"] == worker["image"]
