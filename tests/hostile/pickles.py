"""QUALITY 3: pickles that run code when they are opened, as `.bin` files. The code is a canary: it makes a file.

`ATTACKS` maps a name to `(canary) → the pickle's bytes`; `CONTAINERS` are the places in a `.bin` file a pickle can be.
"""

from __future__ import annotations

import io
import json
import pickle
import shutil
import struct
import tarfile
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bertie.loading import load
from hostile.corpus import config_json, weights
from hostile.isolation import Trial

Attack = Callable[[str], bytes]
_MAGIC = pickle.dumps(0x1950A86A20F9469CFC6C, 2)


class _Calls:
    """Pickles as a call of a function that is named, not imported."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call


def _text(value: str) -> bytes:
    """BINUNICODE"""
    raw = value.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


def _call(module: str, name: str, *arguments: bytes) -> bytes:
    """GLOBAL, the arguments as a tuple, REDUCE"""
    return f"c{module}\n{name}\n".encode() + b"(" + b"".join(arguments) + b"tR"


def _whole(body: bytes) -> bytes:
    return b"\x80\x02" + body + b"."


def _python(canary: str) -> str:
    return f"open({canary!r}, 'w').close()"


def _by_protocol(protocol: int) -> Attack:
    import os

    return lambda canary: pickle.dumps(_Calls(os.mkdir, canary), protocol)


def _value_of_a_state_dict(canary: str) -> bytes:
    import os

    return pickle.dumps(OrderedDict([("bert.pooler.dense.bias", _Calls(os.mkdir, canary))]), 2)


def _key_of_a_state_dict(canary: str) -> bytes:
    return _whole(b"}" + _call("os", "mkdir", _text(canary)) + b"K\x01s")


def _loaded_from_bytes(canary: str) -> bytes:
    """torch's own way to nest one file in another."""
    inner = legacy(_by_protocol(2)(canary), at=3)
    return _whole(_call("torch.storage", "_load_from_bytes", b"B" + struct.pack("<I", len(inner)) + inner))


ATTACKS: dict[str, Attack] = {
    **{f"mkdir, protocol {number}": _by_protocol(number) for number in range(6)},
    "os.system in text": lambda canary: f"cos\nsystem\n(S'touch {canary}'\ntR.".encode(),
    "posix.system": lambda canary: _whole(_call("posix", "system", _text(f"touch {canary}"))),
    "nt.system": lambda canary: _whole(_call("nt", "system", _text(f"touch {canary}"))),
    "builtins.eval": lambda canary: _whole(_call("builtins", "eval", _text(_python(canary)))),
    "builtins.exec": lambda canary: _whole(_call("builtins", "exec", _text(_python(canary)))),
    "__builtin__.eval": lambda canary: _whole(_call("__builtin__", "eval", _text(_python(canary)))),
    "builtins.open": lambda canary: _whole(_call("builtins", "open", _text(canary), _text("w"))),
    "builtins.getattr": lambda canary: _whole(
        _call("builtins", "getattr", _call("builtins", "__import__", _text("os")), _text("mkdir"))
        + b"(" + _text(canary) + b"tR"
    ),
    "importlib.import_module": lambda canary: _whole(
        _call("builtins", "getattr", _call("importlib", "import_module", _text("os")), _text("mkdir"))
        + b"(" + _text(canary) + b"tR"
    ),
    "operator.methodcaller": lambda canary: _whole(
        _call("operator", "methodcaller", _text("mkdir"), _text(canary))
        + b"(" + _call("builtins", "__import__", _text("os")) + b"tR"
    ),
    "subprocess.check_output": lambda canary: _whole(
        _call("subprocess", "check_output", b"](" + _text("touch") + _text(canary) + b"e")
    ),
    "subprocess.Popen, OBJ": lambda canary: b"(csubprocess\ncall\n](" + _text("touch") + _text(canary) + b"eo.",
    "INST": lambda canary: f"(S'touch {canary}'\nios\nsystem\n.".encode(),
    "NEWOBJ": lambda canary: _whole(b"csubprocess\nPopen\n](" + _text("touch") + _text(canary) + b"e\x85\x81"),
    "NEWOBJ_EX": lambda canary: b"\x80\x04csubprocess\nPopen\n](" + _text("touch") + _text(canary) + b"e\x85}\x92.",
    "STACK_GLOBAL": lambda canary: b"\x80\x04" + _text("os") + _text("mkdir") + b"\x93" + _text(canary) + b"\x85R.",
    "STACK_GLOBAL with dots": lambda canary: b"\x80\x04" + _text("torch") + _text("serialization.os.mkdir") + b"\x93"
    + _text(canary) + b"\x85R.",
    "BUILD with a state": lambda canary: _whole(
        b"ctorch.nn.modules.module\nModule\n)\x81}" + _text("x") + _call("os", "mkdir", _text(canary)) + b"sb"
    ),
    "REDUCE after a memo": lambda canary: _whole(b"cos\nmkdir\nq\x000h\x00" + _text(canary) + b"\x85R"),
    "EXT1": lambda canary: _whole(b"\x82\x01" + _text(canary) + b"\x85R"),
    "runpy.run_path": lambda canary: _whole(_call("runpy", "run_path", _text(canary + ".py"))),
    "webbrowser.open": lambda canary: _whole(_call("webbrowser", "open", _text(f"file://{canary}"))),
    "torch.load": lambda canary: _whole(_call("torch", "load", _text(canary + ".pt"))),
    "torch.storage._load_from_bytes": _loaded_from_bytes,
    "torch.hub.load": lambda canary: _whole(_call("torch.hub", "load_local", _text(canary), _text("x"))),
    "torch's inline compiler": lambda canary: _whole(
        _call("torch.utils.cpp_extension", "load_inline", _text("x"), _text(f"// {canary}"))
    ),
    "torch._utils._rebuild_tensor of a function": lambda canary: _whole(
        b"ctorch._tensor\n_rebuild_from_type_v2\n(cos\nmkdir\nctorch\nTensor\n(" + _text(canary) + b"tNtR"
    ),
    "torch.fx": lambda canary: _whole(_call("torch.fx.graph_module", "reduce_graph_module", b"}", _text("x"))),
    "numpy._reconstruct": lambda canary: _whole(
        _call("numpy.core.multiarray", "_reconstruct", b"cos\nmkdir\n", b"K\x00\x85", _text(canary))
    ),
    "functools.partial": lambda canary: _whole(_call("functools", "partial", b"cos\nmkdir\n", _text(canary)) + b")R"),
    "a value of a state dict": _value_of_a_state_dict,
    "a key of a state dict": _key_of_a_state_dict,
    "a persistent id": lambda canary: _whole(_call("os", "mkdir", _text(canary)) + b"Q"),
    "a persistent id in text": lambda canary: f"P{canary}\n.".encode(),
    "a storage of another type": lambda canary: _whole(
        b"(" + _text("storage") + b"cos\nmkdir\n" + _text(canary) + _text("cpu") + b"K\x01tQ"
    ),
    "a storage somewhere else": lambda canary: _whole(
        b"(" + _text("storage") + b"ctorch\nFloatStorage\n" + _text(f"../../../..{canary}") + _text("cpu") + b"K\x01tQ"
    ),
    "a module's source": lambda canary: _whole(
        b"(" + _text("module") + b"cos\nmkdir\n" + _text(canary) + _text(canary) + b"tQ"
    ),
}  # fmt: skip


