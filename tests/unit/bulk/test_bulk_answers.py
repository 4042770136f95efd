"""The columns of every task's answers: typed as `bertie.answers` has them, and equal to the task's own answers."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import bertie
from bertie import tasks
from bertie.answers import AnswerResult, Entity, Filled
from bertie.bulk.questions import arrow_type
from bulk_jobs import answers, jsonl_file, some_texts, vectors
from sentence_models import tiny_sentence_model
from tiny_models import SENTENCES, saved

TEXTS = some_texts(40)
PAIRS = list(zip(some_texts(40, seed=1), some_texts(40, seed=2), strict=True))
SCORE = pa.float64()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    return {
        "classify": saved(folder / "classify", "BertForSequenceClassification", num_labels=3),
        "rank": saved(folder / "rank", "BertForSequenceClassification", num_labels=1),
        "tag": saved(
            folder / "tag", "BertForTokenClassification", id2label={0: "O", 1: "B-PER", 2: "I-PER"}, num_labels=3
        ),
        "answer": saved(folder / "answer", "BertForQuestionAnswering"),
        "fill": saved(folder / "fill", "BertForMaskedLM"),
        "features": saved(folder / "features", "BertModel"),
        "embed": tiny_sentence_model(folder / "embed"),
    }


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    return jsonl_file(tmp_path / "texts.jsonl", [{"text": text, "n": n} for n, text in enumerate(TEXTS)])


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    return jsonl_file(tmp_path / "pairs.jsonl", [{"query": one, "document": two} for one, two in PAIRS])


def done(task: str, source: Path, model: str, **settings: Any) -> pa.Table:
    output = source.with_suffix(".answers")
    report = bertie.bulk(task, source, output, model, piece_rows=15, **settings)
    table = answers(output)
    assert (report.rows, report.errors) == (40, 0)
    assert len(list(output.glob("*.parquet"))) >= 2
    return table


def _about(rows: list[list[dict[str, Any]]]) -> list[list[dict[str, Any]]]:
    """Numbers to five places: a head's last bits depend on what is in its batch."""
    return [[{k: round(v, 5) if isinstance(v, float) else v for k, v in one.items()} for one in row] for row in rows]


def test_classify(models: dict[str, str], texts: Path) -> None:
    table = done("classify", texts, models["classify"], top_k=2)
    wanted = tasks.Classifier(models["classify"], top_k=2)(TEXTS)
    assert table["label"].to_pylist() == [one.label for one in wanted]
    assert table["score"].to_pylist() == pytest.approx([one.score for one in wanted], abs=1e-6)
    given = [[label["label"] for label in row] for row in table["labels"].to_pylist()]
    assert given == [[label for label, _ in one.labels] for one in wanted]
    kind = pa.list_(pa.struct([("label", pa.string()), ("score", SCORE)]))
    assert table.schema.field("labels").type.equals(kind)
    assert table["n"].to_pylist() == list(range(40))


def test_classify_of_pairs(models: dict[str, str], pairs: Path) -> None:
    table = done("classify", pairs, models["classify"], columns=("query", "document"))
    wanted = tasks.Classifier(models["classify"])(PAIRS)
    assert table["score"].to_pylist() == pytest.approx([one.score for one in wanted], abs=1e-6)
    assert "labels" not in table.column_names


def test_tag(models: dict[str, str], texts: Path) -> None:
    table = done("tag", texts, models["tag"])
    wanted = tasks.Tagger(models["tag"])(TEXTS)
    assert _about(table["entities"].to_pylist()) == _about([[asdict(entity) for entity in row] for row in wanted])
    assert sum(map(len, wanted)) > 40


def test_answer(models: dict[str, str], tmp_path: Path) -> None:
    source = jsonl_file(tmp_path / "asked.jsonl", [{"question": "Who?", "context": text} for text in TEXTS])
    table = done("answer", source, models["answer"], n_best=2, no_answer=False)
    wanted = tasks.Answerer(models["answer"], n_best=2, no_answer=False)([("Who?", text) for text in TEXTS])
    assert table["answer"].to_pylist() == [None if one.best is None else one.best.text for one in wanted]
    scores = [one.best.score if one.best else one.no_answer_score for one in wanted]
    assert table["score"].to_pylist() == pytest.approx(scores, abs=1e-6)
    assert _about(table["candidates"].to_pylist()) == _about([list(map(asdict, one.candidates)) for one in wanted])


