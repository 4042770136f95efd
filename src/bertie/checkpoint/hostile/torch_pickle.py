"""The pickle inside a `.bin` file, read by a small machine that can only take notes.

A pickle is a program for a stack machine: most instructions push a value, some build a list or dictionary of what was
pushed, and REDUCE calls a function by name. `torch.save` needs few of them. This machine knows those few, and instead
of calling anything it notes what would be made: a `TensorNote` says which storage a tensor lies in, and how. Numbers,
texts, lists and dictionaries are themselves. Every other instruction and every other name is an error, so a
hostile file can run nothing, import nothing and allocate nothing. No torch and no `pickle` is needed.

A small file must not cost much work either. Pickles may use one value many times over (the memo), so work that grows
with a value, rather than with the instruction's own bytes, is bounded or charged: keys are texts or small numbers
(hashing a nest of tuples that share their parts takes time exponential in the file's size), shapes have few
dimensions and calls few arguments, error messages show no values that could be nested, and the rest counts against
`MAXINSTRUCTIONS`.

The instructions: https://github.com/python/cpython/blob/main/Lib/pickletools.py. Protocols 2 to 5 are read.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeGuard, TypeVar

from bertie.checkpoint.dtypes import ITEM_BYTES, TORCH_STORAGES

MAX_PICKLE_BYTES = 8 * 2**20  # names and shapes only; a thousand-layer BERT needs 2 MB
MAXINSTRUCTIONS = 200_000  # about 25 for each tensor
MAX_DIMENSIONS = 64  # torch's own limit
MAX_ARGUMENTS = 16  # of a call; torch's have up to 8
MAX_KEY = 2**32  # larger numbers can be chosen so that they all fall into one slot of a dictionary
MAX_NAME_BYTES = 1000
MAX_INTEGER_BYTES = 16  # torch's own magic number has 10
Kind = TypeVar("Kind")


class DamagedPickle(Exception):
    """Not a program that torch could have written."""


class ForeignPickle(Exception):
    """A program that makes something other than tensors."""


@dataclass(frozen=True, slots=True)
class StorageNote:
    """`count` items that the file holds under `key`; of those the `length` items from `begin` on are meant."""

    dtype: str
    key: str
    count: int
    begin: int
    length: int

    @property
    def num_bytes(self) -> int:
        return self.count * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class TensorNote:
    """A tensor: item (i, j, …) is item `offset + i·stride[0] + j·stride[1] + …` of the storage, read as `dtype`."""

    storage: StorageNote
    dtype: str
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Name:
    """A function or class that the program names; never looked up."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


def read_pickle(data: bytes | mmap.mmap, start: int = 0) -> tuple[object, int]:
    """What the program that begins at `start` makes, in notes, and where it ends."""
    program = data[start : start + MAX_PICKLE_BYTES]
    machine = _Machine(program)
    try:
        value = machine.run()
    except (IndexError, KeyError, ValueError, TypeError, OverflowError, struct.error) as error:
        place = start + machine.position
        raise DamagedPickle(f"the instruction before byte {place} cannot be followed: {error!s:.80}") from None
    return value, start + machine.position


class _Machine:
    """The instructions are below the class, each with its byte."""

    def __init__(self, program: bytes) -> None:
        self.program = program
        self.position = 0
        self.left = MAXINSTRUCTIONS
        self.stack: list[object] = []
        self.below: list[list[object]] = []  # the stacks under each mark
        self.memo: dict[int, object] = {}

    def run(self) -> object:
        while self.position < len(self.program):
            code = self.program[self.position]
            self.position += 1
            self.charge(1)
            if code == _STOP:
                return self.stack.pop()
            instruction = INSTRUCTIONS.get(code)
            if instruction is None:
                raise ForeignPickle(f"the instruction {bytes([code])!r} of a pickle")
            instruction(self)
        raise DamagedPickle("its pickle does not end")

    def charge(self, work: int) -> None:
        self.left -= work
        if self.left < 0:
            raise DamagedPickle(f"a pickle of more than {MAXINSTRUCTIONS} instructions")

    def take(self, count: int) -> bytes:
        taken = self.program[self.position : self.position + count]
        if len(taken) != count:
            raise DamagedPickle("its pickle ends inside an instruction")
        self.position += count
        return taken

    def unsigned(self, width: int) -> int:
        return int.from_bytes(self.take(width), "little")

    def signed(self, width: int) -> int:
        if width > MAX_INTEGER_BYTES:
            raise DamagedPickle(f"a number of {width} bytes")
        return int.from_bytes(self.take(width), "little", signed=True)

    def text(self, width: int) -> str:
        return self.take(self.unsigned(width)).decode("utf-8", "surrogatepass")

    def line(self) -> str:
        end = self.program.find(b"\n", self.position, self.position + MAX_NAME_BYTES)
        if end < 0:
            raise DamagedPickle("a name without an end")
        line = self.take(end - self.position).decode("utf-8")
        self.position += 1
        return line

    def since_mark(self) -> list[object]:
        items, self.stack = self.stack, self.below.pop()
        return items

    def push_tuple(self, count: int) -> None:
        if len(self.stack) < count:
            raise DamagedPickle("a tuple of what is not there")
        self.stack[-count:] = [tuple(self.stack[-count:])]

    def extend(self, items: list[object]) -> None:
        _expect(list, self.stack[-1], "an addition to a {}").extend(items)

    def set_items(self, items: list[object]) -> None:
        target = _expect(dict, self.stack[-1], "an item of a {}")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if type(key) is not str and not (type(key) is int and abs(key) < MAX_KEY):
                raise ForeignPickle(f"a dictionary with a {kind_of(key)} as a key")
            target[key] = value

    def push_name(self, *parts: object) -> None:
        module, name = (_expect(str, part, "a name that is not a text") for part in parts)
        if not _is_known(found := _Name(module, name)):
            raise ForeignPickle(f"{module:.60}.{name:.60}")
        self.stack.append(found)

    def call(self, called: object, arguments: object) -> None:
        problem = "a call of something that is not a name"
        name, given = _expect(_Name, called, problem), _expect(tuple, arguments, problem)
        if name != _ORDERED_DICT:
            self.stack.append(_called(name, given))
            return
        pairs = given[0] if given else []
        if not isinstance(pairs, list | tuple):
            raise DamagedPickle("a dictionary of what is not pairs")
        self.charge(len(pairs))
        self.stack.append({})
        for key, value in pairs:
            self.set_items([key, value])


