"""One request and its response, as uvicorn has them, with a short way for what is here whole and answered whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle


class Cycle(RequestResponseCycle):
    """A body is taken at once where it has arrived, an answer goes out in one write, and nobody need wait to hear that
    the client has left."""

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
        parts += (b"content-length: %d\r\n\r\n" % len(body), b"" if self.scope["method"] == "HEAD" else body)
        self.transport.write(b"".join(parts))
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()
