"""What is written can be read again, appears whole or not at all, and never trips over a reader who has left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertie.data import RowWriter, plain, read_rows
from bertie.errors import DataError, MissingExtra

# Any character but the surrogates, which UTF-8 has no bytes for.
TEXT = st.text(st.characters(exclude_categories=("Cs",)))
ROWS = st.lists(st.fixed_dictionaries({"text": TEXT, "other": TEXT}), min_size=1, max_size=5)


def written(path: Path, rows: list[dict[str, Any]], **options: Any) -> list[dict[str, Any]]:
    with RowWriter(path, **options) as out:
        out.write_all(rows)
    return [dict(row.values) for row in read_rows(path)]


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.jsonl.gz", "a.csv.xz"])
@settings(max_examples=40)
@given(rows=ROWS)
def test_any_text_comes_back(tmp_path_factory: pytest.TempPathFactory, name: str, rows: list[dict[str, Any]]) -> None:
    assert written(tmp_path_factory.getbasetemp() / name, rows) == rows


@settings(max_examples=40)
@given(rows=ROWS)
def test_any_text_comes_back_from_tsv_on_one_line(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]]
) -> None:
    def flat(text: str) -> str:
        return text.replace("\r\n", " ").replace("\n", " ").replace("\r", " ").replace("\t", " ")

    flattened = [{name: flat(text) for name, text in row.items()} for row in rows]
    assert written(tmp_path_factory.getbasetemp() / "a.tsv", rows) == flattened


@settings(max_examples=40)
@given(value=st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=10,
))  # fmt: skip
def test_any_json_comes_back(tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
    assert written(tmp_path_factory.getbasetemp() / "b.jsonl", [{"value": value}]) == [{"value": value}]


def test_parquet_keeps_vectors_and_types(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    rows = [{"id": i, "vector": np.full(3, i, np.float32), "none": None, "list": [0.5]} for i in range(2500)]
    read = written(tmp_path / "a.parquet", rows)
    assert len(read) == 2500
    assert read[2000] == {"id": 2000, "vector": [2000.0] * 3, "none": None, "list": [0.5]}
    assert pq.read_schema(tmp_path / "a.parquet").field("vector").type == pa.list_(pa.float32())
    assert written(tmp_path / "b.parquet", [], columns=["a"]) == []
    with pytest.raises(DataError, match=r"the column 'a' has values of different types"):
        written(tmp_path / "c.parquet", [{"a": 1}, {"a": "x"}])
    with pytest.raises(DataError, match=r"the column 'a' has values that are not all int64"):
        written(tmp_path / "c.parquet", [{"a": 1}] * 1024 + [{"a": "x"}])
    assert not (tmp_path / "c.parquet").exists()


def test_parquet_columns_that_begin_empty_get_the_type_of_what_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    path = tmp_path / "a.parquet"
    empty: dict[str, Any] = {"spans": [], "start": None, "part": {"label": None}, "text": "x", "never": None}
    found = empty | {"spans": [{"label": "PER", "start": 3}]}
    later = empty | {"start": 7, "part": {"label": "b"}}
    rows = [empty] * 1030 + [found] + [empty] * 2000 + [later] + [empty] * 1500
    assert written(path, rows) == rows
    schema = pq.read_schema(path)
    assert (schema.field("start").type, schema.field("never").type) == (pa.int64(), pa.string())
    assert schema.field("spans").type.value_type == pa.struct([("label", pa.string()), ("start", pa.int64())])
    assert written(path, [empty] * 3) == [empty] * 3
    with pytest.raises(DataError, match=r"the column 'start' has values that are not all int64"):
        written(path, [empty] * 1030 + [{**empty, "start": 1}] + [empty] * 2000 + [{**empty, "start": "x"}])
    with pytest.raises(DataError, match=r"there are values of different types: .*part"):
        written(path, [{"part": {"a": None, "b": 1}}] * 1024 + [{"part": {"a": None, "b": "x"}}] * 1024)
    monkeypatch.setattr("bertie.data.arrow._HELD_BYTES", 1)
    with pytest.raises(DataError, match=r"the column 'start' has values that are not all string"):
        written(path, [empty] * 1030 + [later])


@dataclass(frozen=True)
class Span:
    start: int
    score: Any


def test_values_become_plain() -> None:
    given_values = {
        "i8": np.int8(3), "f": np.float32(0.5), "v": np.arange(3), "m": np.ones((1, 2)), "b": np.bool_(True),
        "vn": np.array([1.0, np.nan]),
        "nan": float("nan"), "inf": np.float64("inf"), "span": Span(1, np.float16(2)), "path": Path("a"), 3: {1},
    }  # fmt: skip
    assert json.loads(json.dumps(plain(given_values), allow_nan=False)) == {
        "i8": 3, "f": 0.5, "v": [0, 1, 2], "m": [[1.0, 1.0]], "b": True,
        "vn": [1.0, None],
        "nan": None, "inf": None, "span": {"start": 1, "score": 2.0}, "path": "a", "3": [1],
    }  # fmt: skip
    with pytest.raises(DataError, match="A value of type object cannot be written"):
        plain(object())


def test_vectors_in_csv_are_json(tmp_path: Path) -> None:
    (row,) = written(tmp_path / "a.csv", [{"v": np.array([1.0, 0.5]), "n": None, "b": True}])
    assert row == {"v": "[1.0, 0.5]", "n": "", "b": "true"}


def test_lone_surrogates_are_written(tmp_path: Path) -> None:
    assert written(tmp_path / "a.jsonl", [{"text": "a\ud800"}]) == [{"text": "a\ud800"}]
    assert written(tmp_path / "a.csv", [{"text": "a\ud800"}]) == [{"text": "a?"}]


def test_empty_outputs_are_valid(tmp_path: Path) -> None:
    assert written(tmp_path / "a.json", []) == []
    assert written(tmp_path / "a.jsonl", []) == []
    assert written(tmp_path / "a.csv", [], columns=["text"]) == []


def test_txt_is_one_text_to_a_line(tmp_path: Path) -> None:
    assert written(tmp_path / "a.txt", [{"text": "a\nb", "id": 1}, {"text": ""}]) == [{"text": "a b"}, {"text": ""}]
    with pytest.raises(DataError, match="one text per line, and the row has a, b"):
        written(tmp_path / "b.txt", [{"a": "x", "b": "y"}])


def test_a_failed_run_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("old")

    def interrupted() -> None:
        with RowWriter(path) as out:
            out.write({"text": "new"})
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    with pytest.raises(DataError):
        written(path, [{"text": object()}])
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.jsonl"]


KILLED = """
import os, sys, time
from bertie.data import RowWriter
if sys.argv[2] == "named":
    del os.O_TMPFILE
