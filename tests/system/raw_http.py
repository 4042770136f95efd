"""HTTP as bytes on a socket, for what no HTTP client would send."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from typing import Any

from bertie.serve.run import Running

HOST = b"Host: 127.0.0.1\r\n"
BODY = b'{"inputs":"a dog"}'
JSON = b"Content-Type: application/json\r\n"
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
LIVE = b"GET /live HTTP/1.1\r\n" + HOST + b"\r\n"
EMBED = b"POST /embed HTTP/1.1\r\n" + HOST + JSON + LENGTH + b"\r\n" + BODY
SECONDS = 20.0  # for what comes at once on an idle machine


class Line:
    """A connection of one client."""

    def __init__(self, server: Running | int, *, receive_buffer: int = 0) -> None:
        port = server if isinstance(server, int) else int(server.url.rpartition(":")[2])
        self.socket = socket.socket()
        self.socket.settimeout(SECONDS)
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.connect(("127.0.0.1", port))
        self._read = b""

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def answer(self) -> tuple[int, dict[str, str], Any]:
        """(status, headers, body) of the next answer; interim ones are skipped. EOFError: there is none."""
        while b"\r\n\r\n" not in self._read:
            self._more()
        head, _, self._read = self._read.partition(b"\r\n\r\n")
        first, *rest = head.decode().split("\r\n")
        version, status, _ = first.split(" ", 2)
        assert version == "HTTP/1.1"
        if status == "100":
            return self.answer()
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)}
        length = int(headers["content-length"])
        while len(self._read) < length:
            self._more()
        body, self._read = self._read[:length], self._read[length:]
        return int(status), headers, json.loads(body) if body[:1] in (b"{", b"[") else body

    def status(self) -> int:
        return self.answer()[0]

    def ended(self) -> bool:
        """Nothing more comes; an error where the connection stays open instead."""
        assert not self._read
        try:
            return not self.socket.recv(1)
        except ConnectionError:
            return True

    def _more(self) -> None:
        more = self.socket.recv(65536)
        if not more:
            raise EOFError(self._read)
        self._read += more


def until(true: Callable[[], bool], seconds: float = SECONDS) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end and not true():
        time.sleep(0.02)
    return true()
