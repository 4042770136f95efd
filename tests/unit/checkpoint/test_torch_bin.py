"""`.bin` files read by our own reader: bit-equal to `torch.load(weights_only=True)`, whatever torch can save."""

from __future__ import annotations

import io
import sys
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch

from bertie.checkpoint.dtypes import ITEM_BYTES
from bertie.checkpoint.hostile.paths import open_weights
from bertie.checkpoint.hostile.torch_file import read_torch_headers
from bertie.checkpoint.torch_bin import read_bin
from bertie.errors import CheckpointError

BASE = torch.arange(240, dtype=torch.float32)
TIED = torch.randn(5, 7, generator=torch.Generator().manual_seed(1))


class Noted(torch.nn.Linear):
    """A module whose state dict carries attributes, as every module's does: version numbers."""


def of_every_dtype() -> dict[str, torch.Tensor]:
    raw = torch.randint(0, 2, (3, 4, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return {name: raw.clone().view(getattr(torch, name)) for name in ITEM_BYTES}


CASES: dict[str, Any] = {
    "every dtype": of_every_dtype(),
    "views of one storage": {"a": BASE[10:20], "b": BASE.view(12, 20)[3:5, ::3], "c": BASE.view(2, 120).t()},
    "tied weights": {"a": TIED, "b": TIED, "c": TIED.view(-1)},
    "a column": {"a": BASE.view(24, 10)[:, 3]},
    "no items": {"a": torch.zeros(0), "b": torch.zeros(3, 0, 2), "c": BASE[5:5], "d": torch.zeros(0, 4).half()},
    "a scalar": {"a": torch.tensor(1.5), "b": BASE[7]},
    "parameters": {"a": torch.nn.Parameter(TIED), "b": torch.nn.Parameter(TIED, requires_grad=False)},
    "a state dict": Noted(3, 4).state_dict(),
    "an ordered dictionary": OrderedDict(b=TIED, a=BASE),
    "names in other scripts": {"слой.вес": TIED, "層": BASE, "": TIED[0]},
    "a broadcast that fits": {"a": torch.ones(6)[:2].expand(3, 2)},
    "nothing": {},
}
WITH_ATTRIBUTES = {"a": torch.nn.Parameter(TIED.clone()), "b": TIED.clone()}
for value in WITH_ATTRIBUTES.values():
    value.note = "kept with the tensor"  # type: ignore[attr-defined]
CASES["tensors with attributes"] = WITH_ATTRIBUTES


def assert_same(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert list(found) == list(wanted)
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype, name
        assert found[name].shape == tensor.shape, name
        assert found[name].stride() == tensor.stride(), name
        assert found[name].storage_offset() == tensor.storage_offset(), name
        bits = [one.detach().contiguous().view(-1).view(torch.uint8) for one in (found[name], tensor) if one.numel()]
        assert not bits or torch.equal(*bits), name


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
@pytest.mark.parametrize("case", CASES)
def test_equal_to_torch(tmp_path: Path, case: str, legacy: bool) -> None:
    path = tmp_path / "pytorch_model.bin"
    torch.save(CASES[case], path, _use_new_zipfile_serialization=not legacy)
    torch.save(CASES[case], tmp_path / "zipped.bin")
    assert_same(read_bin(path), torch.load(tmp_path / "zipped.bin", weights_only=True))
    if not (legacy and case == "every dtype"):  # torch cannot read its own old files of the newer dtypes
        assert_same(read_bin(path), torch.load(path, weights_only=True))
    with open_weights(path) as file:
        notes = read_torch_headers(path, file).tensors
    assert {n: (f"torch.{t.dtype}", t.shape) for n, t in notes.items()} == {
        n: (str(t.dtype), tuple(t.shape)) for n, t in CASES[case].items()
    }


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("case", CASES)
def test_every_protocol_that_torch_offers(tmp_path: Path, case: str, protocol: int) -> None:
    path = tmp_path / "pytorch_model.bin"
    torch.save(CASES[case], path, pickle_protocol=protocol)
    torch.save(CASES[case], tmp_path / "usual.bin")
    assert_same(read_bin(path), torch.load(tmp_path / "usual.bin", weights_only=True))


def test_tied_weights_share_their_memory(tmp_path: Path) -> None:
    torch.save(CASES["tied weights"], tmp_path / "a.bin")
    found = read_bin(tmp_path / "a.bin")
    assert found["a"].data_ptr() == found["b"].data_ptr() == found["c"].data_ptr()
    found["a"][0, 0] = 17  # memory, not the file
    assert found["c"][0] == 17
    assert read_bin(tmp_path / "a.bin")["a"][0, 0] == TIED[0, 0]


@pytest.mark.parametrize("name", ["float32", "bfloat16", "complex64", "int64", "bool"])
def test_files_of_the_other_byte_order(tmp_path: Path, name: str) -> None:
    """As torch reads them: every number turned round, and of a complex number each half."""
    other = {"little": "big", "big": "little"}[sys.byteorder]
    tensors = {name: of_every_dtype()[name], "none": torch.zeros(0)}
    content = io.BytesIO()
    torch.save(tensors, content)
    path = tmp_path / "other.bin"
    with zipfile.ZipFile(content) as archive, zipfile.ZipFile(path, "w") as changed:
        for info in archive.infolist():
            order = info.filename.endswith("/byteorder")
            changed.writestr(info.filename, other if order else archive.read(info))
    assert_same(read_bin(path), torch.load(path, weights_only=True))


def test_storages_at_odd_places_are_read(tmp_path: Path) -> None:
    """Packed again by another program, nothing is aligned."""
    content = io.BytesIO()
    torch.save(CASES["every dtype"], content)
    for padding in range(1, 9):
        path = tmp_path / f"{padding}.bin"
        with zipfile.ZipFile(content) as archive, zipfile.ZipFile(path, "w") as changed:
            for info in archive.infolist():
                changed.writestr(info.filename, archive.read(info))
                changed.writestr(f"{info.filename}.more", b"x" * padding)
        assert_same(read_bin(path), CASES["every dtype"])


@pytest.mark.filterwarnings("ignore:.*quantize")
def test_quantized_conjugated_and_sparse_tensors_are_refused_by_name(tmp_path: Path) -> None:
    odd = {
        "_rebuild_sparse_tensor": torch.ones(3).to_sparse(),
        "conjugated": torch.ones(3, dtype=torch.complex64).conj(),
        "_rebuild_qtensor": torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
        "_rebuild_meta_tensor_no_storage": torch.ones(2, device="meta"),
    }
    for reason, tensor in odd.items():
        torch.save({"a": tensor}, tmp_path / "odd.bin")
        with pytest.raises(CheckpointError, match=reason):
            read_bin(tmp_path / "odd.bin")
