"""From names to pieces: what is found, one schema for all files, and every row in exactly one piece."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertie.bulk.inputs import InputFile, Reading, common_schema, cut, find_files, look_at
from bertie.bulk.reading import Batch, read_piece
from bertie.errors import DataError
from bulk_jobs import jsonl_file, parquet_files, some_texts

ROWS = [{"text": text, "n": number} for number, text in enumerate(some_texts(150))]


def read(names: list[Path], piece_rows: int, reading: Reading | None = None) -> list[list[Batch]]:
    """Every piece's batches."""
    reading = reading or Reading()
    files = find_files([str(name) for name in names])
    looks = look_at(files, reading)
    schema = common_schema(files, looks)
    return [list(read_piece(files, piece, schema, reading)) for piece in cut(files, looks, piece_rows)]


def rows_of(pieces: list[list[Batch]]) -> list[dict[str, Any]]:
    return [row for piece in pieces for batch in piece for row in batch.rows.to_pylist()]


def written(folder: Path, kind: str) -> Path:
    path = folder / f"rows.{kind}"
    if kind == "jsonl":
        jsonl_file(path, ROWS)
    elif kind == "jsonl.gz":
        path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in ROWS).encode()))
    elif kind in ("csv", "tsv"):
        with path.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream, delimiter="," if kind == "csv" else "\t", lineterminator="\n")
            writer.writerow(["text", "n"])
            writer.writerows(row.values() for row in ROWS)
    elif kind == "parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), path, row_group_size=37)
    elif kind == "arrow":
        with pa.ipc.new_stream(path, pa.Table.from_pylist(ROWS).schema) as stream:
            stream.write_table(pa.Table.from_pylist(ROWS), max_chunksize=41)
    else:
        with pa.ipc.new_file(path, pa.Table.from_pylist(ROWS).schema) as file:
            file.write_table(pa.Table.from_pylist(ROWS), max_chunksize=41)
    return path


@pytest.mark.parametrize("kind", ["parquet", "arrow", "feather", "jsonl", "jsonl.gz", "csv", "tsv"])
@pytest.mark.parametrize("piece_rows", [1, 7, 64, 10**6])
def test_every_row_is_in_one_piece_in_every_format(tmp_path: Path, kind: str, piece_rows: int) -> None:
    pieces = read([written(tmp_path, kind)], piece_rows)
    wanted = [row if kind not in ("csv", "tsv") else {**row, "n": str(row["n"])} for row in ROWS]
    assert rows_of(pieces) == wanted
    assert len(pieces) == 1 if kind == "jsonl.gz" or piece_rows > 150 else len(pieces) > 1
    assert not any(batch.errors for piece in pieces for batch in piece)


def test_pieces_of_parquet_have_the_rows_asked_for_across_files_and_row_groups(tmp_path: Path) -> None:
    pieces = read([parquet_files(tmp_path / "in", some_texts(400), files=5)], 90)
    assert [sum(batch.rows.num_rows for batch in piece) for piece in pieces] == [90, 90, 90, 90, 40]
    assert [row["id"] for row in rows_of(pieces)] == list(range(400))
    places = [batch.where(0).rpartition("in/")[2] for piece in pieces for batch in piece]
    assert places[0] == "0.parquet, row 1"
    assert len(set(places)) == len(places)


CELLS = st.lists(st.sampled_from(['"', ",", "\n", "\r\n", "a", "é", " ", "'"]), max_size=6).map("".join)