def test_rerank_by_a_cross_encoder_and_by_cosine(models: dict[str, str], pairs: Path, tmp_path: Path) -> None:
    table = done("rerank", pairs, models["rank"])
    ranker = tasks.Reranker(models["rank"])
    wanted = [ranker(query, [document])[0].score for query, document in PAIRS]
    assert table["score"].to_pylist() == pytest.approx(wanted, abs=1e-6)  # the head's last bits are its batch's
    bertie.bulk("rerank", pairs, tmp_path / "cosine", models["embed"])
    ranker = tasks.Reranker(models["embed"])
    wanted = [ranker(query, [document])[0].score for query, document in PAIRS]
    assert answers(tmp_path / "cosine")["score"].to_pylist() == pytest.approx(wanted, abs=1e-6)


def test_fill_with_rows_that_have_no_mask(models: dict[str, str], tmp_path: Path) -> None:
    masked = [text.replace(text.split()[0], "[MASK]", 1) for text in TEXTS]
    masked[7] = "two [MASK] and [MASK]"
    source = jsonl_file(tmp_path / "masked.jsonl", [{"text": text} for text in [*masked, "nothing to fill"]])
    report = bertie.bulk("fill", source, tmp_path / "out", models["fill"], top_k=2)
    table = answers(tmp_path / "out")
    wanted = tasks.MaskFiller(models["fill"], top_k=2)(masked)
    assert table["filled"].to_pylist() == [*(one.text for one in wanted), None]
    assert table["masks"].to_pylist()[7][1][0]["token"] == wanted[7].masks[1][0].token
    assert table["fillings"].to_pylist()[0][0]["score"] == pytest.approx(wanted[0].fillings[0].score, abs=1e-6)
    assert report.errors == 1
    assert "has no [MASK]" in table["error"].to_pylist()[-1]


def test_features(models: dict[str, str], texts: Path) -> None:
    table = done("features", texts, models["features"], layers=[-1, 0])
    wanted = tasks.FeatureExtractor(models["features"], layers=[-1, 0])(TEXTS)
    for row, one in zip(table["tokens"].to_pylist(), wanted, strict=True):
        assert [token["token"] for token in row] == [token.token for token in one.tokens]
        for token, right in zip(row, one.tokens, strict=True):
            assert [layer["index"] for layer in token["layers"]] == [-1, 0]
            np.testing.assert_array_equal(np.float32(token["layers"][0]["vector"]), right.vector(-1))


@pytest.mark.parametrize(("precision", "kind"), [("binary", pa.int8()), ("ubinary", pa.uint8())])
def test_embed_in_few_bits(models: dict[str, str], texts: Path, precision: str, kind: Any) -> None:
    table = done("embed", texts, models["embed"], precision=precision)
    assert table.schema.field("embedding").type == pa.list_(kind, 4)
    wanted = bertie.embed(TEXTS, model=models["embed"], precision=precision)
    np.testing.assert_array_equal(vectors(table), wanted)


def test_embed_with_a_prompt_in_windows(models: dict[str, str], tmp_path: Path) -> None:
    long = [" ".join(SENTENCES) for _ in range(3)]
    source = jsonl_file(tmp_path / "long.jsonl", [{"text": text} for text in long])
    bertie.bulk("embed", source, tmp_path / "out", models["embed"], prompt="query: ", long="windows", truncate_dim=16)
    embedder = tasks.Embedder(models["embed"], truncate_dim=16)
    wanted = embedder.embed(long, prompt="query: ", long="windows")
    np.testing.assert_array_equal(vectors(answers(tmp_path / "out")), wanted)


def test_types_are_told_from_the_answers() -> None:
    entity = arrow_type(Entity)
    assert [(field.name, field.type) for field in entity] == [
        ("label", pa.string()), ("text", pa.string()), ("start", pa.int64()), ("end", pa.int64()), ("score", SCORE),
        ("index", pa.int64()),
    ]  # fmt: skip
    assert pa.types.is_struct(arrow_type(AnswerResult).field("best").type)
    assert arrow_type(Filled).field("masks").type.value_type.value_type.field("ids").type == pa.list_(pa.int64())


def test_files_are_sized_for_readers(models: dict[str, str], tmp_path: Path) -> None:
    texts = some_texts(66_000)
    pq.write_table(pa.table({"text": texts}), tmp_path / "in.parquet")
    bertie.bulk("embed", tmp_path / "in.parquet", tmp_path / "out", models["embed"], truncate_dim=4, max_length=3)
    with pq.ParquetFile(tmp_path / "out" / "part-000000.parquet") as file:
        sizes = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
        group = file.metadata.row_group(0)
        packed = {group.column(n).path_in_schema: group.column(n).compression for n in range(group.num_columns)}
    assert sizes == [65_536, 464]
    assert packed == {"text": "ZSTD", "embedding.list.element": "UNCOMPRESSED", "error": "ZSTD"}
