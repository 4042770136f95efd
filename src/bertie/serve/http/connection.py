"""One client's connection, and how long it may keep the server waiting.

uvicorn parses HTTP/1.1 and runs the application; what it does not limit is limited here. On every connection it is
somebody's turn. While a whole request is being worked on, it is the server's. Otherwise it is the client's: to send a
header, to send a body, to read its answer, or to come again. Every turn of a client has an end, by the clock of the
server's `Connections`, and whoever has kept the server waiting longest goes first when there are too many connections
or too many bytes that nobody reads.

A client that has ended its own sending side still gets its answers. Whether it has ended both sides cannot be seen
before something is sent to it, so the first bytes of the answer go out early, one at a time: they are "HTTP/1.1 "
whatever the answer will be, and they fail where nobody is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
import urllib.parse
from collections.abc import Callable, Iterable, Sized
from http import HTTPStatus
from typing import Any, cast

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from bertie.serve.settings import Limits

logger = logging.getLogger("bertie.serve")

_MOST_HEADER_BYTES = 64 << 10
# How long a refused sender may go on sending before the connection is closed; closing at once would reset it, and the
# client would never read why.
_LINGER_SECONDS = 5.0
# Between two looks at what it sends, a few hundred KiB each: discarding all as fast as it comes would take a core.
_DISCARDING_PAUSE = 0.01
# Bytes a second. A client that reads its answer more slowly than this is not reading it.
_SLOWEST_READER = 64 << 10
_MOST_IN_LINE = 16
_COPIED_BYTES = 64 << 10  # of an answer that goes out in one write with its header
_PARTS = re.compile(rb"[%?#]|^[^/]")  # of a target that is more than a plain path
_FIRST_BYTES = b"HTTP/1.1 "
_FIRST_PAUSE = 0.05  # between two of them; each pause is twice the last


class Connections:
    """All connections of a server, with its clock."""

    def __init__(self, limits: Limits, on_refused: Callable[[str], None] = lambda reason: None) -> None:
        self.limits = limits
        self.on_refused = on_refused
        self.open: set[Connection] = set()
        # Those whose client has the turn, and since when, the longest first.
        self.waiting: dict[Connection, float] = {}
        self.now = 0.0
        shortest = min(limits.header_seconds, limits.idle_seconds, limits.write_seconds)
        self._interval = max(0.02, min(0.25, shortest / 4))

    async def watch(self) -> None:
        """End every turn that has lasted too long; runs as long as the server does."""
        while True:
            began = time.monotonic()
            await asyncio.sleep(self._interval)
            # While this process stood still it read nothing: that time is not the clients' fault.
            self.now += min(time.monotonic() - began, 2 * self._interval)
            try:
                self._shed({one: size for one in list(self.open) if (size := one.check(self.now))})
            except Exception:  # of one connection; all the others still have to be watched
                logger.exception("connections could not be checked")

    def turn_of_client(self, connection: Connection) -> None:
        self.waiting.pop(connection, None)
        self.waiting[connection] = self.now

    def turn_of_server(self, connection: Connection) -> None:
        self.waiting.pop(connection, None)

    def enter(self, connection: Connection) -> bool:
        """Take a connection in; the one that has been silent longest makes room. False: there is no room."""
        if len(self.open) >= self.limits.connections:
            oldest = next(iter(self.waiting), None)
            if oldest is None:
                return False
            oldest.make_room()
        self.open.add(connection)
        self.turn_of_client(connection)
        return True

    def leave(self, connection: Connection) -> None:
        self.open.discard(connection)
        self.waiting.pop(connection, None)

    def _shed(self, unsent: dict[Connection, int]) -> None:
        """Drop answers that nobody reads, until the rest is within the limit: first those that are due first."""
        total = sum(unsent.values())
        for connection in sorted(unsent, key=lambda one: one.read_by or 0.0):
            if total <= self.limits.unsent_bytes:
                return
            total -= unsent[connection]
            self.on_refused("unread answer")
            connection.transport.abort()


class Connection(HttpToolsProtocol):
    """uvicorn's HTTP/1.1, with an end to everything."""

    connections_of_server: Connections

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.flow = _Flow(transport, self.pipeline)
        self.parser = cast("httptools.HttpRequestParser", _Parser(self))  # it has all its methods
        self._all = self.connections_of_server
        self._current: RequestResponseCycle | None = None  # the request that is next to be answered
        self._receiving = self._in_header = False
        self._header_bytes = self._bytes_without_body = 0
        self._last_words: bytes | None = None  # for when all that was accepted is answered; then the connection ends
        self.read_by: float | None = None
        if not self._all.enter(self):
            self._say(503, "All connections are in use.", "too many connections")

    def connection_lost(self, exc: Exception | None) -> None:
        self._all.leave(self)
        # uvicorn tells the request that came last, which need not be the one that is being worked on.
        for cycle in (self._current, *(cycle for cycle, _ in self.pipeline)):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
                cast("Cycle", cycle).on_gone()
        self.pipeline.clear()
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]
        if not self._end_after_answers(b""):
            return False
        assert self._current is not None
        if not self._current.response_started:
            begun = _Begun(self.transport)
            self._current.transport = cast("asyncio.Transport", begun)  # it has all its methods
            self._send_ahead(begun, _FIRST_PAUSE)
        return True

    # -- what arrives -----------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._last_words is not None or self.transport.is_closing():
            return
        self._bytes_without_body += len(data)
        super().data_received(data)
        if self.header_too_large() or self._bytes_without_body > _MOST_HEADER_BYTES:
            self._end(431, "The header is too large.", "header size")

    def send_400_response(self, msg: str) -> None:
        self._end(400, "This is not HTTP/1.1.", "not HTTP")

    def header_too_large(self) -> bool:
        return self._header_bytes > _MOST_HEADER_BYTES

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._receiving = self._in_header = True
        self._header_bytes = self._bytes_without_body = 0
        if self in self._all.waiting:
            self._all.turn_of_client(self)  # it is not silent any more

    def on_url(self, url: bytes) -> None:
        self._header_bytes += len(url)
        if not self.header_too_large():
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value) + 4
        # After the body come trailers, which are no headers: what they say about hosts and keys counts for nothing.
        if self._in_header and not self.header_too_large():
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.header_too_large() or self.parser.should_upgrade():  # in which case it comes again
            return
        self._take_host_from_target()
        self._start_cycle()
        self._in_header = False  # only now: either may refuse it
        if not self.pipeline:
            self._current = self.cycle

    def _start_cycle(self) -> None:
        """uvicorn's own way to begin a request, without what we never use."""
        parser, scope, url = self.parser, self.scope, self.url
        version = parser.get_http_version()
        query = b""
        if _PARTS.search(url):
            parsed = httptools.parse_url(url)
            url, query = parsed.path, parsed.query or b""
        path = url.decode("ascii")
        scope["method"], scope["http_version"] = parser.get_method().decode("ascii"), version
        scope["path"] = urllib.parse.unquote(path) if "%" in path else path
        scope["raw_path"], scope["query_string"] = url, query
        before = self.cycle
        cycle = Cycle(
            scope=scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=version != "1.0" and parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        scope["state"]["cycle"] = cycle
        self.cycle = cycle
        if before is None or before.response_complete:
            self._start_asgi_task(cycle, self.app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, self.app))

    def on_body(self, body: bytes) -> None:
        self._bytes_without_body = 0
        if self.header_too_large():
            return
        super().on_body(body)
        if self.cycle.response_complete:  # it was refused
            self.flow.pause_reading()
            self.loop.call_later(_DISCARDING_PAUSE, self._read_on)

    def _read_on(self) -> None:
        if not self.transport.is_closing():
            self.flow.resume_reading()

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._receiving = False
        if self.header_too_large():
            return
        super().on_message_complete()
        self._bytes_without_body = 0
        if self._is_at_work():
            self._all.turn_of_server(self)

    def _take_host_from_target(self) -> None:
        """`GET http://name/path` is for that name, whatever the Host header says (RFC 9112, 3.2.2)."""
        if self.url[:1] == b"/" or self.url == b"*":
            return
        target = httptools.parse_url(self.url)
        if (target.schema or b"").lower() != b"http" or not target.host:
            raise ValueError("neither a path nor an http:// address")  # the parser makes a 400 of it
        self.headers[:] = [(name, value) for name, value in self.headers if name != b"host"]
        host = b"[%b]" % target.host if b":" in target.host else target.host
        self.headers.append((b"host", host))

    # -- what goes out ----------------------------------------------------------------------------------------------

    def on_response_complete(self) -> None:
        """As uvicorn does it, without its timer for silent connections: `check` ends those."""
        self.server_state.total_requests += 1
        following = self.pipeline[-1][0] if self.pipeline else None
        self.read_by = None
        self._current = following
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        if not self._is_at_work():
            self._all.turn_of_client(self)
        if self._last_words is not None and following is None:
            self.transport.write(self._last_words)
            self.transport.close()

    def check(self, now: float) -> int:
        """End what has lasted too long; the bytes that the client has not read."""
        limits = self._all.limits
        held = 0 if self._current is None else cast("Cycle", self._current).held
        unsent = self.transport.get_write_buffer_size() + held
        if not unsent:
            self.read_by = None
        elif self.read_by is None:
            self.read_by = now + limits.write_seconds + unsent / _SLOWEST_READER
        elif now > self.read_by:
            self._all.on_refused("unread answer")
            self.transport.abort()
            return 0
        since = self._all.waiting.get(self)
        if since is None or self.transport.is_closing():
            return unsent
        waited = now - since
        if self._in_header or self.cycle is None:
            if waited > limits.header_seconds:
                self._end(408, "The header did not arrive in time.", "slow header")
        elif self._receiving:  # of a body that is wanted, the middleware ends the wait
            if self.cycle.response_complete and waited > _LINGER_SECONDS:
                self.transport.close()
        elif waited > limits.idle_seconds:
            self.transport.close()
        return unsent

    def make_room(self) -> None:
        self._all.turn_of_server(self)  # to close it
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        elif self._receiving and not self._is_answered():
            self._say(503, "All connections are in use.", "too many connections")
        else:
            self.transport.close()

    def _is_at_work(self) -> bool:
        """There is a whole request, and no answer to it yet."""
        current = self._current
        return current is not None and not current.more_body and not current.response_complete

    def _is_answered(self) -> bool:
        """The request that is being received has had its answer already."""
        return self._receiving and not self._in_header and self.cycle.response_started

    def _end(self, status: int, message: str, reason: str) -> None:
        """Refuse what is being received, and everything after it; what was accepted before is answered first."""
        if self._last_words is not None or self.transport.is_closing():
            return
        if self._is_answered():
            self.transport.close()
        elif self._end_after_answers(_answer(status, message)):
            self._all.on_refused(reason)
        else:
            self._say(status, message, reason)

    def _end_after_answers(self, last_words: bytes) -> bool:
        """Take no more; False when there is nothing left to answer."""
        if self._receiving and not self._in_header and self.pipeline:
            self.pipeline.popleft()  # it will never be whole
        if not self._is_at_work():
            return False
        self._last_words = last_words
        return True

    def _say(self, status: int, message: str, reason: str) -> None:
        self._all.on_refused(reason)
        self.transport.write(_answer(status, message))
        self.transport.close()

    def _send_ahead(self, begun: _Begun, pause: float) -> None:
        if begun.send_ahead() and not self.transport.is_closing():
            self.loop.call_later(pause, self._send_ahead, begun, 2 * pause)


