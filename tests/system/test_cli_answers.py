"""The commands that answer: what they write for people and for machines, and that it is what the tasks say."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import pty
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertie.cli.main import main
from bertie.cli.support.show import bar, clipped, marked, plain_text
from bertie.tasks.answer import answer
from bertie.tasks.classify import classify
from bertie.tasks.embed import embed
from bertie.tasks.fill import fill
from bertie.tasks.tag import tag
from system.workshop import SQUAD
from tiny_models import SENTENCES


@pytest.fixture
def rows(desk: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a command; its JSON lines."""

    def run(*arguments: str) -> list[dict[str, Any]]:
        assert main(list(arguments)) == 0, capsys.readouterr().err
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return run


@pytest.fixture
def shown(desk: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a command; what a person reads."""

    def run(*arguments: str) -> str:
        assert main([*arguments, "--format", "text"]) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    return run


def test_embed_writes_the_vectors_of_the_task(rows: Any) -> None:
    found = rows("embed", "-f", "texts.txt", "-m", "my-bert")
    assert [row["text"] for row in found] == SENTENCES
    np.testing.assert_array_equal(
        np.array([row["embedding"] for row in found], dtype=np.float32), embed(SENTENCES, model="my-bert")
    )
    assert len(rows("embed", "x", "--truncate-dim", "16")[0]["embedding"]) == 16
    assert all(isinstance(x, int) for x in rows("embed", "a", "b", "c", "--precision", "int8")[1]["embedding"])


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_files_are_read_in_the_encoding_that_is_named(desk: Path, rows: Any, encoding: str) -> None:
    text = "Grüße [MASK]."
    (desk / "other.txt").write_text(f"{text}\n", encoding=encoding)
    (desk / "other.json").write_text(json.dumps(SQUAD).replace("Where", "Wö"), encoding=encoding)
    told = ["-f", "other.txt", "-m", "my-bert", "--encoding", encoding]
    for command in ("embed", "fill", "tokenize"):
        assert [row["text"] for row in rows(command, *told)] == [text]
    asked = ["answer", "-m", "my-squad", "--encoding", encoding]
    assert rows(*asked, "-f", "other.json")[0]["question"] == "Wö did Ada live?"
    assert rows(*asked, "Who?", "--context-file", "other.txt") == rows("answer", "-m", "my-squad", "Who?", "-c", text)


@pytest.mark.parametrize(("name", "typed", "char"), [("a.csv", ";", ";"), ("a.csv", "\\t", "\t"), ("a.tsv", "|", "|")])
def test_columns_are_separated_by_what_is_named(desk: Path, rows: Any, name: str, typed: str, char: str) -> None:
    (desk / name).write_text(f"key{char}review\nk{char}one, two\n")
    found = rows("tokenize", "-m", "my-bert", "-f", name, "--delimiter", typed, "--column", "review")
    assert [row["text"] for row in found] == ["one, two"]
    (desk / f"q{name}").write_text(f"question{char}context\nWho?{char}Ada.\n")
    assert rows("answer", "-m", "my-squad", "-f", f"q{name}", "--delimiter", typed)[0]["question"] == "Who?"


def test_several_files_are_read_in_their_order(desk: Path, rows: Any, capsys: pytest.CaptureFixture[str]) -> None:
    (desk / "one.txt").write_text("The [MASK] ran.\n")
    (desk / "two.csv").write_text("id,review\n1,A [MASK] fell.\n2,Go [MASK].\n")
    (desk / "pairs.tsv").write_text("premise\thypothesis\nIt rains.\tIt is wet.\n")
    both = ["-m", "my-bert", "-f", "two.csv", "-f", "one.txt"]
    for command in ("embed", "fill", "tokenize"):
        assert [row["text"] for row in rows(command, *both)] == ["A [MASK] fell.", "Go [MASK].", "The [MASK] ran."]
    told = ["similarity", "--pairs", "-f", "pairs.tsv", "-f", "pairs.tsv"]
    assert [row["text_a"] for row in rows(*told)] == ["It rains.", "It rains."]
    (desk / "who.csv").write_text("question,context\nWho?,Ada.\n")
    asked = [row["question"] for row in rows("answer", "-m", "my-squad", "-f", "who.csv", "-f", "dev.json")]
    assert asked[0] == "Who?"
    assert len(asked) == 1 + len(rows("answer", "-m", "my-squad", "-f", "dev.json"))
    (facts,) = rows("index", "two.csv", "one.txt", "-o", "i", "--column", "review", "--skip-bad")
    assert facts["texts"] == 2  # one.txt has no column of that name
    (facts,) = rows("index", "one.txt", "one.txt", "-o", "twice")
    assert facts["texts"] == 2
    capsys.readouterr()


def test_a_missing_file_among_several_is_refused_before_any_is_read(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, cause in (
        (["-f", "texts.txt", "-f", "nowhere.txt"], "nowhere.txt: there is no such file."),
        (["-f", "-", "-f", "-"], "Standard input (-) was given twice"),
        (["x", "-o", "a.jsonl", "-o", "b.jsonl"], "--output takes one file; 2 were given: a.jsonl, b.jsonl."),
    ):
        assert main(["embed", "-m", "my-bert", *arguments]) == 2
        said = capsys.readouterr()
        assert cause in said.err
        assert not said.out


def test_questions_are_read_in_the_format_that_is_named(desk: Path, rows: Any) -> None:
    (desk / "questions").write_text("question,context\nWho?,Ada.\n")
    (desk / "squad.txt").write_text(json.dumps(SQUAD))
    asked = ["answer", "-m", "my-squad", "-f"]
    assert rows(*asked, "questions", "--input-format", "csv")[0]["question"] == "Who?"
    assert rows(*asked, "squad.txt", "--input-format", "json") == rows(*asked, "dev.json")


def test_a_context_is_the_file_without_its_last_line_end(desk: Path, rows: Any) -> None:
    (desk / "context.txt").write_bytes(b"Ada lived\r\nin London.\n")
    said = ["answer", "-m", "my-squad", "Who?", "--always"]
    assert rows(*said, "--context-file", "context.txt") == rows(*said, "-c", "Ada lived\nin London.")


def test_fill_passes_over_texts_without_a_mask(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (desk / "masks.txt").write_text("He was [MASK].\nNothing here.\n\n[MASK] fell.\n")
    assert main(["fill", "-m", "my-bert", "-f", "masks.txt", "--skip-bad"]) == 0
    said = capsys.readouterr()
    assert [json.loads(line)["text"] for line in said.out.splitlines()] == ["He was [MASK].", "[MASK] fell."]
    assert "2 bad rows skipped; the first: masks.txt, line 2: has no [MASK]: 'Nothing here.'" in said.err


def test_embed_in_every_format_and_file(desk: Path, shown: Any) -> None:
    import pyarrow.parquet

    for name in ("v.json", "v.jsonl", "v.csv", "v.tsv", "v.parquet", "v.jsonl.gz", "v.txt"):
        assert main(["embed", "one", "two", "-o", name]) == 0
        assert (desk / name).stat().st_size
    assert [row["text"] for row in json.loads((desk / "v.json").read_text())] == ["one", "two"]
    assert pyarrow.parquet.read_table(desk / "v.parquet").column("text").to_pylist() == ["one", "two"]
    assert "384 numbers" in (desk / "v.txt").read_text()
    assert "384 numbers" in shown("embed", "one")


@pytest.mark.parametrize("name", ["v.text", "v.TXT", "v.txt.gz"])
def test_a_text_file_by_any_name_holds_what_people_read(
    desk: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["embed", "-f", "texts.txt", "-m", "my-bert", "-o", name]) == 0, capsys.readouterr().err
    written = (desk / name).read_bytes()
    assert "numbers" in (gzip.decompress(written) if name.endswith(".gz") else written).decode()


def test_a_text_file_appears_whole_or_not_at_all(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (desk / "mine.txt").write_text("precious one\nprecious two\n")
    (desk / "bad.txt").write_bytes(b"a line\n" * 300 + b"\xff\n")
    assert main(["embed", "-f", "bad.txt", "-m", "my-bert", "-o", "mine.txt"]) == 2
    assert (desk / "mine.txt").read_text() == "precious one\nprecious two\n"
    assert not list(desk.glob(".mine*"))
    assert main(["tokenize", "-f", "mine.txt", "-m", "my-bert", "-o", "mine.txt"]) == 0, capsys.readouterr().err
    assert (desk / "mine.txt").read_text().count("[CLS]") == 2  # read to its end before it was written over


def test_a_file_whose_name_tells_no_format(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (desk / "there.xyz").write_text("")
    for name in ("new.xyz", "there.xyz"):
        assert main(["embed", "a", "-m", "my-bert", "-o", name]) == 2
        assert "Give it with --format: one of text, json" in capsys.readouterr().err


def test_without_standard_output(desk: Path) -> None:
    command = f"exec '{sys.executable}' -m bertie embed a -m my-bert >&-"
    ended = subprocess.run(command, shell=True, cwd=desk, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    assert ended.returncode == 2
    assert "there is none to write to" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_similarity_is_a_matrix_or_pairs_or_the_best_pairs(rows: Any, shown: Any) -> None:
    found = rows("similarity", "A man plays guitar.", "Someone makes music.", "It rained all day.")
    scores = np.array([row["scores"] for row in found])
    assert scores.shape == (3, 3)
    assert scores[0, 1] > 0.4 > scores[0, 2]
    assert len(rows("similarity", "--pairs", "-f", "pairs.csv")) == len(SENTENCES) - 1
    text = shown("similarity", "A man plays guitar.", "Someone makes music.", "It rained all day.")
    assert "1.000" in text
    assert "Someone makes music." in text
    assert "the 20 most similar pairs of 10 texts" in shown("similarity", *map(str, range(10)))
    assert SENTENCES[6] in shown("similarity", "-f", "texts.txt")


def test_rerank_puts_the_best_first(rows: Any, shown: Any) -> None:
    documents = ["It rains.", "Goethe wrote Faust.", "Verdi wrote Aida."]
    found = rows("rerank", "Who wrote Faust?", *documents)
    assert [(row["rank"], row["index"]) for row in found] == [(1, 1), (2, 2), (3, 0)]
    assert len(rows("rerank", "q", "-f", "documents.txt", "-m", "my-cross-encoder", "-k", "2")) == 2
    assert "Goethe wrote Faust." in shown("rerank", "Who wrote Faust?", *documents)


def test_index_search_and_add(desk: Path, rows: Any, shown: Any) -> None:
    (facts,) = rows("index", "corpus.jsonl", "-o", "i")
    assert (facts["texts"], facts["added"], facts["dimension"]) == (7, 7, 384)
    (best,) = rows("search", "i", "What did the stock market do?", "-k", "1")
    assert (best["id"], best["rank"], best["text"]) == ("c5", 1, SENTENCES[5])
    (facts,) = rows("index", "corpus.jsonl", "-o", "i")
    assert (facts["texts"], facts["added"]) == (7, 0)
    (facts,) = rows("index", "more.jsonl", "-o", "i", "--add")
    assert (facts["texts"], facts["added"]) == (14, 7)
    assert len(rows("search", "i", "-f", "queries.txt", "-k", "3")) == 3 * 7
    assert "c5" in shown("search", "i", "What did the stock market do?", "-k", "2")


def test_an_index_that_failed_leaves_nothing_behind(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (desk / "empty.txt").write_text("")
    (desk / "bad.jsonl").write_text('{"text": \n')
    (desk / "there").mkdir()
    for corpus, folder in (("empty.txt", "new/index"), ("bad.jsonl", "new/index"), ("empty.txt", "there")):
        assert main(["index", corpus, "-o", folder]) == 2
        assert not (desk / "new").exists()
        assert list((desk / "there").iterdir()) == []
    assert main(["search", "there", "q"]) == 2
    assert main(["search", "empty.txt", "q"]) == 2
    assert "empty.txt is not a folder" in capsys.readouterr().err
    assert main(["index", "corpus.jsonl", "-o", "there"]) == 0
    before = sorted(path.name for path in (desk / "there").iterdir())
    assert main(["index", "bad.jsonl", "-o", "there", "--add"]) == 2
    assert sorted(path.name for path in (desk / "there").iterdir()) == before


def _writes_in(process: int, folder: Path) -> bool:
    """Whether a process has written to a file in a folder, with a name or without."""
    found = [link for link in Path(f"/proc/{process}/fd").iterdir() if link.is_symlink()]
    with suppress(OSError):  # it closed one meanwhile
        written = [link for link in found if os.readlink(link).startswith(str(folder)) and os.access(link, os.W_OK)]
        return any(link.stat().st_size for link in written if "many.txt" not in os.readlink(link))
    return False


def test_a_command_that_is_terminated_cleans_up(desk: Path) -> None:
    (desk / "many.txt").write_text("A text that is long enough to take a while.\n" * 200_000)
    line = [sys.executable, "-m", "bertie", "embed", "-f", "many.txt", "-o", "many.jsonl"]
    process = subprocess.Popen(line, cwd=desk, stderr=subprocess.PIPE)
    assert process.stderr is not None
    ends = time.monotonic() + 60
    while not _writes_in(process.pid, desk):
        assert time.monotonic() < ends
        assert process.poll() is None
        time.sleep(0.05)
    process.terminate()
    assert b"Traceback" not in process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=30) == 128 + signal.SIGTERM
    assert list(desk.glob("*many.jsonl*")) == []


def test_classify_texts_pairs_and_own_labels(rows: Any, shown: Any) -> None:
    (found,) = rows("classify", "-m", "my-sentiment", "A fine film.")
    told = classify("A fine film.", model="my-sentiment")
    assert (found["label"], found["score"]) == (told.label, told.score)
    assert len(rows("classify", "-m", "my-nli", "--columns", "sentence1,sentence2", "-f", "pairs.csv")) == 6
    (found,) = rows("classify", "-m", "my-nli", "Shares fell.", "--labels", "sports, business")
    assert {one["label"] for one in found["labels"]} == {"sports", "business"}
    assert sum(one["score"] for one in found["labels"]) == pytest.approx(1)
    assert "sports" in shown("classify", "-m", "my-nli", "Shares fell.", "--labels", "sports,business")
    assert "[/b] :smile:" in shown("classify", "-m", "my-sentiment", "x [/b] :smile:")


def test_tag_gives_exact_spans_and_shows_them_in_place(rows: Any, shown: Any) -> None:
    text = "Ada Lovelace lived in Köln."
    (found,) = rows("tag", "-m", "my-ner", text)
    assert [one["text"] for one in found["entities"]] == [one.text for one in tag(text, model="my-ner")]
    assert all(text[one["start"] : one["end"]] == one["text"] for one in found["entities"])
    first = found["entities"][0]
    assert f"{first['text']} [{first['label']}:" in shown("tag", "-m", "my-ner", text)


def test_answer_quotes_and_scores(desk: Path, rows: Any, shown: Any) -> None:
    context = "Ada Lovelace lived in London."
    (found,) = rows("answer", "-m", "my-squad", "Where did Ada live?", "-c", context, "--always")
    told = answer("Where did Ada live?", context, model="my-squad", threshold=float("inf"))
    assert (found["answer"], found["start"]) == (told.best.text, told.best.start)
    assert context[found["start"] : found["end"]] == found["answer"]
    assert f"{found['answer']} [" in shown("answer", "-m", "my-squad", "Where did Ada live?", "-c", context, "--always")
    assert "no answer" in shown("answer", "-m", "my-squad", "Why?", "-c", context, "--threshold", "-1000")
    (score,) = rows("answer", "-m", "my-squad", "-f", "dev.json", "--score", "--predictions", "p.json", "-o", "a.jsonl")
    assert score["total"] == 2
    assert list(json.loads((desk / "p.json").read_text())) == ["q1", "q2"]
    assert len((desk / "a.jsonl").read_text().splitlines()) == 2
    (desk / "flat.jsonl").write_text('{"question": "Who?", "context": "Ada."}\n{"question": "Why?"}\n')
    assert len(rows("answer", "-m", "my-squad", "-f", "flat.jsonl", "--skip-bad")) == 1
    asked: dict[str, Any] = {"question": "Who?", "context": "Ada."}
    (desk / "marked.jsonl").write_text(json.dumps(asked | {"is_impossible": True}) + "\n")
    assert rows("answer", "-m", "my-squad", "-f", "marked.jsonl", "--score")[0]["no_answer_total"] == 1
    told = [asked | {"answers": [{"text": "Ada", "answer_start": 0}]}, asked | {"answers": []}]
    (desk / "told.jsonl").write_text("".join(json.dumps(one) + "\n" for one in told))
    (score,) = rows("answer", "-m", "my-squad", "-f", "told.jsonl", "--score")
    assert (score["has_answer_total"], score["no_answer_total"]) == (1, 1)
    assert "with an answer" in shown("answer", "-m", "my-squad", "-f", "dev.json", "--score")
    assert "score" in shown(
        "answer", "-m", "my-squad", "Who?", "--context-file", "report.txt", "--n-best", "3", "--always"
    )


def test_fill_next_features_generate(rows: Any, shown: Any) -> None:
    (found,) = rows("fill", "-m", "my-bert", "A [MASK] dog.", "--targets", "the,lazy")
    told = fill("A [MASK] dog.", model="my-bert", targets=["the", "lazy"])
    assert found["filled"] == told.text
    assert [one["token"] for one in found["masks"][0]] == [one.token for one in told.candidates]
    assert len(rows("fill", "-m", "my-bert", "A [MASK] [MASK].", "-k", "3")[0]["fillings"]) == 3
    assert "A [MASK] dog." in shown("fill", "-m", "my-bert", "A [MASK] dog.")
    (found,) = rows("next", "-m", "my-bert", "One.", "Two.")
    assert 0 <= found["probability"] <= 1
    assert "follow" in shown("next", "-m", "my-bert", "One.", "Two.")
    (found,) = rows("features", "-m", "my-bert", "a dog", "--layers", "-1,-2")
    assert found["linex_index"] == 0
    assert [layer["index"] for layer in found["features"][0]["layers"]] == [-1, -2]
    assert "[CLS]" in shown("features", "-m", "my-bert", "a dog")
    once = rows("generate", "-m", "my-decoder", "The dog", "--sample", "--seed", "3", "--count", "2")
    assert once == rows("generate", "-m", "my-decoder", "The dog", "--sample", "--seed", "3", "--count", "2")
    assert len(once[0]["alternatives"]) == 1
    assert shown("generate", "-m", "my-decoder", "The dog").startswith("The dog ")


def test_csv_holds_lists_as_json(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tag", "-m", "my-ner", "Ada, in London", "--format", "csv"]) == 0
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert row["text"] == "Ada, in London"
    assert isinstance(json.loads(row["entities"]), list)


def test_bad_rows_are_passed_over_and_counted(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (desk / "mixed.jsonl").write_text('{"text": "one"}\n{"text": \n{"text": "two"}\n')
    assert main(["embed", "-f", "mixed.jsonl", "--skip-bad"]) == 0
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 2
    assert "1 bad row skipped; the first: mixed.jsonl, line 2" in captured.err


def test_texts_come_from_standard_input(rows: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    given = io.TextIOWrapper(io.BytesIO(b'{"text": "one"}\n{"text": "two"}\n'))
    monkeypatch.setattr(sys, "stdin", given)
    assert [row["text"] for row in rows("tokenize")] == ["one", "two"]


def test_a_text_cannot_steer_the_terminal() -> None:
    assert plain_text("a\x1b[2Jb\x9bc\rd") == "a␛[2Jb\ufffdc d"
    assert str(clipped("line\nbreak", 6)) == "line…"


def test_marks_and_bars() -> None:
    line = marked("Ada lived in London.", [(13, 19, "LOC:0.9"), (0, 3, "PER:0.8"), (1, 2, "X:0.1")])
    assert line.plain == "Ada [PER:0.8] lived in London [LOC:0.9]."
    assert "bold" in str(line.spans[0].style)
    long = "word " * 100 + "here" + " word" * 100
    assert marked(long, [(500, 504, "x")], around=20).plain == "… word word word here [x] word word word …"
    assert (bar(0.0), bar(1.0), bar(0.55), bar(-1)) == (" " * 10, "█" * 10, "█████▌    ", " " * 10)


def test_on_a_terminal_text_in_a_pipe_json_lines_and_head_is_quiet(desk: Path) -> None:
    python = [sys.executable, "-m", "bertie"]
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*python, "tag", "-m", "my-ner", "Ada"], stdin=subprocess.DEVNULL, stdout=theirs, stderr=subprocess.PIPE
    ) as process:
        os.close(theirs)
        seen = b""
        while process.poll() is None or seen == b"":
            try:
                seen += os.read(ours, 4096)
            except OSError:
                break
    os.close(ours)
    assert b"\x1b[" in seen  # highlighted
    many = "".join(f"text {n}\n" for n in range(20000))
    line = f"{sys.executable} -m bertie tokenize --format {{}} | head -1; echo ${{{{PIPESTATUS[0]}}}}"
    for format_, start in (("jsonl", '{"text"'), ("text", "[CLS]")):
        result = subprocess.run(
            ["bash", "-c", line.format(format_)], input=many, capture_output=True, text=True, timeout=60
        )
        assert result.stdout.startswith(start)
        assert result.stdout.endswith("\n0\n")
        assert result.stderr == ""


def test_a_screen_without_utf8_is_no_trouble(desk: Path) -> None:
    line = [sys.executable, "-m", "bertie", "similarity", "é", "漢字", "--pairs", "--format", "text"]
    result = subprocess.run(line, capture_output=True, text=True, env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert (result.returncode, result.stderr) == (0, "")
    assert "?" in result.stdout


def test_doctor_tells_the_same_to_machines(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in facts)
    assert {"GPU", "attention", "default model", "hub cache"} <= set(facts)


def test_interrupting_ends_with_130(desk: Path) -> None:
    code = "import sys, signal; from bertie.cli.main import main; signal.alarm(1); "
    code += "signal.signal(signal.SIGALRM, signal.default_int_handler); sys.exit(main(['tokenize', '-f', '-']))"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.wait(timeout=30) == 130
        assert process.stderr is not None
        assert process.stderr.read().strip() == "stopped"
