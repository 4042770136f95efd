"""The door: every request passes here before any route sees it, and is counted and logged when it ends.

In this order: headers that must not come twice, Host (a page elsewhere cannot reach this server under its own name),
draining, API key, rate, content type, size and time of the body. A body is read whole, up to the limit and not a byte
more is kept. Then the route runs while the connection is watched: when the client leaves, its queued work is dropped.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
import os
import random
import re
import socket
import time
from collections.abc import Iterable
from functools import lru_cache

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bertie.serve.failures import ClientLeft, Refusal, overloaded, too_large, unhealthy
from bertie.serve.http.connection import Cycle
from bertie.serve.http.rates import Rates
from bertie.serve.service import Answered, AnyRoute, Call, Header, Service
from bertie.serve.settings import LOOPBACK, Limits, digest

logger = logging.getLogger("bertie.serve")

# What may be asked without a key. Everything else is private as soon as there are keys.
PUBLIC = frozenset({"/", "/docs", "/health", "/live", "/ready"})
PUBLIC_FOLDERS = ("/static/", "/docs/")
ADMIN_FOLDER = "/admin/"
_ALWAYS = frozenset({"/health", "/live", "/ready", "/metrics"})  # while draining too, and not in the log
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
_JSON = re.compile(rb"application/(?:[a-z0-9.+-]*\+)?json\s*(?:;|$)", re.IGNORECASE)
_chance = random.Random(os.urandom(16))  # for request ids, which are no secrets
# Which of two would count depends on the reader; a proxy in front and we must not disagree about it.
_ONCE = (b"host", b"authorization", b"x-api-key", b"content-type", b"content-length")
_HOST = re.compile(rb"(?:\[([0-9a-f:.]+)\]|([^\[\]:]+))(?::[0-9]{0,5})?", re.IGNORECASE)
_LONGEST_ADDRESS = 45  # ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255; longer names are not remembered
_MOST_DIGITS = 18
_HEADERS = ((b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer"))


class Middleware:
    """The ASGI application around the routes' own."""

    def __init__(self, app: ASGIApp, service: Service, routes: Iterable[AnyRoute]) -> None:
        self._app, self._service = app, service
        self._routes = {(route.method, route.path): route for route in routes}
        self._paths = frozenset(path for _, path in self._routes) | {"/", "/docs", "/openapi.json"}
        settings = service.settings
        self._sample = settings.log_sample
        self._hosts = Hosts(settings.host, settings.allowed_hosts)
        rate = settings.limits.rate
        self._rates = Rates(rate, service.rate_buckets) if rate else None
        self._bodies = Bodies(settings.limits)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        if scope["type"] != "http":
            return await send({"type": "websocket.close", "code": 1008})
        headers: dict[bytes, bytes] = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"")
        call = Call(
            self._service,
            id=given.decode() if _REQUEST_ID.fullmatch(given) else f"{_chance.getrandbits(96):024x}",
            method=scope["method"],
            path=scope["path"],
            began=time.perf_counter(),
            client=(scope.get("client") or ("", 0))[0],
        )
        call.route = self._route_name(call.path)
        service = self._service
        service.in_flight += 1
        service.metrics.in_flight.inc()
        service.metrics.requests(call.route).inc()

        cycle: Cycle = scope["state"].pop("cycle")  # which has the scope: nothing of a request is left to the collector

        async def send_parts(message: Message) -> None:  # what FastAPI sends: the page, the document, 404
            if message["type"] == "http.response.start":
                call.status = message["status"]
                message["headers"] = [*message.get("headers", ()), *own_headers(call)]
                if service.draining:
                    message["headers"].append((b"connection", b"close"))
                cycle.held = int(dict(message["headers"]).get(b"content-length", 0))
            await send(message)
            cycle.held = 0

        async def answer(answered: Answered) -> None:
            call.status = answered[0]
            cycle.keep_alive = cycle.keep_alive and not service.draining
            await cycle.answer(call.status, (*answered[1], *own_headers(call)), answered[2])

        try:
            found = await self._pass(scope, receive, send_parts, call, headers, cycle)
            if found is not None:
                await answer(found)
        except Refusal as refusal:
            await answer(refusal.answer(call.path))
        except ClientLeft:
            call.gone = True
        except Exception:
            logger.exception("a request failed", extra={"request_id": call.id, "path": call.path[:200]})
            if not call.status:
                fault = Refusal(500, "Internal", "Something went wrong here; it has been logged.")
                await answer(fault.answer(call.path))
        finally:
            service.in_flight -= 1
            self._count(call)
            if service.traces is not None:
                service.traces.record(call, headers, time.perf_counter() - call.began)

    async def _pass(
        self, scope: Scope, receive: Receive, send: Send, call: Call, headers: dict[bytes, bytes], cycle: Cycle
    ) -> Answered | None:
        """The answer, or None where FastAPI has sent it."""
        service = self._service
        if len(headers) < len(scope["headers"]):
            names = [name for name, _ in scope["headers"]]
            twice = next((name for name in _ONCE if names.count(name) > 1), None)
            if twice is not None:
                raise Refusal(400, "Validation", f"The header {twice.decode()} was sent more than once.")
        self._hosts.check(headers.get(b"host"))
        if service.draining and call.path not in _ALWAYS:
            raise unhealthy("The server is shutting down.")
        most = 2 * service.settings.limits.queue_requests
        if service.at_work > most and call.path not in _ALWAYS:
            raise overloaded(f"Server is overloaded: {most} requests are under way.", retry_after=1)
        self._check_key(call, headers)
        if call.method == "HEAD":  # uvicorn leaves the body out, by its own scope
            scope = {**scope, "method": "GET"}
        scope["bertie.call"] = call
        route = self._routes.get((scope["method"], call.path))
        if call.method not in ("POST", "PUT", "PATCH", "DELETE"):
            if route is not None:
                return await call.answer(route)
            await self._app(scope, receive, send)
            return None
        if self._rates is not None:
            self._rates.check(call.key or call.client)
        try:
            call.body = await self._bodies.read(receive, headers.get(b"content-length", b""), call, cycle)
            service.at_work += 1
            try:
                return await self._work(scope, send, call, headers, cycle, route)
            finally:
                service.at_work -= 1
        finally:
            self._bodies.forget(call)

    async def _work(
        self, scope: Scope, send: Send, call: Call, headers: dict[bytes, bytes], cycle: Cycle, route: AnyRoute | None
    ) -> Answered | None:
        if call.body and not _JSON.match(headers.get(b"content-type", b"")):
            raise Refusal(415, "Validation", "The body must be JSON, sent with `Content-Type: application/json`.")
        call.as_bytes = headers.get(b"accept") == b"application/octet-stream"
        cycle.on_gone = call.leave
        if cycle.disconnected:  # since the body arrived
            raise ClientLeft
        if route is not None:
            return await call.answer(route)
        await self._app(scope, _no_more, send)
        return None

    def _check_key(self, call: Call, headers: dict[bytes, bytes]) -> None:
        settings = self._service.settings
        if call.path in PUBLIC or call.path.startswith(PUBLIC_FOLDERS):
            return
        administers = call.path.startswith(ADMIN_FOLDER)
        if not settings.keys and not administers:
            return
        if administers and not settings.admin_keys:
            raise Refusal(403, "Forbidden", "This server has no admin key, so models cannot be changed over HTTP.")
        given = _given_key(headers)
        if given is None:
            raise Refusal(401, "Unauthorized", "An API key is needed: `Authorization: Bearer KEY`.")
        held = digest(given)
        # Every key is compared, and each in constant time: how long it takes says nothing about how close it was.
        is_admin = sum(hmac.compare_digest(held, key) for key in settings.admin_keys) > 0
        is_known = sum(hmac.compare_digest(held, key) for key in settings.keys) > 0 or is_admin
        if not is_known:
            raise Refusal(401, "Unauthorized", "The API key is not known here.")
        if administers and not is_admin:
            raise Refusal(403, "Forbidden", "This needs an admin key.")
        call.key = held.hex()[:8]

    def _route_name(self, path: str) -> str:
        """A path as metrics know it: what a client makes up must not become a new label."""
        if path in self._paths:
            return path
        for folder in (*PUBLIC_FOLDERS, "/admin/models/", "/v1/models/"):
            if path.startswith(folder):
                return folder + "*"
        return "other"

    def _count(self, call: Call) -> None:
        if not call.outcome:
            if call.gone and not call.status:
                call.outcome = "vanished"
            else:
                call.outcome = "answered" if call.status < 400 else "refused" if call.status < 500 else "failed"
        seconds = time.perf_counter() - call.began
        metrics = self._service.metrics
        metrics.in_flight.dec()
        metrics.outcomes(call.route, call.outcome, str(call.status or 499)).inc()
        metrics.duration(call.route).observe(seconds)
        level = logging.DEBUG if call.path in _ALWAYS else logging.INFO
        sampled = call.outcome != "answered" or self._sample >= 1 or _chance.random() < self._sample
        if sampled and logger.isEnabledFor(level):
            fields = {
                "request_id": call.id,
                "method": call.method[:16],
                "path": call.path[:200],
                "status": call.status or 499,
                "outcome": call.outcome,
                "ms": round(seconds * 1e3, 2),
                "tokens": call.tokens,
                "client": call.client,
                "key_id": call.key,
            }
            logger.log(level, "request", extra=fields)