with RowWriter(sys.argv[1]) as out:
    for number in range(2000):
        out.write({"text": "x" * 100})
    print("ready", flush=True)
    sys.stdin.readline()
"""


def writer(path: Path, kind: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(path), kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate(timeout=60)


@pytest.mark.skipif(not hasattr(os, "O_TMPFILE"), reason="only Linux has files without names")
def test_a_killed_run_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("old")
    kill(writer(path, "nameless"))
    assert os.listdir(tmp_path) == ["a.jsonl"]
    assert path.read_text() == "old"


def test_what_killed_runs_left_is_removed_and_running_ones_stay(tmp_path: Path) -> None:
    """Where there are no files without names."""
    path = tmp_path / "a[1].jsonl"
    mine = tmp_path / ".a[1].jsonl.mine.part"
    mine.write_text("not ours")
    kill(writer(path, "named"))
    left = set(os.listdir(tmp_path)) - {mine.name}
    assert len(left) == 1
    running = writer(path, "named")
    assert not left & set(os.listdir(tmp_path)), "the dead run's part"
    written(path, [{"a": 1}])
    assert len(os.listdir(tmp_path)) == 3, "the part of the run that lives"
    running.communicate("go\n", timeout=60)
    assert running.returncode == 0
    assert len(path.read_text().splitlines()) == 2000
    assert sorted(os.listdir(tmp_path)) == sorted([mine.name, path.name])


def test_a_new_file_gets_the_usual_permissions(tmp_path: Path) -> None:
    written(tmp_path / "a.jsonl", [{"a": 1}])
    (tmp_path / "plain").write_text("")
    assert (tmp_path / "a.jsonl").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real.jsonl").write_text("")
    link = tmp_path / "link.jsonl"
    link.symlink_to("real.jsonl")
    assert written(link, [{"a": 1}]) == [{"a": 1}]
    assert link.is_symlink()


def test_packed_outputs_are_the_same_bytes_each_time(tmp_path: Path) -> None:
    for name in ("a.jsonl.gz", "b.jsonl.gz"):
        written(tmp_path / name, [{"a": 1}])
    assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()


def test_mistakes_in_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path, message in [
        (tmp_path / "no" / "a.jsonl", r"there is no folder .*\n.*mkdir -p"),
        (tmp_path, "format cannot be recognized|a folder"),
        (tmp_path / "a.dat", r"format cannot be recognized by its name\.[\s\S]*--format"),
        (tmp_path / "a.arrow", "arrow files are not written"),
    ]:
        with pytest.raises(DataError, match=message):
            RowWriter(path)
    with pytest.raises(DataError, match=r"row 2: a column 'b' that earlier rows do not have"):
        written(tmp_path / "a.csv", [{"a": 1}, {"a": 1, "b": 2}])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"bertie\[data\]"):
        RowWriter(tmp_path / "a.parquet")
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only some systems have a device that is always full")
def test_a_full_disk_is_a_data_error() -> None:
    def fill() -> None:
        with RowWriter("/dev/full", format="jsonl") as out:
            out.write_all([{"text": "x" * 10_000}] * 10)

    with pytest.raises(DataError, match="/dev/full: cannot be written: No space left"):
        fill()


def test_standard_output(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    with RowWriter("-", format="csv") as out:
        out.write({"text": "é", "n": 1})
        assert capfdbinary.readouterr().out == "text,n\né,1\n".encode()


def test_parquet_to_standard_output_and_full_disks(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    script = "from bertie.data import RowWriter\nwith RowWriter('-', format='parquet') as out: out.write({'n': 1})"
    piped = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    (tmp_path / "a.parquet").write_bytes(piped.stdout)
    assert [row["n"] for row in read_rows(tmp_path / "a.parquet")] == [1]
    if Path("/dev/full").exists():
        with (
            pytest.raises(DataError, match="/dev/full: cannot be written"),
            RowWriter("/dev/full", format="parquet") as out,
        ):
            out.write({"text": "x" * 1_000_000})


def test_a_reader_of_parquet_who_leaves_is_no_error() -> None:
    pytest.importorskip("pyarrow")
    script = (
        "from bertie.data import RowWriter\nimport sys\n"
        "with RowWriter('-', format='parquet') as out:\n"
        "    for n in range(5000): out.write({'n': n, 'text': str(n) * 100})\n"
        "print('gone', out.reader_gone, file=sys.stderr)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.read(3) == b"PAR"
    process.stdout.close()
    assert process.stderr.read() == b"gone True\n"
    process.stderr.close()
    assert process.wait(timeout=30) == 0


def test_a_reader_who_leaves_is_no_error() -> None:
    script = (
        "from bertie.data import RowWriter\nimport sys\n"
        "out = RowWriter('-')\n"
        "out.write_all({'n': n} for n in range(1_000_000))\n"
        "out.close()\n"
        "print('gone', out.reader_gone, out.count < 1_000_000, file=sys.stderr)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == b'{"n": 0}\n'
    process.stdout.close()
    assert process.stderr.read() == b"gone True True\n"
    process.stderr.close()
    assert process.wait(timeout=30) == 0


def test_nothing_here_needs_torch() -> None:
    script = "import sys, bertie.data; print('torch' in sys.modules or 'pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout == b"False\n"
