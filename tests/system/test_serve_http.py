"""What is sent to the server as HTTP/1.1 and is not, or hardly: a 4xx or a right answer, never a 500, never a wait.

The shapes are those by which a server and a proxy in front of it come to disagree about where a request ends or whom it
is for (RFC 9112, 11.2), and those that other protocols begin with.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest
from serving import folders, settings

from bertie.serve.run import Running
from bertie.serve.settings import Limits
from system.raw_http import BODY, EMBED, HOST, JSON, LENGTH, LIVE, Line, until

KEY = "user-key-0123456789"
POST = b"POST /embed HTTP/1.1\r\n" + HOST + JSON
CHUNKED = b"Transfer-Encoding: chunked\r\n"
CHUNKS = b"%x\r\n%b\r\n0\r\n" % (len(BODY), BODY)
GET = b"GET /live HTTP/1.1\r\n"
UPGRADE = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AA==\r\n"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return folders(tmp_path_factory.mktemp("models"), "embed")


@pytest.fixture(scope="module")
def server(models: dict[str, str]) -> Iterator[Running]:
    with Running(settings(models, limits=Limits(header_seconds=2, body_seconds=2))) as one:
        yield one


SHAPES: dict[str, tuple[bytes, int]] = {
    # where a request ends
    "length and chunks": (POST + LENGTH + CHUNKED + b"\r\n" + CHUNKS + b"\r\n", 400),
    "two lengths": (POST + LENGTH + b"Content-Length: 5\r\n\r\n" + BODY, 400),
    "two equal lengths": (POST + LENGTH * 2 + b"\r\n" + BODY, 400),
    "a list of lengths": (POST + b"Content-Length: 18, 18\r\n\r\n" + BODY, 400),
    "a length with a sign": (POST + b"Content-Length: +18\r\n\r\n" + BODY, 400),
    "a length of 5,000 zeros": (POST + b"Content-Length: " + b"0" * 5000 + b"\r\n\r\n", 400),
    "a length of 5,000 digits": (POST + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n", 400),
    "a length beyond 64 bits": (POST + b"Content-Length: " + b"9" * 20 + b"\r\n\r\n", 400),
    "a length of 0": (POST + b"Content-Length: 0\r\n\r\n", 400),
    "an unknown coding": (POST + b"Transfer-Encoding: xchunked\r\n\r\n" + BODY, 400),
    "a coding after chunked": (POST + b"Transfer-Encoding: chunked, identity\r\n\r\n" + CHUNKS + b"\r\n", 400),
    "chunked twice": (POST + CHUNKED * 2 + b"\r\n" + CHUNKS + b"\r\n", 400),
    "chunks": (POST + CHUNKED + b"\r\n" + CHUNKS + b"\r\n", 200),
    "a chunk of 2^64": (POST + CHUNKED + b"\r\n" + b"1" + b"0" * 16 + b"\r\n", 400),
    "a chunk of -1": (POST + CHUNKED + b"\r\n-1\r\n" + BODY, 400),
    "chunks with bare line feeds": (POST + CHUNKED + b"\r\n" + CHUNKS.replace(b"\r\n", b"\n") + b"\n", 400),
    "a chunk with an extension": (POST + CHUNKED + b"\r\n" + CHUNKS.replace(b"\r\n", b";a=b\r\n", 1) + b"\r\n", 200),
    "a chunk with a long extension": (POST + CHUNKED + b"\r\n5;" + b"x" * 300_000, 431),
    "a long trailer": (POST + CHUNKED + b"\r\n" + CHUNKS + b"X: " + b"x" * 300_000, 431),
    "bare line feeds": (LIVE.replace(b"\r\n", b"\n"), 400),
    "bare carriage returns": (LIVE.replace(b"\r\n", b"\r"), 400),
    "a folded header": (GET + HOST + b"X: a\r\n b\r\n\r\n", 400),
    "a folded host": (GET + b"Host: 127.0.0.1\r\n .evil.example\r\n\r\n", 400),
    "a NUL in a value": (GET + HOST + b"X: a\0b\r\n\r\n", 400),
    "a NUL in a name": (GET + HOST + b"X\0: ab\r\n\r\n", 400),
    "a space before the colon": (GET + HOST + b"X : ab\r\n\r\n", 400),
    "a header without a name": (GET + HOST + b": ab\r\n\r\n", 400),
    "3,000 headers": (GET + HOST + b"".join(b"x%d: y\r\n" % number for number in range(3000)) + b"\r\n", 200),
    "100,000 headers": (GET + HOST + b"".join(b"x%d: y\r\n" % number for number in range(100_000)) + b"\r\n", 431),
    "one long header": (GET + HOST + b"X: " + b"y" * 3_000_000, 431),
    "a long target": (b"GET /" + b"y" * 3_000_000, 431),
    "a long method": (b"A" * 100_000 + b" /live HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "a body to GET": (GET + HOST + LENGTH + b"\r\n" + BODY, 200),
    # whom it is for
    "no host": (GET + b"\r\n", 421),
    "two hosts": (GET + b"Host: evil.example\r\n" + HOST + b"\r\n", 400),
    "two hosts, the other way": (GET + HOST + b"host: evil.example\r\n\r\n", 400),
    "two equal hosts": (GET + HOST * 2 + b"\r\n", 400),
    "a list of hosts": (GET + b"Host: 127.0.0.1, evil.example\r\n\r\n", 421),
    "an address that goes on": (GET + b"Host: [::1].evil.example\r\n\r\n", 421),
    "an address with a zone": (GET + b"Host: [::1%evil.example]\r\n\r\n", 421),
    "a port that goes on": (GET + b"Host: localhost:80.evil.example\r\n\r\n", 421),
    "a user before the host": (GET + b"Host: 127.0.0.1@evil.example\r\n\r\n", 421),
    "a host in a trailer": (
        POST.replace(HOST, b"Host: evil.example\r\n") + CHUNKED + b"\r\n" + CHUNKS + HOST + b"\r\n", 421,
    ),
    "another host in a trailer": (POST + CHUNKED + b"\r\n" + CHUNKS + b"Host: evil.example\r\n\r\n", 200),
    "an address as target": (b"GET http://127.0.0.1/live HTTP/1.1\r\n" + HOST + b"\r\n", 200),
    "another's address as target": (b"GET http://evil.example/live HTTP/1.1\r\n" + HOST + b"\r\n", 421),
    "our address as target, for another": (b"GET http://[::1]:80/live HTTP/1.1\r\nHost: evil.example\r\n\r\n", 200),
    "an address of another kind": (b"GET ftp://127.0.0.1/live HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "no path": (b"GET live HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    # other versions, methods and protocols
    "HTTP/1.0": (b"GET /live HTTP/1.0\r\n" + HOST + b"\r\n", 200),
    "HTTP/1.0, kept alive": (b"GET /live HTTP/1.0\r\n" + HOST + b"Connection: keep-alive\r\n\r\n", 200),
    "HTTP/0.9": (b"GET /live\r\n\r\n", 421),
    "HTTP/1.2": (b"GET /live HTTP/1.2\r\n" + HOST + b"\r\n", 400),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 400),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    "100-continue": (POST + LENGTH + b"Expect: 100-continue\r\n\r\n" + BODY, 200),
    "another expectation": (POST + LENGTH + b"Expect: the unexpected\r\n\r\n" + BODY, 200),
    "OPTIONS *": (b"OPTIONS * HTTP/1.1\r\n" + HOST + b"\r\n", 404),
    "GET *": (b"GET * HTTP/1.1\r\n" + HOST + b"\r\n", 404),
    "CONNECT": (b"CONNECT evil.example:443 HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "CONNECT with a path": (b"CONNECT /live HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "TRACE": (b"TRACE /live HTTP/1.1\r\n" + HOST + b"\r\n", 405),
    "a method in small letters": (b"get /live HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "a websocket": (GET + HOST + UPGRADE + b"\r\n", 200),
    "a websocket and a frame": (GET + HOST + UPGRADE + b"\r\n\x81\x85abcdefghi", 200),
    "an upgrade with a body": (
        POST + LENGTH + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: \r\n\r\n" + BODY, 200,
    ),
    "an upgrade with a long header": (GET + HOST + UPGRADE + b"X: %b\r\n" % (b"y" * 70_000) + HOST + b"\r\n", 431),
    "letters beyond ASCII": (b"GET /\xff\xfe HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "escapes that are none": (b"GET /%zz%ff%00 HTTP/1.1\r\n" + HOST + b"\r\n", 404),
    "nonsense": (b"\r\n\r\n\0nonsense\r\n\r\n", 400),
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_a_strange_request_gets_its_answer(server: Running, name: str) -> None:
    raw, expected = SHAPES[name]
    with Line(server) as line:
        with suppress(ConnectionError):
            line.send(raw)
        try:
            assert line.status() == expected
        except ConnectionError:  # it was still being sent when it was refused
            assert len(raw) > 60_000
    assert until(lambda: not server.server.server_state.connections)
    assert until(lambda: server.service.in_flight == 0)  # its task ends a moment after its connection


@pytest.mark.parametrize("name", [name for name, (_, status) in SHAPES.items() if status != 200])
def test_a_strange_request_does_not_spoil_the_one_before_it(server: Running, name: str) -> None:
    raw, expected = SHAPES[name]
    with Line(server) as line:
        with suppress(ConnectionError):
            line.send(EMBED + raw)
        try:
            assert line.status() == 200
            assert line.status() == expected
        except ConnectionError:
            assert len(raw) > 60_000


@pytest.mark.parametrize("raw", [b"nonsense\r\n\r\n", b"\0", b"\r\n" * 40_000], ids=["words", "NUL", "line breaks"])
def test_nonsense_after_an_answer_is_told_so(server: Running, raw: bytes) -> None:
    with Line(server) as line:
        line.send(LIVE)
        assert line.status() == 200
        with suppress(ConnectionError):
            line.send(raw)
        with suppress(ConnectionError):
            assert line.status() == (400 if len(raw) < 60_000 else 431)
        assert line.ended()


def test_after_an_answer_the_connection_is_as_good_as_new(server: Running) -> None:
    after = ["chunks", "another host in a trailer", "a body to GET", "100-continue", "an upgrade with a body"]
    with Line(server) as line:
        for name in after:
            line.send(SHAPES[name][0])
            assert line.status() == 200
            line.send(EMBED)
            assert line.status() == 200


@pytest.mark.parametrize("path", ["/live", "/", "/openapi.json", "/v1/models", "/nothing"])
def test_head_is_get_without_the_body(server: Running, path: str) -> None:
    with Line(server) as line:
        line.send(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        status, headers, _ = line.answer()
        line.send(f"HEAD {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        data = b""
        while more := line.socket.recv(65536):
            data += more
    head, _, body = data.partition(b"\r\n\r\n")
    assert int(head.split()[1]) == status
    assert not body
    if status == 200:
        assert b"content-length: " + headers["content-length"].encode() in head


def test_neither_trailers_nor_second_headers_carry_a_key(models: dict[str, str]) -> None:
    right, wrong = f"X-Api-Key: {KEY}\r\n".encode(), b"X-Api-Key: wrong-key-0123\r\n"
    bearer = f"Authorization: Bearer {KEY}\r\n".encode()
    with Running(settings(models, keys=[KEY])) as server:
        for headers, trailers, expected in [
            (b"", right, 401),
            (b"", bearer, 401),
            (wrong, right, 401),
            (right, wrong, 200),
            (right, b"", 200),
            (wrong + right, b"", 400),
            (right + wrong, b"", 400),
            (bearer + bearer, b"", 400),
        ]:
            with Line(server) as line:
                line.send(POST + headers + CHUNKED + b"\r\n" + CHUNKS + trailers + b"\r\n")
                assert line.status() == expected, (headers, trailers)


def test_a_body_that_is_refused_is_not_asked_for(server: Running) -> None:
    with Line(server) as line:
        line.send(POST + b"Content-Length: 999999999\r\nExpect: 100-continue\r\n\r\n")
        assert line.socket.recv(12) == b"HTTP/1.1 413"
