"""Bulk jobs from and to stores: one put for each part, where there is no rename; S3 over HTTP."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import bertie
from bertie.bulk.stores import NewObject, _through_pyarrow
from bertie.errors import DataError, InputError
from bulk_jobs import check_whole, stop_after
from s3_server import Bucket, served


class NoRename(MemoryFileSystem):
    """A store that puts and lists, and can rename nothing."""

    protocol = "norename"
    store: dict[str, Any] = {}  # noqa: RUF012  # fsspec's own way
    pseudo_dirs = [""]  # noqa: RUF012

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        stripped: str = super()._strip_protocol(path.replace("norename://", "memory://"))
        return stripped

    def mv(self, *arguments: Any, **more: Any) -> None:
        raise NotImplementedError("this store has no rename")

    mv_file = move = rename = mv


@pytest.fixture
def store() -> Iterator[MemoryFileSystem]:
    fsspec.register_implementation("norename", NoRename, clobber=True)
    yield fsspec.filesystem("norename")
    NoRename.store.clear()


def test_a_store_without_rename_gets_every_part_in_one_put(
    model: str, texts: Path, store: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch, wanted: Any, tmp_path: Path
) -> None:
    for file in texts.iterdir():
        store.pipe(f"/in/{file.name}", file.read_bytes())
    with monkeypatch.context() as patched:
        stop_after(patched, 2, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            bertie.bulk("embed", "norename://in/*.parquet", "norename://out", model, piece_rows=90)
    report = bertie.bulk("embed", "norename://in/*.parquet", "norename://out", model, piece_rows=90)
    assert (report.computed, report.rows) == (3, 400)
    store.get("/out/", str(tmp_path / "out") + "/", recursive=True)
    check_whole(tmp_path / "out", wanted)


def test_a_put_that_is_cut_short_is_put_again(
    model: str, texts: Path, store: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wanted: Any
) -> None:
    actual, puts = NewObject.keep, 0

    def keep(self: NewObject) -> None:
        nonlocal puts
        puts += 1
        if puts == 3:  # a store that lies: half of the object is there
            self.stream.seek(0, os.SEEK_END)
            self.stream.truncate(self.stream.tell() // 2)
            actual(self)
            raise OSError(errno.EIO, "connection reset")
        actual(self)

    with monkeypatch.context() as patched:
        patched.setattr(NewObject, "keep", keep)
        with pytest.raises(DataError, match="connection reset"):
            bertie.bulk("embed", texts, "norename://out", model, piece_rows=90)
    bertie.bulk("embed", texts, "norename://out", model, piece_rows=90)
    store.get("/out/", str(tmp_path / "out") + "/", recursive=True)
    check_whole(tmp_path / "out", wanted)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    with served() as made:
        keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}
        for name, value in {**keys, "AWS_ENDPOINT_URL": made.address, "AWS_EC2_METADATA_DISABLED": "true"}.items():
            monkeypatch.setenv(name, value)
        _through_pyarrow.cache_clear()  # it has an endpoint, too
        yield made
        _through_pyarrow.cache_clear()


def test_a_job_from_and_to_s3_goes_on_and_is_refused_as_one_on_a_disk(
    model: str, texts: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch, wanted: Any, tmp_path: Path
) -> None:
    for file in texts.iterdir():
        bucket.objects[f"texts/deep/{file.name}"] = file.read_bytes()
    with monkeypatch.context() as patched:
        stop_after(patched, 2, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            bertie.bulk("embed", "s3://bucket/texts", "s3://bucket/out", model, piece_rows=90)
    assert sum(name.startswith("out/part-") for name in bucket.objects) == 2
    report = bertie.bulk("embed", "s3://bucket/texts", "s3://bucket/out", model, piece_rows=90)
    assert (report.computed, report.rows) == (3, 400)
    assert not bucket.uploads
    (tmp_path / "out").mkdir()
    for name, content in bucket.objects.items():
        if name.startswith("out/part-"):
            (tmp_path / name).write_bytes(content)
    check_whole(tmp_path / "out", wanted)
    with pytest.raises(DataError, match="s3://bucket/out holds another job: 2 files were removed"):
        bertie.bulk("embed", "s3://bucket/texts/*/[0]*", "s3://bucket/out", model, piece_rows=90)
    with pytest.raises(InputError, match="truncate_dim"):
        bertie.bulk("embed", "s3://bucket/texts", "s3://bucket/new", model, truncate_dim=999)
    assert not [name for name in bucket.objects if name.startswith("new/") and not name.endswith("/")]


def test_a_store_that_does_not_answer_or_has_no_such_name_is_said(model: str, bucket: Bucket, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="s3://bucket/nothing: there is no such file or folder"):
        bertie.bulk("embed", "s3://bucket/nothing", tmp_path / "out", model)
    with pytest.raises(DataError, match="foo://x/y: the store cannot be reached: Protocol not known"):
        bertie.bulk("embed", "foo://x/y", tmp_path / "out", model)
