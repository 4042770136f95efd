"""Rows out of every format, however it is packed, and what is said about rows that are bad."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import sys
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertie.data import as_rows, read_rows
from bertie.data import source as source_module
from bertie.errors import DataError, MissingExtra

ROWS = [{"text": "one", "label": "1"}, {"text": 'two, "quoted"', "label": "0"}]


def values(path: Path | str, **options: Any) -> list[dict[str, Any]]:
    return [dict(row.values) for row in read_rows(path, **options)]


def put(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def pipe(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


CSV = 'text,label\none,1\n"two, ""quoted""",0\n'
CONTENTS = {
    "a.jsonl": "".join(json.dumps(row) + "\n" for row in ROWS),
    "a.json": json.dumps(ROWS, indent=1),
    "lines.json": "".join(json.dumps(row) + "\n" for row in ROWS),
    "a.csv": CSV,
    "a.tsv": 'text\tlabel\none\t1\ntwo, "quoted"\t0\n',
}


@pytest.mark.parametrize("name", CONTENTS)
@pytest.mark.parametrize(
    ("suffix", "pack"), [("", bytes), (".gz", gzip.compress), (".xz", lzma.compress), (".bz2", bz2.compress)]
)
def test_every_format_gives_the_same_rows_packed_or_not(
    tmp_path: Path, name: str, suffix: str, pack: Callable[[bytes], bytes]
) -> None:
    assert values(put(tmp_path, name + suffix, pack(CONTENTS[name].encode()))) == ROWS


@pytest.mark.parametrize("kind", ["parquet", "file", "stream"])
@pytest.mark.parametrize("packed", [False, True])
def test_parquet_and_both_arrow_layouts(tmp_path: Path, kind: str, packed: bool) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    table = pa.Table.from_pylist(ROWS * 1500)
    path = tmp_path / ("a.parquet" if kind == "parquet" else "a.arrow")
    if kind == "parquet":
        pq.write_table(table, path)
    else:
        new = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
        with new(str(path), table.schema) as out:
            out.write_table(table)
    if packed:
        path = put(tmp_path, path.name + ".gz", gzip.compress(path.read_bytes()))
    assert values(path) == ROWS * 1500
    assert [row.where for row in read_rows(path)][2999] == f"{path}, row 3000"


def test_txt_keeps_blank_lines_and_numbers(tmp_path: Path) -> None:
    path = put(tmp_path, "a.txt", "one\n\nthree")
    assert [(row["text"], row.line) for row in read_rows(path)] == [("one", 1), ("", 2), ("three", 3)]


def test_mark_and_carriage_returns_are_not_text(tmp_path: Path) -> None:
    for name, content in CONTENTS.items():
        if name != "lines.json":
            path = put(tmp_path, name, b"\xef\xbb\xbf" + content.replace("\n", "\r\n").encode())
            assert values(path) == ROWS, name


def test_lines_end_at_line_feeds_only(tmp_path: Path) -> None:
    text = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\0"
    path = put(tmp_path, "a.jsonl", json.dumps({"text": text}, ensure_ascii=False) + "\n" + '"b"\n')
    # A raw NUL is not allowed inside a JSON string; json escapes it.
    assert values(path) == [{"text": text}, {"text": "b"}]
    assert values(put(tmp_path, "a.txt", text + "\nz\n")) == [{"text": text}, {"text": "z"}]
    assert values(put(tmp_path, "a.csv", f"text\n{text}\n")) == [{"text": text}]


@pytest.mark.parametrize("delimiter", ["", ";;", '"', "\n"])
def test_a_delimiter_is_one_character(tmp_path: Path, delimiter: str) -> None:
    with pytest.raises(DataError, match=r"cannot separate the columns[\s\S]*one character"):
        values(put(tmp_path, "a.csv", "a;b\n1;2\n"), delimiter=delimiter)


def test_only_lines_that_can_be_left_out_are_said_to_be(tmp_path: Path) -> None:
    for name, can_skip in (("a.txt", True), ("a.json", False)):
        with pytest.raises(DataError, match="encoding='latin-1'") as caught:
            values(put(tmp_path, name, b'["gr\xfc\xdfe"]'))
        assert ("skip_bad" in str(caught.value)) is can_skip