# -- where in a file the pickle is ------------------------------------------------------------------------------------


def zipped(body: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", body)
        archive.writestr("archive/byteorder", "little")
        archive.writestr("archive/data/0", bytes(4))
        archive.writestr("archive/version", "3\n")
    return buffer.getvalue()


def legacy(body: bytes, *, at: int) -> bytes:
    """The five pickles of an old file; `body` stands for one of them."""
    parts = [_MAGIC, pickle.dumps(1001, 2), pickle.dumps({"little_endian": True}, 2), pickle.dumps({}, 2)]
    parts.append(pickle.dumps([], 2))
    parts[at] = body
    return b"".join(parts)


def tarred(body: bytes) -> bytes:
    """The oldest format of all."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in ("storages", "tensors", "pickle"):
            info = tarfile.TarInfo(name)
            info.size = len(body)
            archive.addfile(info, io.BytesIO(body))
    return buffer.getvalue()


CONTAINERS: dict[str, Callable[[bytes], bytes]] = {
    "zip": zipped,
    "legacy": lambda body: legacy(body, at=3),
    "legacy, as magic number": lambda body: legacy(body, at=0),
    "legacy, as system info": lambda body: legacy(body, at=2),
    "legacy, as list of storages": lambda body: legacy(body, at=4),
    "tar": tarred,
    "bare": lambda body: body,
}
# Every attack in both of torch's formats; one by one protocol in the other places; and in other files than the usual.
CASES = (
    *(f"{container}|{attack}" for attack in ATTACKS for container in ("zip", "legacy")),
    *(f"{container}|mkdir, protocol {n}" for container in list(CONTAINERS)[2:] for n in (0, 2, 4)),
    *(f"{place}|zip|mkdir, protocol 2" for place in ("shard", "named .safetensors", "named .pt")),
)


def trial(case: str, folder: Path) -> Trial:
    *place, container, attack = case.split("|")
    canary = folder / "canary"
    assert not canary.exists()
    content = CONTAINERS[container](ATTACKS[attack](str(canary)))
    home = folder / "attack"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    (home / "config.json").write_bytes(config_json())
    source = home
    if place == ["shard"]:
        index = {"weight_map": dict.fromkeys(weights(), "a.bin") | {"last": "b.bin"}}
        (home / "pytorch_model.bin.index.json").write_text(json.dumps(index))
        torch.save(weights(), home / "a.bin")
        (home / "b.bin").write_bytes(content)
    elif place == ["named .safetensors"]:
        (home / "model.safetensors").write_bytes(content)
    elif place == ["named .pt"]:
        source = home / "weights.pt"
        source.write_bytes(content)
    else:
        (home / "pytorch_model.bin").write_bytes(content)

    def harmless() -> None:
        hatched = canary.exists()
        if hatched:
            shutil.rmtree(canary) if canary.is_dir() else canary.unlink()
        assert not hatched, "the canary ran"

    def refuse(loaded: Any) -> None:
        raise AssertionError("it loaded")

    return Trial(lambda: load(source), refuse, harmless, size=len(content))
