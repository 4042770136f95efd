"""What a browser is shown: the page at `/`, and Swagger UI at `/docs`. All their files come from this server.

Swagger UI's own files are those of the package fastapi-offline, which carries them; without it there is no /docs.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from bertie.explore.page import STATIC

_SELF = (
    "default-src 'none'; script-src 'self'; font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; "
)
PAGE_POLICY = _SELF + "style-src 'self'; img-src 'self'"
DOCS_POLICY = _SELF + "style-src 'self' 'unsafe-inline'; img-src 'self' data:"  # Swagger UI sets styles as it goes
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
    ".json": "application/json",
    ".txt": "text/plain; charset=utf-8",
}
_DOCS = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>Bertie: the API</title>
<link rel="stylesheet" href="docs/swagger-ui.css">
</head>
<body>
<div id="api"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</body>
</html>
"""
# Where the server has keys, the document needs one, too: it is asked for once, and kept while the tab is open.
_START = """"use strict";
(async () => {
  const known = () => sessionStorage.getItem("bertie-key");
  const headers = () => (known() ? { Authorization: "Bearer " + known() } : {});
  if ((await fetch("openapi.json", { headers: headers() })).status === 401) {
    sessionStorage.setItem("bertie-key", prompt("This server needs an API key:") || "");
  }
  SwaggerUIBundle({
    url: "openapi.json",
    dom_id: "#api",
    deepLinking: true,
    requestInterceptor: (request) => Object.assign(request, { headers: { ...headers(), ...request.headers } }),
  });
})();
"""


def add_pages(app: FastAPI) -> None:
    """`/`, `/static/*` and `/docs`: the files that are there when the server starts, and no others."""
    files = {str(file.relative_to(STATIC)): file for file in STATIC.rglob("*") if file.suffix in _TYPES}

    async def page(request: Request) -> Response:
        file = files.get(request.path_params.get("name", "index.html"))
        if file is None:
            raise HTTPException(404, "There is no such file")
        return _shown(file.read_bytes(), file.suffix, PAGE_POLICY)

    app.add_route("/", page, methods=["GET"], include_in_schema=False)
    app.add_route("/static/{name:path}", page, methods=["GET"], include_in_schema=False)
    package = find_spec("fastapi_offline")
    if package is not None and package.origin is not None:
        _add_docs(app, Path(package.origin).parent / "static")


def _add_docs(app: FastAPI, vendored: Path) -> None:
    texts = {"": (".html", _DOCS.encode()), "start.js": (".js", _START.encode())}
    names = ("swagger-ui.css", "swagger-ui-bundle.js")

    async def docs(request: Request) -> Response:
        name = request.path_params.get("name", "")
        if name in texts:
            suffix, content = texts[name]
        elif name in names:
            suffix, content = Path(name).suffix, (vendored / name).read_bytes()
        else:
            raise HTTPException(404, "There is no such file")
        return _shown(content, suffix, DOCS_POLICY)

    app.add_route("/docs", docs, methods=["GET"], include_in_schema=False)
    app.add_route("/docs/{name}", docs, methods=["GET"], include_in_schema=False)


def _shown(content: bytes, suffix: str, policy: str) -> Response:
    headers = {"content-security-policy": policy, "cache-control": "no-cache", "x-frame-options": "DENY"}
    return Response(content, headers=headers, media_type=_TYPES[suffix])
