"""No client can keep a connection, a buffer or a place for ever, and none is shut out by those who try (QUALITY 14)."""

from __future__ import annotations

import asyncio
import resource
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import folders, settings

from bertie.serve.http.middleware import Middleware
from bertie.serve.run import Running
from bertie.serve.settings import Limits
from system.raw_http import EMBED, HOST, JSON, LIVE, Line, until
from system.serve_process import serving

QUICK = Limits(header_seconds=0.5, body_seconds=0.5, idle_seconds=0.5, write_seconds=0.5)
PARTIAL = b"POST /embed HTTP/1.1\r\n" + HOST + JSON + b"Content-Length: 1000\r\n\r\n{"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return folders(tmp_path_factory.mktemp("models"), "embed")


@contextmanager
def running(models: dict[str, str], limits: Limits, *, send_buffer: int = 0) -> Iterator[Running]:
    server = Running(settings(models, limits=limits))
    if send_buffer:  # what is accepted from this socket has the same
        server._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    with server:
        yield server


@pytest.fixture(scope="module")
def quick(models: dict[str, str]) -> Iterator[Running]:
    with running(models, QUICK, send_buffer=4096) as server:
        yield server


def connections(server: Running) -> list[Any]:
    return list(server.server.server_state.connections)


def works(server: Running) -> bool:
    with Line(server) as line:
        line.send(EMBED)
        return line.status() == 200


# -- idle and slow ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [b"", b"\r\n", b"\r\n\r\n", b"\r", b"GET /li"], ids=repr)
def test_an_idle_connection_ends_whatever_it_sends_between_requests(quick: Running, more: bytes) -> None:
    with Line(quick) as line:
        line.send(LIVE)
        assert line.status() == 200
        line.send(more)
        if more.startswith(b"G"):
            assert line.status() == 408
        assert line.ended()


def test_line_breaks_without_end_are_no_sign_of_life(quick: Running) -> None:
    with Line(quick) as line:
        line.send(LIVE)
        assert line.status() == 200

        def refused() -> bool:
            try:
                line.send(b"\r\n")
            except ConnectionError:
                return True
            return False

        assert until(refused)


@pytest.mark.parametrize("begin", [b"", b"\r\n", b"POST /embed HT", EMBED[:60]], ids=repr)
def test_a_header_that_trickles_gets_408(quick: Running, begin: bytes) -> None:
    with Line(quick) as line:
        line.send(begin)
        line.socket.settimeout(0.1)
        rest = EMBED.removeprefix(begin).replace(HOST, HOST + b"X: " + b"x" * 200 + b"\r\n")
        for byte in rest[:200]:
            with suppress(TimeoutError):
                assert line.status() == 408
                break
            with suppress(ConnectionError):
                line.send(bytes([byte]))
        else:
            pytest.fail("it was never refused")
        assert line.ended()


def test_idle_and_half_sent_connections_make_room_for_others(models: dict[str, str]) -> None:
    """Forty that are silent in every way, where twenty may be open: whoever comes is answered all the same."""
    with running(models, Limits(connections=20)) as server:
        lines = []
        for number in range(40):
            lines.append(line := Line(server))
            kind = number % 4
            if kind > 1:
                line.send(LIVE)
                assert line.status() == 200
            line.send([b"", PARTIAL, b"\r\n", b"GET /live HT"][kind])
            assert len(connections(server)) <= 22
        for _ in range(10):
            assert works(server)
        assert until(lambda: len(connections(server)) <= 20)
        for line in lines[:20]:  # the longest silent ones went first
            with suppress(EOFError, ConnectionError):
                assert line.status() == 503
            assert line.ended()
        for line in lines[-5:]:
            line.socket.settimeout(0.05)
            with pytest.raises(TimeoutError):
                line.ended()
        for line in lines:
            line.socket.close()


def test_a_connection_at_work_is_not_closed_for_another(models: dict[str, str], slow: Callable[[float], None]) -> None:
    slow(1.0)
    with running(models, Limits(connections=3)) as server:
        working = [Line(server) for _ in range(3)]
        for line in working:
            line.send(EMBED)
        assert until(lambda: server.service.in_flight == 3)
        with Line(server) as late:
            status, headers, _ = late.answer()
            assert (status, headers["retry-after"]) == (503, "1")
            assert late.ended()
        for line in working:
            assert line.status() == 200
            line.socket.close()


def test_bodies_that_do_not_arrive_leave_the_places_to_others(models: dict[str, str]) -> None:
    with running(models, Limits(queue_requests=5)) as server:
        lines = [Line(server) for _ in range(30)]
        for line in lines:
            line.send(PARTIAL)
        assert until(lambda: server.service.in_flight == 30)
        assert works(server)
        for line in lines:
            line.socket.close()
        assert until(lambda: server.service.in_flight == 0)