def test_other_encodings(tmp_path: Path) -> None:
    for encoding in ("utf-16", "utf-16-le", "utf-32", "latin-1"):
        path = put(tmp_path, "a.csv", CSV.replace("one", "öne").encode(encoding))
        assert values(path, encoding=encoding)[0]["text"] == "öne"
    with pytest.raises(DataError, match=r"looks like UTF-16[\s\S]*encoding='utf-16'"):
        values(put(tmp_path, "a.csv", CSV.encode("utf-16")))
    with pytest.raises(DataError, match="looks like UTF-16"):
        values(put(tmp_path, "a.csv", CSV.encode("utf-16-le")))
    with pytest.raises(DataError, match="encoding='utf-9' is not one"):
        values(path, encoding="utf-9")
    with pytest.raises(DataError, match="is not utf-16"):
        values(put(tmp_path, "a.txt", b"\xff\xfea\0b"), encoding="utf-16")


def test_standard_input_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    for content, wanted in [
        (b"plain, text\n", [{"text": "plain, text"}]),
        (b"[MASK] is\n", [{"text": "[MASK] is"}]),
        (b'{"text": "x"}\n', [{"text": "x"}]),
        (b'[{"text": "x"}]', [{"text": "x"}]),
        (gzip.compress(b"packed\n", mtime=0), [{"text": "packed"}]),
        (b"", []),
    ]:
        pipe(monkeypatch, content)
        assert values("-") == wanted
    pipe(monkeypatch, CSV.encode())
    reader = read_rows("-", format="csv")
    assert [dict(row.values) for row in reader] == ROWS
    with pytest.raises(DataError, match="can be read only once"):
        list(reader)
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(DataError, match="standard input: there is none"):
        values("-")


def test_a_file_can_be_read_again(tmp_path: Path) -> None:
    reader = read_rows(put(tmp_path, "a.jsonl", '{"text": "a"}\nnot\n'), skip_bad=True)
    for _ in range(2):
        assert len(list(reader)) == 1
        assert reader.bad.count == 1


BAD = [
    ("a.jsonl", '{"a": 1}\n{"a": \n', r"a.jsonl, line 2: not JSON: Expecting value at column 7"),
    ("a.jsonl", '{"a": 1}\n[1]\n', r"line 2: expected an object like .* got list"),
    ("a.jsonl", '{"a": 1}\n' + "[" * 100_000 + "\n", r"line 2: (JSON nested too deeply|not JSON)"),
    ("a.jsonl", '{"a": 1}\n{"a": ' + "9" * 5000 + "}\n", r"line 2: not JSON that can be read"),
    ("a.json", '[{"a": 1}, 3]', r"item 2: expected an object"),
    ("a.csv", "a,b\n1,2\n1,2,3\n", r"a.csv, line 3: 3 columns; expected 2 \(a, b\)"),
    ("a.csv", 'a,b\n1,2\n"1"x,2\n', r"line 3: not csv"),
    ("a.csv", 'a,b\n1,2\n"1,2\n3,4\n', r"line 3 to 4: not csv: unexpected end of data"),
    ("a.tsv", "a\tb\n1\t2\n1\n", r"a.tsv, line 3: 1 columns; expected 2"),
    ("a.txt", b"fine\nna\xefve\n", r"a.txt, line 2: byte 0xef at 3 is not utf-8"),
    ("a.csv", b"a,b\n1,2\n\xff,2\n", r"a.csv, line 3: byte 0xff"),
]


