"""What fronts and engines tell each other, and the socket it goes through.

A message is a msgspec struct; those that are due at the same moment travel as one list, after its length in four bytes.
Token ids and vectors are not in messages: they lie in memory that both processes have mapped (shared.py).
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import ClassVar, cast

import msgspec

from bertie.serve.embedding import EmbedSettings
from bertie.serve.failures import EngineDown, Refusal, as_refusal

_LENGTH = struct.Struct("<I")
MOST_BYTES = 1 << 30  # of one list; an answer has 32 MiB at most

Header = tuple[bytes, bytes]


class Message(msgspec.Struct, frozen=True, array_like=True, tag_field="kind"):
    """`number` is that of the request, on its link."""

    number: int


# -- to an engine -----------------------------------------------------------------------------------------------------


class Work(Message, frozen=True, tag=1):
    """Rows to embed: `at` is where the shared memory holds their ids, then their lengths, then room for vectors."""

    model: str
    client: str
    rows: int
    tokens: int
    at: int
    seconds: float
    load: int  # of the model that the rows were made for
    skipped: int = 0
    raw: bool = False


class Forward(Message, frozen=True, tag=2):
    """A whole request, checked by the front, for a route that only an engine can answer."""

    id: str
    method: str
    path: str
    key: str
    client: str
    body: bytes
    as_bytes: bool = False


class Leave(Message, frozen=True, tag=3):
    """The client has left. The engine still says when it has done with the request."""


# -- from an engine ---------------------------------------------------------------------------------------------------


class Done(Message, frozen=True, tag=4):
    """The vectors are there. Seconds in the queue, and in the model."""

    waited: float
    computed: float


class Refused(Message, frozen=True, tag=5):
    """There is no answer, and this is why. `down`: the engine broke down, so another one may be asked."""

    status: int
    error: str
    text: str
    remedy: str | None = None
    retry_after: float | None = None
    down: bool = False

    @classmethod
    def of(cls, number: int, error: Exception) -> Refused:
        found, down = as_refusal(error), type(error) is EngineDown
        return cls(number, found.status, found.kind, found.message, found.remedy, found.retry_after, down)

    def as_error(self) -> Exception:
        if self.down:
            return EngineDown()
        return Refusal(self.status, self.error, self.text, remedy=self.remedy, retry_after=self.retry_after)


class Answer(Message, frozen=True, tag=6):
    """What a forwarded request is answered."""

    status: int
    headers: list[Header]
    body: bytes
    tokens: int


class ModelState(msgspec.Struct, frozen=True):
    """A model as its engine has it. `embeds`: what a front needs to make rows for it."""

    name: str
    state: str
    device: str
    dtype: str
    tasks: list[str]
    since: int
    load: int
    embeds: EmbedSettings | None = None


class States(Message, frozen=True, tag=7):
    """All models of an engine, whenever one of them changed."""

    models: list[ModelState]


AnyMessage = Work | Forward | Leave | Done | Refused | Answer | States
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[AnyMessage]).decode


def packed(messages: Sequence[AnyMessage]) -> bytes:
    body = _encode(messages)
    return _LENGTH.pack(len(body)) + body


class Unpacker:
    """Messages out of the bytes of a stream."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes | memoryview) -> Iterator[AnyMessage]:
        """`data` is not looked at any more once the last message is taken."""
        if not self._buffer and len(data) >= 4 and len(data) == 4 + _LENGTH.unpack_from(data)[0]:
            yield from _decode(memoryview(data)[4:])  # what nearly always comes: one list, whole
            return
        buffer = self._buffer
        buffer += data
        while len(buffer) >= 4:
            (length,) = _LENGTH.unpack_from(buffer)
            if length > MOST_BYTES:
                raise ValueError(f"a list of messages has {length} bytes")
            if len(buffer) < 4 + length:
                return
            body = bytes(memoryview(buffer)[4 : 4 + length])
            del buffer[: 4 + length]
            yield from _decode(body)


class Link(asyncio.Protocol):
    """One end of a socket between a front and an engine. All that is sent in one step of the loop is one write."""

    name: ClassVar[str] = "link"

    def __init__(self, on_message: Callable[[AnyMessage], None], on_lost: Callable[[], None]) -> None:
        self._on_message, self._on_lost = on_message, on_lost
        self._unpacker, self._out = Unpacker(), list[AnyMessage]()
        self._loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance

    def data_received(self, data: bytes) -> None:
        for message in self._unpacker.feed(data):
            self._on_message(message)

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None
        self._on_lost()

    def send(self, message: AnyMessage) -> None:
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(message)

    def send_all(self, messages: Iterable[AnyMessage]) -> None:
        for message in messages:
            self.send(message)

    def _flush(self) -> None:
        out, self._out = self._out, []
        if self.transport is not None:
            self.transport.write(packed(out))

    def close(self) -> None:
        if self.transport is not None:
            self.transport.abort()
