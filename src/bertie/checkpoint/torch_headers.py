"""What tensors a `.bin` archive holds, from its pickle alone, without torch and without running anything.

`torch.save` writes a zip archive whose `data.pkl` is a pickle: a program for a small stack machine that calls functions
by name. This is that machine with every call replaced by taking notes: `_rebuild_tensor_v2(storage, offset, shape, …)`
becomes a note of dtype and shape, any other call a note of nothing. What the notes cannot make sense of is left to
torch_bin.py, which asks torch.
"""

from __future__ import annotations

import pickletools
import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_MAX_PICKLE_BYTES = 8 * 2**20
_DTYPES = {
    "FloatStorage": "float32", "DoubleStorage": "float64", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8",
    "ByteStorage": "uint8", "BoolStorage": "bool",
}  # fmt: skip
_MARK = object()
_PUSHED = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_WITH_VALUE = frozenset(
    ["BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE", "SHORT_BINUNICODE", "BINFLOAT", "INT", "LONG", "UNICODE"]
)
_NOTHING_TO_DO = frozenset(["PROTO", "FRAME"])


@dataclass(frozen=True)
class TorchHeader:
    """One tensor: torch's name for its dtype, and its shape."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class _Name:
    """A function or class the pickle names; never looked up."""

    module: str
    name: str


def read_torch_headers(path: Path) -> dict[str, TorchHeader] | None:
    """The tensors of an archive by name; None when it is not an archive of the usual kind."""
    try:
        with zipfile.ZipFile(path) as archive:
            member = next(one for one in archive.infolist() if one.filename.endswith("/data.pkl"))
            if member.file_size > _MAX_PICKLE_BYTES or member.compress_type != zipfile.ZIP_STORED:
                return None
            content = _notes(archive.read(member))
    except (zipfile.BadZipFile, OSError, StopIteration, ValueError, IndexError, KeyError, TypeError, struct.error):
        return None
    if not isinstance(content, dict) or not all(
        isinstance(name, str) and isinstance(one, TorchHeader) for name, one in content.items()
    ):
        return None
    return content


def _notes(program: bytes) -> Any:
    """Run the pickle's stack machine on notes instead of objects."""
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    for code, argument, _ in pickletools.genops(program):
        name = code.name
        if name in _NOTHING_TO_DO:
            continue
        if name in _PUSHED:
            stack.append(_PUSHED[name])
        elif name in _WITH_VALUE:
            stack.append(argument)
        elif name == "GLOBAL":
            stack.append(_Name(*str(argument).split(" ", 1)))
        elif name == "STACK_GLOBAL":
            last, module = stack.pop(), stack.pop()
            stack.append(_Name(module, last))
        elif name == "MARK":
            stack.append(_MARK)
        elif name in ("EMPTY_DICT", "EMPTY_TUPLE", "EMPTY_LIST"):
            stack.append({} if name == "EMPTY_DICT" else ())
        elif name == "TUPLE":
            stack.append(tuple(_to_mark(stack)))
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            count = int(name[-1])
            stack[-count:] = [tuple(stack[-count:])]
        elif name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            memo[len(memo) if name == "MEMOIZE" else int(argument or 0)] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[int(argument or 0)])
        elif name in ("SETITEM", "SETITEMS"):
            items = [stack.pop(-2), stack.pop()] if name == "SETITEM" else _to_mark(stack)
            if isinstance(stack[-1], dict):
                stack[-1].update(zip(items[::2], items[1::2], strict=True))
        elif name == "BINPERSID":
            pass  # the storage's description, a tuple, stands for the storage
        elif name == "REDUCE":
            arguments, called = stack.pop(), stack.pop()
            stack.append(_called(called, arguments))
        elif name == "BUILD":
            stack.pop()  # attributes of a dictionary, such as a state dict's version numbers
        elif name == "STOP":
            return stack.pop()
        else:
            raise ValueError(f"the instruction {name} is not one torch writes for weights")
    raise ValueError("the pickle does not end")


def _called(called: Any, arguments: Any) -> Any:
    if not isinstance(called, _Name):
        raise ValueError("something that is not a name was called")
    if called.name in ("_rebuild_tensor_v2", "_rebuild_tensor"):
        (_, storage, *_), _, shape, *_ = arguments
        return TorchHeader(_DTYPES[storage.name], tuple(int(length) for length in shape))
    if called.name in ("_rebuild_parameter", "_rebuild_parameter_with_state"):
        return arguments[0]
    return {} if called.name == "OrderedDict" else None


def _to_mark(stack: list[Any]) -> list[Any]:
    place = len(stack) - 1 - stack[::-1].index(_MARK)
    items = stack[place + 1 :]
    del stack[place:]
    return items