@pytest.mark.parametrize(("name", "content", "message"), BAD)
def test_bad_rows_are_named_or_counted(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    path = put(tmp_path, name, content)
    with pytest.raises(DataError, match=message) as caught:
        list(read_rows(path))
    assert caught.value.remedy
    reader = read_rows(path, skip_bad=True)
    assert len(list(reader)) == 1
    assert reader.bad.count == 1
    assert reader.bad.summary().startswith("1 bad row skipped; the first: ")


HOPELESS = [
    ("a.csv", "", r"a.csv: is empty: not even a header"),
    ("a.json", "", r"a.json: is empty"),
    ("a.json", '{"a": 1}', r"expected a list of objects, got an object with the keys 'a'"),
    ("a.json", '{"a": 1\n}x', r"not JSON: Extra data at line 2"),
    ("a.json", '{"data": [{"paragraphs": []}]}', r"read_squad"),
    ("a.csv", b"a,\xff\n1,2\n3,4\n", r"the header line cannot be read: .*a.csv, line 1: byte 0xff"),
    ("a.csv", "a,a\n1,2\n", r"two columns are called 'a'"),
    ("a.csv", "a;b\n1;2\n", r"delimiter=';'"),
    ("a.txt.gz", b"plain", r"is named .gz, but does not begin like a gzip file"),
    ("a.txt.gz", b"", r"is named .gz, but is empty"),
    ("a.txt.gz", gzip.compress(b"some text\n" * 1000, mtime=0)[:-12], r"cannot be read to its end"),
    ("a.txt.xz", lzma.compress(b"some text\n" * 1000)[:-12], r"cannot be read to its end"),
    ("a.txt.bz2", bz2.compress(b"some text\n" * 1000)[:-12], r"cannot be read to its end"),
    ("a.csv", b"PK\x03\x04rest", r"a zip archive"),
    ("a.csv", b"\x28\xb5\x2f\xfdrest", r"zstd"),
    ("a.parquet", b"PAR1 and then nothing", r"cannot be read as parquet"),
    ("a.arrow", b"ARROW1 and then nothing", r"cannot be read as arrow"),
    ("a.feather", b"FEA1", r"feather of version 1"),
    ("a.dat", "text", r"format cannot be recognized[\s\S]*Give it with format=: one of txt"),
]


@pytest.mark.parametrize(("name", "content", "message"), HOPELESS)
def test_files_that_cannot_be_read_at_all(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    if name.endswith(("parquet", "arrow", "feather")):
        pytest.importorskip("pyarrow")
    path = put(tmp_path, name, content)
    with pytest.raises(DataError, match=message) as caught:
        list(read_rows(path, skip_bad=True))
    assert caught.value.remedy


def test_empty_and_header_only_files(tmp_path: Path) -> None:
    assert values(put(tmp_path, "a.txt", "")) == []
    assert values(put(tmp_path, "a.jsonl", "\n\n")) == []
    assert values(put(tmp_path, "a.csv", "text,label\n")) == []
    assert values(put(tmp_path, "b.csv", "text,label\n\na,b\n\n")) == [{"text": "a", "label": "b"}]
    assert values(put(tmp_path, "c.tsv", "text\n\na\n")) == [{"text": ""}, {"text": "a"}]


def test_paths_that_lead_nowhere(tmp_path: Path) -> None:
    put(tmp_path, "train.jsonl", "")
    for path, message in [
        (tmp_path / "trian.jsonl", r"no such file\.\nDid you mean .*train.jsonl\?"),
        (tmp_path / "zzz.csv", r"nothing of a similar name"),
        (tmp_path / "no" / "such" / "a.csv", r"There is no folder .*/no either"),
        (tmp_path, r"a folder, not a file\.\nName a file in it: train.jsonl"),
        (tmp_path / "train.jsonl" / "x.csv", r"no such file"),
        ("https://example.org/a.csv", r"Bertie reads only files"),
        ("a\0b.csv", r"cannot be opened"),
        (str(tmp_path / ("x" * 300)), r"cannot be opened"),
    ]:
        with pytest.raises(DataError, match=message):
            read_rows(path)
    with pytest.raises(DataError, match="format='xlsx' is not known"):
        read_rows(tmp_path / "train.jsonl", format="xlsx")


def test_permission_denied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path, "a.txt", "x")
    # Whoever runs the tests as root may read everything; the answer of the system is put in its mouth.
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(DataError, match="permission denied"):
        read_rows(path)


def test_endless_lines_are_refused_and_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "MAX_LINE_BYTES", 2**20)
    path = put(tmp_path, "a.txt", b"one\n" + b"x" * (3 * 2**20) + b"\nthree\n")
    with pytest.raises(DataError, match=r"line 2: longer than 1 MB"):
        values(path)
    assert [row.line for row in read_rows(path, skip_bad=True)] == [1, 3]


