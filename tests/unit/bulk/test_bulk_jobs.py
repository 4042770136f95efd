"""Bulk jobs in this process: every row once, going on, what is refused, rows that cannot be answered."""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import bertie
from bertie.bulk import BulkReport, prepare, run, work
from bertie.bulk.progress import Progress
from bertie.bulk.ray import _report, _said
from bertie.errors import BertieError, DataError, InputError, MissingExtra
from bertie.running.open import OpenModel
from bulk_jobs import answers, check_whole, jsonl_file, some_texts, stop_after
from sentence_models import tiny_sentence_model


def test_every_row_once_in_order_with_all_columns(model: str, texts: Path, tmp_path: Path, wanted: Any) -> None:
    report = bertie.bulk("embed", texts, tmp_path / "out", model, piece_rows=90)
    assert (report.rows, report.errors, report.pieces, report.computed) == (400, 0, 5, 5)
    check_whole(tmp_path / "out", wanted)
    table = answers(tmp_path / "out")
    assert table.schema.field("embedding").type == pa.list_(pa.float32(), 32)
    assert table["text"].to_pylist() == some_texts(400)
    assert report.tokens_per_second > report.rows_per_second > 0


def test_run_after_its_end_a_job_does_nothing(model: str, texts: Path, tmp_path: Path) -> None:
    bertie.bulk("embed", texts, tmp_path / "out", model)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    again = bertie.bulk("embed", texts, tmp_path / "out", model, long="truncate")  # the default, said aloud
    assert (again.rows, again.computed) == (400, 0)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")} == before