class Hosts:
    """Which names this server answers to. Addresses are always its own; a name must be one it knows."""

    def __init__(self, bound: str, allowed: tuple[str, ...]) -> None:
        self._all = "*" in allowed
        self._loopback = bound in LOOPBACK
        self._names = {"localhost", bound.lower(), *(name.lower() for name in allowed)}
        if not self._loopback:
            self._names.add(socket.gethostname().lower())

    def check(self, header: bytes | None) -> None:
        if self._all:
            return
        if found := _HOST.fullmatch(header or b""):
            name = (found[1] or found[2]).decode("latin-1").lower()
            if name in self._names or _is_address(name, loopback=self._loopback):
                return
        raise Refusal(421, "Validation", "This server does not answer to that Host; start it with --allow-host NAME.")


class Bodies:
    """Reads bodies, each within its own limits and all of them within a common one."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._sizes: dict[Call, int] = {}
        self._total = 0
        self._arriving: dict[Call, asyncio.Timeout] = {}  # the one that began first is first

    async def read(self, receive: Receive, declared: bytes, call: Call, cycle: Cycle) -> bytes:
        limits = self._limits
        if len(declared) > _MOST_DIGITS:
            raise Refusal(400, "Validation", f"Content-Length has {len(declared)} digits.")
        if declared.isdigit() and int(declared) > limits.body_bytes:
            raise too_large(f"The body has {int(declared)} bytes; {limits.body_bytes} are allowed.")
        if (whole := cycle.take_body()) is not None:
            self._hold(call, len(whole))
            return whole
        return await self._read_parts(receive, call)

    async def _read_parts(self, receive: Receive, call: Call) -> bytes:
        limits = self._limits
        parts: list[bytes] = []
        try:
            async with asyncio.timeout(limits.body_seconds) as deadline:
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientLeft
                    parts.append(message.get("body", b""))
                    whole = not message.get("more_body", False)
                    if not whole:
                        self._arriving.setdefault(call, deadline)
                    self._hold(call, len(parts[-1]))
                    if whole:
                        return parts[0] if len(parts) == 1 else b"".join(parts)
        except TimeoutError:
            why = f"within {limits.body_seconds:g} s" if deadline.when() else "before its place was needed"
            raise Refusal(408, "Timeout", f"The body did not arrive {why}.") from None
        finally:
            self._arriving.pop(call, None)

    def forget(self, call: Call) -> None:
        self._total -= self._sizes.pop(call, 0)

    def _hold(self, call: Call, size: int) -> None:
        self._sizes[call] = self._sizes.get(call, 0) + size
        self._total += size
        if self._sizes[call] > self._limits.body_bytes:
            raise too_large(f"The body has more than {self._limits.body_bytes} bytes.")
        if self._total <= self._limits.received_bytes:
            return
        # Those that have been sending longest make room, and where all are at work already, the new one does.
        oldest = next((one for one in self._arriving if one is not call), None)
        if oldest is None:
            raise overloaded("The bodies of the requests under way fill the memory set aside for them.", retry_after=1)
        self._arriving.pop(oldest).reschedule(0)  # that is, now


async def _no_more() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


def own_headers(call: Call) -> tuple[Header, ...]:
    return ((b"x-request-id", call.id.encode()), *_HEADERS)


def _given_key(headers: dict[bytes, bytes]) -> bytes | None:
    scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() == b"bearer" and key.strip():
        return key.strip()
    return headers.get(b"x-api-key", b"").strip() or None


def _is_address(name: str, *, loopback: bool) -> bool:
    return len(name) <= _LONGEST_ADDRESS and _is_known_address(name, loopback=loopback)


@lru_cache(maxsize=256)
def _is_known_address(name: str, *, loopback: bool) -> bool:
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    return address.is_loopback or not loopback