def test_json_that_is_too_large_to_take_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertie.data.rows.MAX_JSON_BYTES", 2**20)
    with pytest.raises(DataError, match=r"a.json: larger than 1 MB[\s\S]*jsonl"):
        values(put(tmp_path, "a.json", " " * 2**20 + "[]"))


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    path = put(tmp_path, "a.jsonl.gz", gzip.compress((json.dumps({"text": "word " * 200}) + "\n").encode() * 20_000))
    tracemalloc.start()
    try:
        assert sum(1 for _ in read_rows(path)) == 20_000
        assert tracemalloc.get_traced_memory()[1] < 2 * 2**20
    finally:
        tracemalloc.stop()


def test_long_csv_fields(tmp_path: Path) -> None:
    long = "word " * 100_000
    assert values(put(tmp_path, "a.csv", f'text\n"{long}"\n')) == [{"text": long}]


def test_columns_without_header_and_other_delimiters(tmp_path: Path) -> None:
    assert values(put(tmp_path, "a.tsv", "1\tx\n"), columns=("id", "text")) == [{"id": "1", "text": "x"}]
    assert values(put(tmp_path, "a.csv", "a;b\n1;2\n"), delimiter=";") == [{"a": "1", "b": "2"}]


def test_pyarrow_is_asked_for_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"bertie\[data\]"):
        values(put(tmp_path, "a.parquet", b"PAR1"))


@given(st.binary(max_size=200), st.sampled_from(["txt", "jsonl", "json", "csv", "tsv", "arrow", "parquet"]))
def test_any_bytes_give_rows_or_a_data_error(tmp_path_factory: pytest.TempPathFactory, data: bytes, kind: str) -> None:
    path = tmp_path_factory.getbasetemp() / f"any.{kind}"
    path.write_bytes(data)
    for skip_bad in (True, False):
        with suppress(DataError, MissingExtra):
            list(read_rows(path, skip_bad=skip_bad))


def test_one_percent_bad_rows(tmp_path: Path) -> None:
    lines = ["{broken" if number % 100 == 42 else json.dumps({"text": str(number)}) for number in range(1, 2001)]
    path = put(tmp_path, "a.jsonl", "\n".join(lines))
    with pytest.raises(DataError, match=r"a.jsonl, line 42: "):
        values(path)
    reader = read_rows(path, skip_bad=True)
    assert len(list(reader)) == 1980
    assert reader.bad.count == 20
    assert len(reader.bad.first) == 10


class Table:
    """What pandas shows of itself."""

    columns = ("text", "label")

    def itertuples(self, *, index: bool, name: str | None) -> list[tuple[str, str]]:
        return [("one", "1"), ('two, "quoted"', "0")]

    def __iter__(self) -> Any:
        return iter(self.columns)


def test_objects_as_rows() -> None:
    columnar = {"text": ["one", 'two, "quoted"'], "label": ["1", "0"]}
    for given_rows in (ROWS, iter(ROWS), columnar, Table(), as_rows(ROWS)):
        assert [dict(row.values) for row in as_rows(given_rows)] == ROWS
    pa = pytest.importorskip("pyarrow")
    reader = as_rows(pa.Table.from_pylist(ROWS))
    assert [dict(row.values) for row in reader] == [dict(row.values) for row in reader] == ROWS


def test_objects_that_are_no_rows() -> None:
    split = type("Split", (), {"column_names": ["text"]})()
    for thing, message in [
        ("train.csv", "is one string"),
        (3, "Rows must be iterable, and int is not"),
        ({"text": "one"}, r"One dict of single values[\s\S]*\[row\]"),
        ({"a": [1], "b": []}, "different lengths: a 1, b 0"),
        ({"train": split, "test": split}, r"train, test[\s\S]*\['train'\]"),
        ([3], "item 1: int is not a row"),
    ]:
        with pytest.raises(DataError, match=message):
            list(as_rows(thing))
    generator = as_rows(text for text in ["a"])
    assert len(list(generator)) == 1
    with pytest.raises(DataError, match="only once"):
        iter(generator)