def test_bodies_together_have_a_limit_and_the_slowest_sender_goes_first(models: dict[str, str]) -> None:
    with running(models, Limits(received_bytes=100_000, body_bytes=60_000)) as server:
        lines = [Line(server) for _ in range(4)]
        for number, line in enumerate(lines):
            line.send(PARTIAL.replace(b"1000", b"50000") + b" " * 40_000)
            assert until(lambda number=number: server.service.in_flight == min(number + 1, 2))  # type: ignore[misc]
        for line in lines[:2]:
            status, _, body = line.answer()
            assert status == 408
            assert "its place was needed" in body["error"]
        assert works(server)
        for line in lines:
            line.socket.close()


# -- answers nobody reads ---------------------------------------------------------------------------------------------

DOCUMENT = b"GET /openapi.json HTTP/1.1\r\n" + HOST  # tens of kilobytes, many times what the buffers here take


@pytest.mark.parametrize("extra", [b"", b"Connection: close\r\n"], ids=["kept alive", "closing"])
@pytest.mark.parametrize("requests", [1, 20])
def test_an_answer_that_is_not_read_is_dropped(quick: Running, extra: bytes, requests: int) -> None:
    assert until(lambda: not connections(quick))
    with Line(quick, receive_buffer=2048) as line:
        line.send((DOCUMENT + extra + b"\r\n") * requests)
        assert until(lambda: len(connections(quick)) == 1)
        assert until(lambda: not connections(quick))
        assert until(lambda: quick.service.in_flight == 0)
    assert works(quick)


def test_a_refused_sender_is_not_read_as_fast_as_it_sends(quick: Running) -> None:
    """Throwing away what nobody wants would take a core, and everyone else would wait for it."""
    head = b"POST /embed HTTP/1.1\r\n" + HOST + JSON + b"Content-Length: 500000000\r\n\r\n"
    sent, data = 0, bytes(1 << 20)
    with Line(quick) as line:
        line.send(head)
        assert line.status() == 413
        line.socket.settimeout(0.05)
        ends = time.monotonic() + 1
        while time.monotonic() < ends and sent < 200 << 20:
            with suppress(TimeoutError):
                sent += line.socket.send(data)
    assert sent < 64 << 20
    assert works(quick)


def test_an_answer_that_is_read_slowly_arrives_whole(models: dict[str, str]) -> None:
    limits = Limits(write_seconds=10, idle_seconds=0.2, header_seconds=0.2)
    with running(models, limits, send_buffer=4096) as server, Line(server, receive_buffer=2048) as line:
        line.send(DOCUMENT + b"\r\n")
        time.sleep(1)
        status, _, body = line.answer()
        assert status == 200
        assert body["openapi"]


def test_unread_answers_of_all_clients_have_a_limit(models: dict[str, str]) -> None:
    limits = Limits(write_seconds=600, unsent_bytes=200_000)
    with running(models, limits, send_buffer=4096) as server:
        lines = [Line(server, receive_buffer=2048) for _ in range(20)]
        for line in lines:
            line.send(DOCUMENT + b"\r\n")

        def held() -> int:
            return sum(one.transport.get_write_buffer_size() for one in connections(server))

        dropped = server.service.metrics.connections_refused.labels("unread answer")._value
        assert until(lambda: dropped.get() > 0 and held() <= 200_000)
        assert dropped.get() < 20
        assert works(server)
        for line in lines:
            line.socket.close()


def test_answers_that_wait_for_unread_ones_count_too(models: dict[str, str]) -> None:
    """The second answer of a line is not in its buffer yet: it is made, and waits until the client has read."""
    with running(models, Limits(write_seconds=600, unsent_bytes=1 << 30), send_buffer=4096) as server:
        size = len(httpx.get(server.url + "/openapi.json").content)
        assert until(lambda: not connections(server))
        with Line(server, receive_buffer=2048) as line:
            line.send((DOCUMENT + b"\r\n") * 2)
            assert until(lambda: len(connections(server)) == 1 and connections(server)[0].check(0.0) > 1.5 * size)
            assert connections(server)[0].transport.get_write_buffer_size() <= size + 1000


def test_pipelined_requests_are_not_hoarded(models: dict[str, str]) -> None:
    """A client that asks without end and reads nothing: what is read from it stops, long before the memory does."""
    with (
        running(models, Limits(write_seconds=600), send_buffer=4096) as server,
        Line(server, receive_buffer=2048) as line,
    ):
        line.socket.settimeout(0.5)
        sent = 0
        with suppress(TimeoutError):
            while sent < 64 << 20:
                sent += line.socket.send(EMBED * 1000)
        assert sent < 64 << 20
        (one,) = connections(server)
        assert len(one.pipeline) * len(EMBED) < 1 << 20


