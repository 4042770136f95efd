"""Nobody gets in: keys on every private route, nothing of them in the log, loopback and no CORS by default."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from io import StringIO

import httpx
import pytest
from serving import client, folders, settings

from bertie.explore.page import STATIC
from bertie.serve.app import ROUTES
from bertie.serve.http import middleware
from bertie.serve.logs import start_logging
from bertie.serve.run import Running
from bertie.serve.settings import ModelChoice, Settings

KEY, ADMIN = "user-key-0123456789", "admin-key-9876543210"
PUBLIC = {"/health", "/live", "/ready"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return folders(tmp_path_factory.mktemp("models"), "embed")["embed"]


@pytest.fixture(scope="module")
def locked(folder: str) -> Iterator[Running]:
    with Running(settings({"m": folder}, keys=[KEY], admin_keys=[ADMIN])) as server:
        yield server


@pytest.fixture(scope="module")
def open_server(folder: str) -> Iterator[Running]:
    with Running(settings({"m": folder})) as server:
        yield server


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer wrong-key-000"}, {"x-api-key": KEY + "x"}], ids=str)
def test_every_private_route_needs_a_key(locked: Running, route: object, headers: dict[str, str]) -> None:
    with client(locked) as http:
        answer = http.request(route.method, route.path.replace("{name}", "m"), headers=headers, json={})  # type: ignore[attr-defined]
    if route.path in PUBLIC:  # type: ignore[attr-defined]
        assert answer.status_code == 200
    else:
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"


def test_the_document_is_private_too_and_the_page_is_not(locked: Running) -> None:
    with client(locked) as http:
        assert http.get("/openapi.json").status_code == 401
        assert http.get("/openapi.json", headers={"authorization": f"Bearer {KEY}"}).status_code == 200
        assert http.get("/").status_code in (200, 404)
        assert http.get("/nothing").status_code == 401


@pytest.mark.parametrize("header", ["authorization", "x-api-key"])
def test_a_key_opens_and_an_admin_key_opens_more(locked: Running, header: str) -> None:
    prefix = "Bearer " if header == "authorization" else ""
    with client(locked) as http:
        assert http.post("/embed", json={"inputs": "a"}, headers={header: prefix + KEY}).status_code == 200
        assert http.post("/admin/models", json={}, headers={header: prefix + KEY}).status_code == 403
        assert http.post("/admin/models", json={}, headers={header: prefix + ADMIN}).status_code == 422
        assert http.post("/embed", json={"inputs": "a"}, headers={header: prefix + ADMIN}).status_code == 200


def test_without_an_admin_key_nobody_administers(open_server: Running) -> None:
    with client(open_server) as http:
        assert http.post("/admin/models", json={"name": "a", "source": "b"}).status_code == 403
        assert http.delete("/admin/models/m").status_code == 403
        assert http.post("/embed", json={"inputs": "a"}).status_code == 200


def test_keys_are_compared_in_constant_time() -> None:
    """Every comparison of keys is hmac.compare_digest over digests of one length."""
    source = inspect.getsource(middleware.Middleware._check_key)
    assert source.count("hmac.compare_digest(held, key)") == 2
    assert not re.search(r"held\s*(==|in|!=)", source)


def test_neither_keys_nor_texts_nor_queries_are_logged(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = StringIO()
    monkeypatch.setattr("sys.stderr", lines)
    handler = start_logging("debug")
    try:
        with Running(settings({"m": folder}, keys=[KEY])) as server, client(server) as http:
            for key in (KEY, "wrong-key-123"):
                http.post("/embed?token=" + key, json={"inputs": "a secret text"}, headers={"x-api-key": key})
                http.get("/nothing%0a{}", headers={"authorization": "Bearer " + key, "x-request-id": "bad\tid"})
    finally:
        handler.close()
    written = lines.getvalue()
    assert KEY not in written
    assert "wrong-key-123" not in written
    assert "secret text" not in written
    records = [json.loads(line) for line in written.splitlines()]
    requests = [record for record in records if record["event"] == "request" and record["path"] == "/embed"]
    assert {record["status"] for record in requests} == {200, 401}
    assert all(re.fullmatch(r"[0-9a-f]{24}", record["request_id"]) for record in requests)


def test_a_request_id_is_kept_or_made(open_server: Running) -> None:
    with client(open_server) as http:
        assert http.get("/live", headers={"x-request-id": "abc-1"}).headers["x-request-id"] == "abc-1"
        assert len(http.get("/live", headers={"x-request-id": "a b"}).headers["x-request-id"]) == 24


def test_the_default_is_loopback_without_cors(open_server: Running) -> None:
    assert Settings(models=(ModelChoice("m", "m"),)).host == "127.0.0.1"
    with client(open_server) as http:
        origin = {"origin": "https://evil.example", "access-control-request-method": "POST"}
        for answer in (http.options("/embed", headers=origin), http.get("/ready", headers=origin)):
            assert not [name for name in answer.headers if name.startswith("access-control")]
        assert http.options("/embed", headers=origin).status_code == 405


def test_a_foreign_host_name_is_not_answered(open_server: Running) -> None:
    with client(open_server) as http:
        assert http.get("/live", headers={"host": "evil.example"}).status_code == 421
        assert http.get("/live", headers={"host": "localhost:1234"}).status_code == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", None])
def test_what_a_form_on_another_page_can_send_is_refused(open_server: Running, kind: str | None) -> None:
    headers = {} if kind is None else {"content-type": kind}
    with client(open_server) as http:
        assert http.post("/embed", content=b'{"inputs": "a"}', headers=headers).status_code == 415


def test_the_page_s_files_and_no_others_are_served(open_server: Running) -> None:
    with client(open_server) as http:
        for path in ("/static/../app.py", "/static/%2e%2e/app.py", "/static//etc/passwd", "/static/..%2f..%2fapp.py"):
            request = http.build_request("GET", path)
            request.url = httpx.URL(open_server.url + "/").copy_with(raw_path=path.encode())
            assert http.send(request).status_code == 404
        files = list(STATIC.glob("*.*"))
        assert files
        for file in files:
            answer = http.get(f"/static/{file.name}")
            assert answer.status_code == 200
            assert "'unsafe" not in answer.headers["content-security-policy"]
            assert answer.headers["x-content-type-options"] == "nosniff"