# -- what is called, in notes ----------------------------------------------------------------------------------------


def _expect(kind: type[Kind], value: object, problem: str, error: type[Exception] = DamagedPickle) -> Kind:
    """A value off the stack, where the program may have put anything; `{}` in the problem is what it did put there."""
    if not isinstance(value, kind):
        raise error(problem.format(kind_of(value)))
    return value


def _storage(description: object) -> StorageNote:
    """`("storage", class, key, device, count)`; old files add None, or the part that is meant: (key, begin, length)."""
    incomplete, foreign = "a storage without a description", "something stored that is not a tensor's numbers"
    parts = _expect(tuple, description, incomplete)
    if len(parts) not in (5, 6):
        raise DamagedPickle(incomplete)
    kind, storage, key, _, count, part = (*parts, None)[:6]
    name = _expect(_Name, storage, foreign, ForeignPickle).name
    if kind != "storage" or name not in TORCH_STORAGES:
        raise ForeignPickle(foreign)
    place = (None, 0, count) if part is None else _expect(tuple, part, "a part of a storage without a description")
    if len(place) != 3:
        raise DamagedPickle("a part of a storage without a description")
    sizes, unsound = (count, *place[1:]), "a storage whose name or size is none"
    if not _are_sizes(sizes) or sizes[1] + sizes[2] > sizes[0]:
        raise DamagedPickle(unsound)
    return StorageNote(TORCH_STORAGES[name], _expect(str, key, unsound), *sizes)


def _called(called: _Name, arguments: tuple[object, ...]) -> object:
    if called == _REBUILD_FROM_TYPE:  # a tensor that was saved with attributes of its own
        function, kind, inner, _ = arguments
        own_type = "a tensor of a type of its own"
        called = _expect(_Name, function, own_type, ForeignPickle)
        if kind not in (_TENSOR, _PARAMETER):
            raise ForeignPickle(own_type)
        arguments = _expect(tuple, inner, own_type, ForeignPickle)
    if not 1 <= len(arguments) <= MAX_ARGUMENTS:
        raise DamagedPickle(f"{called} of {len(arguments)} arguments")
    if called == _SIZE:
        return _shape(arguments[0])
    if called.module == "torch._utils" and called.name in _REBUILD_TENSOR:
        return _tensor(*arguments, v3=called.name == "_rebuild_tensor_v3")
    if called.module == "torch._utils":  # a parameter, whose numbers are a tensor
        return _expect(TensorNote, arguments[0], f"a call of {called}", ForeignPickle)
    raise ForeignPickle(f"a call of {called}")


def _tensor(storage: object, offset: object, shape: object, stride: object, *more: object, v3: bool) -> TensorNote:
    """`more`: requires_grad, hooks, in version 3 the dtype, and marks that change what the numbers mean."""
    _, _, dtype, marks, *_ = (*more, None, None, None, None) if v3 else (*more[:2], None, *more[2:], None, None, None)
    problem = "a tensor without a storage or a dtype"
    place = _expect(StorageNote, storage, problem)
    kind = _expect(_Name, dtype, problem).name if v3 else place.dtype
    if marks:
        raise ForeignPickle("a tensor that is stored conjugated or negated")
    sizes, steps, start = _shape(shape), _shape(stride), (offset,)
    if kind not in ITEM_BYTES or not _are_sizes(start) or len(sizes) != len(steps):
        raise DamagedPickle(f"a tensor of shape {sizes} and strides {steps}")
    return TensorNote(place, kind, start[0], sizes, steps)