@given(st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=30), st.integers(1, 7))
def test_csv_is_cut_where_its_rows_begin_whatever_is_quoted(rows: list[tuple[str, str]], size: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.csv"
        text = io.StringIO(newline="")
        csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows([("text", "n"), *rows])
        path.write_bytes(text.getvalue().encode())
        assert [tuple(row.values()) for row in rows_of(read([path], size))] == rows


LINES = st.lists(st.text(alphabet="ab é", max_size=9), min_size=1, max_size=40)


@given(LINES, st.integers(1, 9), st.booleans())
def test_lines_are_cut_at_any_byte(lines: list[str], size: int, ended: bool) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.txt"
        path.write_bytes(("\n".join(lines) + ("\n" if ended or not lines[-1] else "")).encode())
        assert [row["text"] for row in rows_of(read([path], size))] == lines


def test_small_files_share_pieces(tmp_path: Path) -> None:
    for number in range(20):
        jsonl_file(tmp_path / f"{number:02d}.jsonl", ROWS[number * 5 : number * 5 + 5])
    pieces = read([tmp_path], 50)
    assert len(pieces) <= 4
    assert rows_of(pieces) == ROWS[:100]


def test_folders_patterns_and_files_are_found_each_once(tmp_path: Path) -> None:
    folder = parquet_files(tmp_path / "in", some_texts(30))
    jsonl_file(folder / "x.jsonl", ROWS[:2])
    (folder / "_hidden").mkdir()
    (folder / "_hidden" / "9.parquet").write_bytes(b"")
    (folder / "README.md").write_text("not data")
    (folder / "deep").mkdir()
    (folder / "0.parquet").rename(folder / "deep" / "0.parquet")

    def names(*given: str) -> list[str]:
        return [str(Path(file.name).relative_to(folder)) for file in find_files([str(folder / one) for one in given])]

    assert names(".") == ["1.parquet", "2.parquet", "deep/0.parquet", "x.jsonl"]
    assert names("*.parquet") == ["1.parquet", "2.parquet"]
    assert names("**/*.parquet") == ["1.parquet", "2.parquet", "deep/0.parquet"]
    assert names("[2-9].parquet", "?.parquet", "x.jsonl") == ["2.parquet", "1.parquet", "x.jsonl"]


def test_a_file_named_like_a_pattern_is_that_file(tmp_path: Path) -> None:
    for name in ("rows [1].txt", "rows 1.txt"):
        (tmp_path / name).write_text("text\n")
    assert [Path(file.name).name for file in find_files([str(tmp_path / "rows [1].txt")])] == ["rows [1].txt"]
    assert [Path(file.name).name for file in find_files([str(tmp_path / "rows [12].txt")])] == ["rows 1.txt"]


def test_a_file_that_cannot_be_read_is_named_before_any_work(tmp_path: Path) -> None:
    folder = parquet_files(tmp_path / "in", some_texts(30), files=8)
    (folder / "5.parquet").write_bytes(b"PAR1 and nothing")
    with pytest.raises(DataError, match=r"5.parquet: cannot be read as parquet") as caught:
        read([folder], 10)
    assert "leave it out" in str(caught.value.remedy)


def test_columns_and_types_that_differ_between_files_are_named(tmp_path: Path) -> None:
    tables = {
        "a": pa.table({"text": ["x"], "n": pa.array([1], pa.int32())}),
        "b": pa.table({"text": ["y"], "n": pa.array([2], pa.int64())}),
        "c": pa.table({"text": ["z"], "n": ["three"]}),
        "d": pa.table({"text": ["z"]}),
    }
    for name, table in tables.items():
        pq.write_table(table, tmp_path / f"{name}.parquet")
    places = {name: tmp_path / f"{name}.parquet" for name in tables}
    assert rows_of(read([places["a"], places["b"]], 10)) == [{"text": "x", "n": 1}, {"text": "y", "n": 2}]
    with pytest.raises(DataError, match=r"c.parquet: the column 'n' is string, and in files before it int32"):
        read([places["a"], places["c"]], 10)
    with pytest.raises(DataError, match=r"a.parquet has a column 'n', and .*d.parquet has none"):
        read([places["a"], places["d"]], 10)


@pytest.mark.parametrize("kind", ["csv", "tsv"])
@pytest.mark.parametrize("piece_rows", [1, 3, 10**6])
def test_columns_are_those_of_their_own_header_whatever_their_order(tmp_path: Path, kind: str, piece_rows: int) -> None:
    mark = "," if kind == "csv" else "\t"
    tables = {"0": ["id text", "1 a", "2 b"], "1": ["text id", "c 3", "d 4"], "2": ["id text"], "3": ["id text", "5 e"]}
    for name, lines in tables.items():
        (tmp_path / f"{name}.{kind}").write_text("".join(line.replace(" ", mark) + "\n" for line in lines))
    pieces = read([tmp_path], piece_rows)
    assert rows_of(pieces) == [{"id": str(n + 1), "text": "abcde"[n]} for n in range(5)]
    assert not any(batch.errors for piece in pieces for batch in piece)


def test_rows_of_a_csv_file_are_numbered_from_the_first_after_its_header(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_bytes(b"id,text\n1,a\n2,caf\xe9\n3,b\n")
    for piece_rows in (2, 100):
        pieces = read([tmp_path / "rows.csv"], piece_rows)
        (where,) = [batch.where(place) for piece in pieces for batch in piece for place in batch.errors]
        assert where == f"{tmp_path}/rows.csv, row 2"


def test_views_are_read_as_what_they_look_at(tmp_path: Path) -> None:
    views = {"text": pa.array(["a", None], pa.string_view()), "raw": pa.array([b"x", b"y"], pa.binary_view())}
    pq.write_table(pa.table(views), tmp_path / "0.parquet")
    pq.write_table(pa.table({"text": ["b"], "raw": [b"z"]}), tmp_path / "1.parquet")
    (piece,) = read([tmp_path], 100)
    assert [field.type for field in piece[0].rows.schema] == [pa.string(), pa.binary()]
    assert [row["text"] for row in rows_of([piece])] == ["a", None, "b"]


def test_dictionary_columns_are_read_as_what_they_stand_for(tmp_path: Path) -> None:
    table = pa.table({"text": pa.array(["a", "b", "a"]).dictionary_encode(), "kind": [None, None, None]})
    pq.write_table(table, tmp_path / "in.parquet")
    (piece,) = read([tmp_path / "in.parquet"], 10)
    assert piece[0].rows.schema.types == [pa.string(), pa.string()]
    assert rows_of([piece])[2] == {"text": "a", "kind": None}


def test_a_field_that_comes_late_is_an_error_of_its_row_and_not_lost_silently(tmp_path: Path) -> None:
    rows = [{"text": f"row {number}"} for number in range(1500)]
    jsonl_file(tmp_path / "rows.jsonl", [*rows, {"text": "late", "extra": 1}])
    pieces = read([tmp_path / "rows.jsonl"], 500)
    assert sum(batch.rows.num_rows for piece in pieces for batch in piece) == 1501
    (error,) = [error for piece in pieces for batch in piece for error in batch.errors.values()]
    assert "'extra' is not among those of the first rows: text" in error


def test_other_encodings_are_read(tmp_path: Path) -> None:
    for encoding in ("utf-16", "latin-1"):
        path = tmp_path / f"{encoding}.csv"
        path.write_bytes("text;n\ncafé;1\nthé;2\n".encode(encoding))
        found = rows_of(read([path], 1, Reading(encoding, ";")))
        assert [row["text"] for row in found] == ["café", "thé"]


def test_where_pieces_begin_depends_on_the_files_alone(tmp_path: Path) -> None:
    names = [written(tmp_path, kind) for kind in ("jsonl", "jsonl.gz")]
    files = find_files([str(name) for name in names])
    cuts = [cut(files, look_at(files, Reading()), 40) for _ in range(3)]
    assert cuts[0] == cuts[1] == cuts[2]


def test_parquet_row_ranges_are_exact_at_every_border(tmp_path: Path) -> None:
    chance = random.Random(0)
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS), path, row_group_size=31)
    file = InputFile(str(path), path.stat().st_size, "parquet")
    from bertie.bulk.inputs import Piece, Span

    schema = pq.read_schema(path)
    for _ in range(40):
        start, stop = sorted(chance.sample(range(151), 2))
        batches = list(read_piece([file], Piece((Span(0, start, stop),), 0), schema, Reading()))
        assert [row["n"] for batch in batches for row in batch.rows.to_pylist()] == list(range(start, stop))
        assert batches[0].where(0).endswith(f"row {start + 1}")