class Cycle(RequestResponseCycle):
    """One request and its response, as uvicorn has them. A body is taken at once where it has arrived, an answer goes
    out in one write, and nobody need wait to hear that the client has left."""

    held = 0  # bytes of an answer that waits until the client has read some of those before it
    on_gone: Callable[[], None] = staticmethod(lambda: None)  # called when the client has left before its answer

    def take_body(self) -> bytes | None:
        """The body, if all of it has arrived already."""
        if self.more_body or self.disconnected:
            return None
        body, self.body = bytes(self.body), bytearray()
        self.flow.resume_reading()
        return body

    async def answer(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        """The whole answer in one write."""
        if self.flow.write_paused and not self.disconnected:
            self.held = len(body)
            await self.flow.drain()
            self.held = 0
        if self.disconnected:
            return
        self.response_started = self.response_complete = True
        parts = [STATUS_LINE[status], *(b"%b: %b\r\n" % header for header in headers)]
        if not self.keep_alive:
            parts.append(b"connection: close\r\n")
        parts.append(b"content-length: %d\r\n\r\n" % len(body))
        if len(body) <= _COPIED_BYTES:
            self.transport.write(b"".join((*parts, b"" if self.scope["method"] == "HEAD" else body)))
        else:  # nobody else is served while megabytes are copied
            self.transport.write(b"".join(parts))
            if self.scope["method"] != "HEAD":
                self.transport.write(body)
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()


class _Parser:
    """httptools' parser, to which `Upgrade` is a header that means nothing: a server may ignore it (RFC 9110, 7.8).

    httptools takes whatever comes after such a header, the body too, for another protocol. Clients that offer HTTP/2
    in this way (Java's does) go on in HTTP/1.1. So the header is parsed again without that field, and then the rest.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._parser = self._make()

    def _make(self) -> httptools.HttpRequestParser:
        parser = httptools.HttpRequestParser(self._connection)
        with contextlib.suppress(AttributeError):  # as uvicorn does; older versions need not be told
            parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    def feed_data(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            try:
                return self._parser.feed_data(rest)
            except httptools.HttpParserUpgrade as error:
                rest = rest[error.args[0] :]
            method, version = self._parser.get_method(), self._parser.get_http_version().encode()
            if method == b"CONNECT":
                raise httptools.HttpParserError("CONNECT")
            if self._connection.header_too_large():
                return  # and refused: its fields are not all here
            fields = [b"%b: %b\r\n" % field for field in self._connection.headers if field[0] != b"upgrade"]
            self._parser = self._make()
            self._parser.feed_data(
                b"%b %b HTTP/%b\r\n%b\r\n" % (method, self._connection.url, version, b"".join(fields))
            )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parser, name)


class _Flow(FlowControl):
    """Nothing is read while many requests wait in line: a client may send on and on, and each would be kept."""

    def __init__(self, transport: asyncio.Transport, pipeline: Sized) -> None:
        super().__init__(transport)
        self._pipeline = pipeline

    def resume_reading(self) -> None:
        if len(self._pipeline) < _MOST_IN_LINE:
            super().resume_reading()


class _Begun:
    """A transport to which the first bytes of an answer have gone already."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._sent = 0
        self._answered = False

    def send_ahead(self) -> bool:
        """One byte more; False when there is none, or the answer itself is on its way."""
        if self._answered or self._sent == len(_FIRST_BYTES):
            return False
        self._transport.write(_FIRST_BYTES[self._sent : self._sent + 1])
        self._sent += 1
        return True

    def write(self, data: bytes) -> None:
        if not self._answered:
            data, self._answered = data[self._sent :], True
        self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def _answer(status: int, message: str) -> bytes:
    body = b'{"error":"%s","error_type":"%s"}' % (message.encode(), b"Unhealthy" if status == 503 else b"Validation")
    retry = b"retry-after: 1\r\n" if status == 503 else b""
    return (
        b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n%bconnection: close\r\n\r\n%b"
        % (status, HTTPStatus(status).phrase.encode(), len(body), retry, body)
    )