def test_a_thousand_pipelined_requests_are_answered_in_order(models: dict[str, str]) -> None:
    with running(models, Limits()) as server, Line(server) as line:
        for number in range(1000):
            path = b"GET /live" if number % 3 else b"HEAD /nothing"
            line.send(path + b" HTTP/1.1\r\n" + HOST + b"X-Request-Id: %d\r\n\r\n" % number if number % 3 else
                      EMBED.replace(b"\r\n\r\n", b"\r\nX-Request-Id: %d\r\n\r\n" % number))  # fmt: skip
        for number in range(1000):
            status, headers, _ = line.answer()
            assert (status, headers["x-request-id"]) == (200, str(number))


# -- half-closed ------------------------------------------------------------------------------------------------------


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Requests take so many seconds longer."""

    def by(seconds: float) -> None:
        work = Middleware._work

        async def slower(self: Middleware, *given: Any) -> Any:
            call, cycle = given[2], given[4]
            ends = time.monotonic() + seconds
            while time.monotonic() < ends and not cycle.disconnected:
                await asyncio.sleep(0.01)
            call.gone = cycle.disconnected
            return await work(self, *given)

        monkeypatch.setattr(Middleware, "_work", slower)

    return by


@pytest.mark.parametrize("seconds", [0.0, 0.3, 1.5])
@pytest.mark.parametrize("requests", [1, 3])
def test_a_client_that_has_ended_its_side_gets_its_answers(
    models: dict[str, str], slow: Callable[[float], None], seconds: float, requests: int
) -> None:
    slow(seconds)
    with running(models, Limits()) as server, Line(server) as line:
        line.send(EMBED * requests + EMBED[:-5])  # the last one will never be whole
        line.socket.shutdown(socket.SHUT_WR)
        for _ in range(requests):
            status, _, body = line.answer()
            assert status == 200
            assert len(body) == 1
        assert line.ended()
        assert until(lambda: not connections(server))


def test_a_half_closed_client_that_expects_100_gets_a_right_answer(models: dict[str, str]) -> None:
    with running(models, Limits()) as server, Line(server) as line:
        line.send(EMBED.replace(JSON, JSON + b"Expect: 100-continue\r\n"))
        line.socket.shutdown(socket.SHUT_WR)
        assert line.status() == 200
        assert line.ended()


def test_half_a_request_and_an_end_is_no_request(models: dict[str, str]) -> None:
    with running(models, Limits()) as server:
        for part in (b"", EMBED[:20], EMBED[:-3], LIVE[:-2]):
            with Line(server) as line:
                line.send(part)
                line.socket.shutdown(socket.SHUT_WR)
                assert line.ended()
        assert until(lambda: not connections(server))


@pytest.mark.parametrize("requests", [1, 2])
def test_a_client_that_has_ended_both_sides_is_noticed(
    models: dict[str, str], slow: Callable[[float], None], requests: int
) -> None:
    slow(600)
    with running(models, Limits()) as server:
        with Line(server) as line:
            line.send(EMBED * requests)
            assert until(lambda: server.service.in_flight == 1)
        assert until(lambda: server.service.in_flight == 0)
        assert until(lambda: not connections(server))


# -- many -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_ten_thousand_idle_connections_shut_nobody_out(models: dict[str, str], tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 10_500:
        pytest.skip("this system does not allow a process 10,500 descriptors")
    with serving(tmp_path, "--model", models["embed"], "--device", "cpu", "--threads", "1") as server:
        before = server.descriptors()
        resource.setrlimit(resource.RLIMIT_NOFILE, (10_500, hard))
        lines, slowest, most = [], 0.0, 0
        try:
            for number in range(10_000):
                lines.append(line := Line(server.port))
                with suppress(ConnectionError):
                    line.send([b"", LIVE, PARTIAL, b"\r\n"][number % 4])
                if number % 250 == 249:
                    began = time.monotonic()
                    assert server.post("/embed", {"inputs": "a dog"}).status_code == 200
                    slowest = max(slowest, time.monotonic() - began)
                    most = max(most, server.descriptors())
        finally:
            for line in lines:
                line.socket.close()
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert most <= before + 2048 + 64
        assert until(lambda: server.descriptors() <= before + 3)
        print(f"10,000 connections: at most {most} descriptors, slowest request beside them {slowest:.2f} s, 0 refused")