def test_interrupted_a_job_goes_on_with_what_is_left(
    model: str, texts: Path, tmp_path: Path, wanted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[BulkReport] = []
    with monkeypatch.context() as patched:
        stop_after(patched, 2, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            run(prepare("embed", texts, tmp_path / "out", model, piece_rows=90), stopped=said.append)
    assert (said[0].pieces_done, said[0].pieces) == (2, 5)
    assert len(list((tmp_path / "out").glob("*.parquet"))) == 2
    again = bertie.bulk("embed", texts, tmp_path / "out", model, piece_rows=90)
    assert (again.computed, again.rows) == (3, 400)
    check_whole(tmp_path / "out", wanted)


def test_a_part_that_the_account_does_not_know_is_not_computed_again(
    model: str, texts: Path, tmp_path: Path, wanted: Any
) -> None:
    bertie.bulk("embed", texts, tmp_path / "out", model, piece_rows=90)
    (tmp_path / "out" / "_job" / "done.json").unlink()  # as after a kill before it was written
    (tmp_path / "out" / "part-000003.parquet").unlink()
    again = bertie.bulk("embed", texts, tmp_path / "out", model, piece_rows=90)
    assert (again.computed, again.rows) == (1, 400)
    check_whole(tmp_path / "out", wanted)


def test_a_part_cut_short_is_written_again_and_one_of_another_job_refused(
    model: str, texts: Path, tmp_path: Path, wanted: Any
) -> None:
    out = tmp_path / "out"
    bertie.bulk("embed", texts, out, model, piece_rows=90)
    part = out / "part-000001.parquet"
    part.write_bytes(part.read_bytes()[:-100])
    assert bertie.bulk("embed", texts, out, model, piece_rows=90).computed == 1
    check_whole(out, wanted)
    bertie.bulk("embed", texts, tmp_path / "other", model, piece_rows=90, truncate_dim=16)
    part.write_bytes((tmp_path / "other" / part.name).read_bytes())
    with pytest.raises(DataError, match=r"part-000001.parquet is there, and this job did not write it"):
        bertie.bulk("embed", texts, out, model, piece_rows=90)


def test_another_job_in_the_folder_is_refused_by_what_differs(
    model: str, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    bertie.bulk("embed", texts, out, model)
    other = tiny_sentence_model(tmp_path / "other", seed=5)
    with pytest.raises(DataError, match="the files of its model are not those of the model named now"):
        bertie.bulk("embed", texts, out, other)
    with pytest.raises(DataError, match=r"truncate_dim was the default, and now it is 8"):
        bertie.bulk("embed", texts, out, model, truncate_dim=8)
    with pytest.raises(DataError, match="its task is 'embed', now it is 'rerank'"):
        bertie.bulk("rerank", texts, out, model)
    with pytest.raises(DataError, match="it reads text, and now it should read id"):
        bertie.bulk("embed", texts, out, model, column="id")
    with pytest.raises(DataError, match="its pieces have 262,144 rows, and now they should have 90"):
        bertie.bulk("embed", texts, out, model, piece_rows=90)
    with pytest.raises(DataError, match="it reads utf-8, and now it should read cp1252 with the delimiter ';'"):
        bertie.bulk("embed", texts, out, model, encoding="cp1252", delimiter=";")
    with monkeypatch.context() as patched:
        patched.setattr("bertie.bulk.job.__version__", "9.9")
        with pytest.raises(DataError, match=r"begun by Bertie .*, and this is 9.9"):
            bertie.bulk("embed", texts, out, model)
    (texts / "2.parquet").rename(texts / "3.parquet")
    with pytest.raises(DataError, match=r"1 file was removed .*2.parquet\); 1 file was added .*3.parquet"):
        bertie.bulk("embed", texts, out, model)


def test_a_job_is_not_continued_in_other_numbers(
    model: str, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when it was begun on a machine with a GPU, whose default is float16, and goes on where there is none."""
    out = tmp_path / "out"
    bertie.bulk("embed", texts, out, model, piece_rows=90)
    (out / "part-000003.parquet").unlink()
    with monkeypatch.context() as patched:
        patched.setattr(OpenModel, "dtype", "float16")
        with pytest.raises(DataError, match=r"was begun in float32; here the model would compute in float16") as caught:
            bertie.bulk("embed", texts, out, model, piece_rows=90)
    assert "another output, and a dtype for all machines" in str(caught.value)
    assert bertie.bulk("embed", texts, out, model, piece_rows=90).computed == 1


@pytest.mark.parametrize("bad", [{"truncate_dim": 999}, {"strict": True}, {"ray": "localhost:1"}])
def test_a_job_that_an_error_ends_before_its_first_answer_leaves_its_folder_to_others(
    model: str, tmp_path: Path, bad: dict[str, Any]
) -> None:
    if "ray" in bad:
        pytest.importorskip("ray", reason="Ray is not installed: pip install 'bertie[ray]'")
    file = jsonl_file(tmp_path / "rows.jsonl", [{"text": "one"}, {"text": None}])
    with pytest.raises(BertieError):
        bertie.bulk("embed", file, tmp_path / "out", model, **bad)
    jsonl_file(file, [{"text": "one"}, {"text": "two"}, {"text": "three"}])
    assert bertie.bulk("embed", file, tmp_path / "out", model, truncate_dim=8).rows == 3


def test_two_at_once_in_one_folder_are_refused(model: str, texts: Path, tmp_path: Path) -> None:
    prepared = prepare("embed", texts, tmp_path / "out", model)
    (tmp_path / "out" / "_job").mkdir(parents=True)
    with bertie.files.Lock(tmp_path / "out" / "_job", "lock"), pytest.raises(DataError, match="is working on it"):
        run(prepared)


def test_rows_that_cannot_be_answered_have_an_error_and_the_others_an_answer(model: str, tmp_path: Path) -> None:
    rows = [
        {"text": "good"},
        {"text": None},
        {"text": 5},
        "no json",
        {"text": "lone \ud800"},
        {"text": "good", "n": "x"},
    ]
    file = jsonl_file(tmp_path / "rows.jsonl", [{"text": "one", "n": 1}, *rows, {"text": "last", "n": 2}])
    with file.open("ab") as stream:
        stream.write(b'{"text": "latin \xe9"}\n')
    report = bertie.bulk("embed", file, tmp_path / "out", model)
    table = answers(tmp_path / "out")
    errors = table["error"].to_pylist()
    assert (report.rows, report.errors) == (9, 5)
    assert [error is None for error in errors] == [True, True, *[False] * 4, True, True, False]
    assert table["embedding"].is_valid().to_pylist() == [error is None for error in errors]
    assert table["n"].to_pylist() == ["1", None, None, None, None, None, "x", "2", None]  # of no one type: as text
    assert [error.partition(": ")[0].rpartition(", ")[2] for error in errors if error] == [
        f"row {number}" for number in (3, 4, 5, 6, 9)
    ]
    said = ["is empty", "holds int 5", "not JSON", "lone surrogate", "not utf-8"]
    assert all(word in error for word, error in zip(said, filter(None, errors), strict=True))
    assert table["text"].to_pylist()[5] == "lone ?"


def test_text_that_is_not_utf8_in_parquet_is_repaired_and_an_error(model: str, tmp_path: Path) -> None:
    raw = pa.array([b"good", b"bad \xff", None, b"fine"])
    column = pa.Array.from_buffers(pa.string(), 4, raw.buffers())
    pq.write_table(pa.table({"text": column}), tmp_path / "in.parquet")
    pq.write_table(pa.table({"text": raw}), tmp_path / "bytes.parquet")
    bertie.bulk("embed", tmp_path / "in.parquet", tmp_path / "out", model)
    table = answers(tmp_path / "out")
    assert table["text"].to_pylist() == ["good", "bad \ufffd", None, "fine"]
    assert [error and error.partition("row ")[2] for error in table["error"].to_pylist()] == [
        None, "2: the column 'text' is not UTF-8: byte 0xff at 5", "3: the column 'text' is empty", None
    ]  # fmt: skip
    bertie.bulk("embed", tmp_path / "bytes.parquet", tmp_path / "out2", model)
    assert answers(tmp_path / "out2")["error"].is_valid().to_pylist() == [False, True, True, False]


def test_texts_too_long_are_cut_and_counted_or_errors(model: str, tmp_path: Path) -> None:
    file = jsonl_file(tmp_path / "rows.jsonl", [{"text": text} for text in ("short", "dog " * 100, "fox")])
    report = bertie.bulk("embed", file, tmp_path / "out", model)
    assert (report.truncated, report.errors) == (1, 0)
    report = bertie.bulk("embed", file, tmp_path / "refused", model, long="error")
    assert (report.truncated, report.errors) == (0, 1)
    table = answers(tmp_path / "refused")
    assert "row 2: The text that begins with" in table["error"].to_pylist()[1]
    np.testing.assert_array_equal(
        np.stack([table["embedding"][place].as_py() for place in (0, 2)]).astype(np.float32),
        bertie.embed(["short", "fox"], model=model),
    )


def test_strict_stops_at_the_first_bad_row_with_file_and_row(model: str, tmp_path: Path) -> None:
    file = jsonl_file(tmp_path / "rows.jsonl", [{"text": "fine"}, {"text": None}])
    with pytest.raises(DataError, match=r"rows.jsonl, row 2: the column 'text' is empty") as caught:
        bertie.bulk("embed", file, tmp_path / "out", model, strict=True)
    assert "strict" in str(caught.value.remedy)
    assert bertie.bulk("embed", file, tmp_path / "out", model).errors == 1  # the same job, and it goes on


def test_a_piece_that_always_fails_is_set_aside_and_the_others_done(
    model: str, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: Any
) -> None:
    actual, tried = work.Worker._start, []

    def start(self: work.Worker, number: int, tick: Any) -> Any:
        tried.append(number)
        if number == 1:
            raise RuntimeError("CUDA error: an illegal memory access")
        return actual(self, number, tick)

    with monkeypatch.context() as patched:
        patched.setattr(work.Worker, "_start", start)
        report = bertie.bulk("embed", texts, tmp_path / "out", model, piece_rows=90)
    assert tried == [0, 1, 1, 1, 2, 3, 4]
    ((piece, reason),) = report.set_aside.items()
    assert piece.startswith("piece 1: ")
    assert "illegal memory access" in reason
    assert (report.pieces_done, report.computed) == (4, 4)
    assert bertie.bulk("embed", texts, tmp_path / "out", model, piece_rows=90).computed == 1
    check_whole(tmp_path / "out", wanted)


@pytest.mark.parametrize("place", ["__init__", "write_table", "close"])
def test_a_full_disk_stops_the_job_and_loses_nothing(
    model: str, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: Any, place: str
) -> None:
    actual, calls = getattr(pq.ParquetWriter, place), 0

    def full(self: Any, *arguments: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return actual(self, *arguments, **more)

    with monkeypatch.context() as patched:
        patched.setattr(pq.ParquetWriter, place, full)
        with pytest.raises(DataError, match="cannot be written: No space left"):
            bertie.bulk("embed", texts, tmp_path / "out", model, piece_rows=90)
    assert len(list((tmp_path / "out").glob("*.parquet"))) == 2
    assert not list((tmp_path / "out").glob("*.part"))
    assert bertie.bulk("embed", texts, tmp_path / "out", model, piece_rows=90).computed == 3
    check_whole(tmp_path / "out", wanted)


def test_a_disk_too_full_for_the_account_still_says_which_part_it_met_first(
    model: str, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: Any
) -> None:
    def full(*arguments: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    bertie.bulk("embed", texts, tmp_path / "out", model, piece_rows=90)
    (tmp_path / "out" / "part-000003.parquet").unlink()
    with monkeypatch.context() as patched:
        patched.setattr("bertie.bulk.stores.replace_file", full)
        patched.setattr("bertie.bulk.work.new_file", full)
        with pytest.raises(DataError, match=r"part-000003\.parquet: cannot be written: No space left") as caught:
            bertie.bulk("embed", texts, tmp_path / "out", model, piece_rows=90)
    assert "it continues" in str(caught.value.remedy)
    assert bertie.bulk("embed", texts, tmp_path / "out", model, piece_rows=90).computed == 1
    check_whole(tmp_path / "out", wanted)


def test_answers_that_cannot_be_written_set_their_piece_aside(
    model: str, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: Any
) -> None:
    actual, tables = pq.ParquetWriter.write_table, 0

    def fails(self: Any, *arguments: Any, **more: Any) -> Any:
        nonlocal tables
        tables += 1
        if tables == 2:
            raise pa.ArrowInvalid("out of range")
        return actual(self, *arguments, **more)

    with monkeypatch.context() as patched:
        patched.setattr(pq.ParquetWriter, "write_table", fails)
        report = bertie.bulk("embed", texts, tmp_path / "out", model, piece_rows=90)
    assert list(report.set_aside.values()) == ["ArrowInvalid: out of range"]
    assert report.pieces_done == 4
    assert bertie.bulk("embed", texts, tmp_path / "out", model, piece_rows=90).computed == 1
    check_whole(tmp_path / "out", wanted)


def test_a_piece_whose_last_rows_cannot_be_written_is_not_published_without_them(
    model: str, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: Any
) -> None:
    """Its error comes when the whole piece has been computed, and the file is about to be kept."""
    actual = work.Worker._written

    def fails(self: work.Worker, asked: Any, answers: Any) -> pa.RecordBatch:
        if asked.batch.file.name.endswith("2.parquet"):
            time.sleep(0.2)  # the main thread is at the end of the piece, and has asked for the file
            raise pa.ArrowInvalid("out of range")
        return actual(self, asked, answers)

    with monkeypatch.context() as patched:
        patched.setattr(work.Worker, "_written", fails)
        report = bertie.bulk("embed", texts, tmp_path / "out", model)
    assert list(report.set_aside.values()) == ["ArrowInvalid: out of range"]
    assert not list((tmp_path / "out").glob("*.parquet"))
    assert bertie.bulk("embed", texts, tmp_path / "out", model).rows == 400
    check_whole(tmp_path / "out", wanted)


def test_a_file_damaged_since_the_job_began_sets_its_pieces_aside(model: str, texts: Path, tmp_path: Path) -> None:
    prepared = prepare("embed", texts, tmp_path / "out", model, piece_rows=90)
    damaged = texts / "2.parquet"
    damaged.write_bytes(b"PAR1" + bytes(damaged.stat().st_size - 4))
    report = run(prepared)
    assert report.pieces_done
    assert report.pieces_done + len(report.set_aside) == report.pieces
    assert all("2.parquet: cannot be read as parquet" in reason for reason in report.set_aside.values())


def test_the_plan_says_what_would_be_done_and_writes_nothing(model: str, texts: Path, tmp_path: Path) -> None:
    prepared = prepare("embed", texts, tmp_path / "out", model, piece_rows=90)
    assert (len(prepared.left), prepared.rows_left, prepared.is_new) == (5, 400, True)
    assert not (tmp_path / "out").exists()


def test_the_module_may_be_called_whatever_was_imported_first(model: str, texts: Path, tmp_path: Path) -> None:
    import bertie.bulk as module

    assert module("embed", texts, tmp_path / "out", model).rows == 400  # type: ignore[operator]


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "a task that there is not": ({"task": "embedd"}, "task='embedd' is not known"),
    "a setting of another task": ({"top_k": 3}, "embed has no setting 'top_k'"),
    "no such input": ({"input": "nowhere.jsonl"}, "there is no such file or folder"),
    "a pattern that matches nothing": ({"input": "*.arrow"}, "no file matches"),
    "a format that cannot be cut": ({"input": "rows.json"}, "json cannot be read in pieces"),
    "files without rows": ({"input": "none.csv"}, "none.csv: there are no rows"),
    "no such column": ({"column": "txet"}, "there is no column 'txet'"),
    "two columns for one text": ({"columns": ("id", "text")}, "embed reads one column"),
    "a column of numbers": ({"column": "id"}, "'id' should be text, and is int64"),
    "the output inside the input": ({"output": "texts/out"}, "which is inside the input"),
    "the output where a pattern finds it": ({"input": "texts/**/*.parquet", "output": "texts/out"}, "inside the input"),
    "a file as the output": ({"output": "rows.json"}, "rows.json is a file"),
    "an output that cannot be made": ({"output": "rows.json/out"}, "rows.json/out/_job: cannot be written: Not a dir"),
    "Ray's settings without Ray": ({"gpus_per_worker": 1}, "gpus_per_worker=1 is for Ray's workers"),
    "vectors that need all vectors": ({"precision": "int8"}, "precision='int8' needs the least and greatest"),
    "a model that is not there": ({"model": "./no-model"}, "no-model"),
}


@pytest.mark.parametrize(("changes", "said"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_refused_with_cause_and_remedy(
    model: str, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.json").write_text("[]")
    (tmp_path / "none.csv").write_text("id,text\n")
    asked = {"task": "embed", "input": "texts", "output": "out", "model": model} | changes
    with pytest.raises(BertieError) as caught:
        bertie.bulk(**asked)
    assert said in caught.value.cause
    assert caught.value.remedy
    assert not list(tmp_path.glob("out/*.parquet"))


def test_columns_named_as_answers_are_refused_and_a_prefix_helps(model: str, tmp_path: Path) -> None:
    file = jsonl_file(tmp_path / "rows.jsonl", [{"text": "a", "embedding": 1, "error": "none"}])
    with pytest.raises(DataError, match=r"column 'embedding', and the answers would have one too") as caught:
        bertie.bulk("embed", file, tmp_path / "out", model)
    assert caught.value.settings == {"prefix": "bertie_"}
    bertie.bulk("embed", file, tmp_path / "out", model, prefix="bertie_")
    names = answers(tmp_path / "out").column_names
    assert names == ["text", "embedding", "error", "bertie_embedding", "bertie_error"]


def test_without_ray_a_cluster_is_refused_with_what_to_install(
    model: str, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"pip install 'bertie\[ray\]'"):
        bertie.bulk("embed", texts, tmp_path / "out", model, ray="auto")


def test_a_cluster_that_does_not_answer_is_said_at_once(model: str, texts: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'bertie[ray]'")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # and nobody listens
        address = f"127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(DataError, match=rf"finds no Ray cluster at '{address}': .*Connection refused") as caught:
            bertie.bulk("embed", texts, tmp_path / "out", model, ray=address)
    assert "ray start --head" in str(caught.value.remedy)


def test_a_model_that_changed_on_the_way_is_refused(model: str, texts: Path, tmp_path: Path) -> None:
    prepared = prepare("embed", texts, tmp_path / "out", model)
    other = tiny_sentence_model(tmp_path / "other", seed=3)
    changed = replace(prepared, job=replace(prepared.job, model=other))
    with pytest.raises(BertieError, match="is not the one that the job began with"):
        run(changed)
    missing = replace(prepared, job=replace(prepared.job, model=str(tmp_path / "gone")), output=str(tmp_path / "out2"))
    with pytest.raises(BertieError, match="Every machine needs the model"):
        run(missing)


def test_the_account_is_behind_the_parts_and_never_ahead(model: str, texts: Path, tmp_path: Path) -> None:
    bertie.bulk("embed", texts, tmp_path / "out", model, piece_rows=90)
    account = json.loads((tmp_path / "out" / "_job" / "done.json").read_text())
    sizes = {f"{number}": (tmp_path / "out" / f"part-{number:06d}.parquet").stat().st_size for number in range(5)}
    assert {piece: values[-1] for piece, values in account["pieces"].items()} == sizes
    with pytest.raises(InputError, match="workers"):
        bertie.bulk("embed", texts, tmp_path / "out", model, workers=0)


def test_a_ray_worker_s_error_comes_back_whole_and_is_spelled_where_it_is_read() -> None:
    error = DataError("Row 2 is empty.", "Run without {strict}, or name another {output}.", strict=True, output=...)
    with pytest.raises(work.JobStopped) as caught:
        _report(json.loads(_said(error)), Progress(1))
    came = caught.value.error
    assert (came.sentences, came.settings, str(came)) == (error.sentences, error.settings, str(error))