def _shape(value: object) -> tuple[int, ...]:
    problem = "a tensor whose shape or strides are not a few sizes"
    sizes = _expect(tuple, value, problem)
    if len(sizes) > MAX_DIMENSIONS or not _are_sizes(sizes):
        raise DamagedPickle(problem)
    return sizes


def _is_known(name: _Name) -> bool:
    if name.module == "torch":
        return name.name in TORCH_STORAGES or name.name in ITEM_BYTES or name in (_SIZE, _TENSOR)
    if name.module == "torch._utils":
        return name.name in _REBUILD_TENSOR or name.name in _REBUILD_PARAMETER
    return name in (_ORDERED_DICT, _REBUILD_FROM_TYPE, _PARAMETER, _Name("torch.storage", "UntypedStorage"))


def _are_sizes(values: tuple[object, ...]) -> TypeGuard[tuple[int, ...]]:
    return all(type(one) is int and 0 <= one < 2**63 for one in values)


def kind_of(value: object) -> str:
    """What a person would call it."""
    names = {TensorNote: "Tensor", StorageNote: "Storage", _Name: "class"}
    return names.get(type(value), type(value).__name__)


_ORDERED_DICT = _Name("collections", "OrderedDict")
_SIZE, _TENSOR = _Name("torch", "Size"), _Name("torch", "Tensor")
_PARAMETER = _Name("torch.nn.parameter", "Parameter")
_REBUILD_FROM_TYPE = _Name("torch._tensor", "_rebuild_from_type_v2")
_REBUILD_TENSOR = ("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3")
_REBUILD_PARAMETER = ("_rebuild_parameter", "_rebuild_parameter_with_state")


# -- the instructions ------------------------------------------------------------------------------------------------


def _push(value: Callable[[_Machine], object]) -> Callable[[_Machine], None]:
    def instruction(machine: _Machine) -> None:
        pushed = value(machine)
        machine.stack.append(pushed)  # only now: reading to a mark exchanges the stack

    return instruction


def _remember(number: Callable[[_Machine], int]) -> Callable[[_Machine], None]:
    def instruction(machine: _Machine) -> None:
        machine.memo[number(machine)] = machine.stack[-1]

    return instruction


def _mark(machine: _Machine) -> None:
    machine.below.append(machine.stack)
    machine.stack = []


def _pair(machine: _Machine) -> list[object]:
    """The two topmost values, the lower one first."""
    upper, lower = machine.stack.pop(), machine.stack.pop()
    return [lower, upper]


def _build(machine: _Machine) -> None:
    """Attributes of what is on the stack: a state dict's carries version numbers, which do not matter here."""
    machine.stack.pop()
    _expect(dict, machine.stack[-1], "attributes of a {}", ForeignPickle)


_STOP = ord(".")
INSTRUCTIONS: dict[int, Callable[[_Machine], object]] = {
    0x80: lambda m: m.take(1),  # PROTO, the version
    0x95: lambda m: m.take(8),  # FRAME, the length of what follows
    ord("N"): _push(lambda m: None),
    0x88: _push(lambda m: True),
    0x89: _push(lambda m: False),
    ord("K"): _push(lambda m: m.unsigned(1)),
    ord("M"): _push(lambda m: m.unsigned(2)),
    ord("J"): _push(lambda m: m.signed(4)),
    0x8A: _push(lambda m: m.signed(m.unsigned(1))),
    ord("G"): _push(lambda m: struct.unpack(">d", m.take(8))[0]),
    ord("X"): _push(lambda m: m.text(4)),
    0x8C: _push(lambda m: m.text(1)),
    0x8D: _push(lambda m: m.text(8)),
    ord("U"): _push(lambda m: m.take(m.unsigned(1)).decode("ascii")),  # the texts of Python 2
    ord("}"): _push(lambda m: {}),
    ord("]"): _push(lambda m: []),
    ord(")"): _push(lambda m: ()),
    ord("("): _mark,
    ord("t"): _push(lambda m: tuple(m.since_mark())),
    0x85: lambda m: m.push_tuple(1),
    0x86: lambda m: m.push_tuple(2),
    0x87: lambda m: m.push_tuple(3),
    ord("a"): lambda m: m.extend([m.stack.pop()]),
    ord("e"): lambda m: m.extend(m.since_mark()),
    ord("s"): lambda m: m.set_items(_pair(m)),
    ord("u"): lambda m: m.set_items(m.since_mark()),
    ord("q"): _remember(lambda m: m.unsigned(1)),
    ord("r"): _remember(lambda m: m.unsigned(4)),
    0x94: _remember(lambda m: len(m.memo)),
    ord("h"): _push(lambda m: m.memo[m.unsigned(1)]),
    ord("j"): _push(lambda m: m.memo[m.unsigned(4)]),
    ord("c"): lambda m: m.push_name(m.line(), m.line()),
    0x93: lambda m: m.push_name(*_pair(m)),
    ord("Q"): _push(lambda m: _storage(m.stack.pop())),
    ord("R"): lambda m: m.call(*_pair(m)),
    ord("b"): _build,
}
