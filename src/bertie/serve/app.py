"""The application: routes in FastAPI, their OpenAPI document, the page, and the middleware around it all.

Bodies are decoded and answers encoded by msgspec, by the types of each route; the document is made from the same types.
FastAPI writes the document down, serves the page, and says 404 and 405; a request whose path is a route's own goes from
the middleware to its function directly, which saves it a tenth of a millisecond. FastAPI's pages of documentation load
scripts from elsewhere, so they are off; pages.py has ours.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import msgspec
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

import bertie
from bertie.serve import schemas
from bertie.serve.failures import Refusal
from bertie.serve.http.middleware import Middleware
from bertie.serve.pages import add_pages
from bertie.serve.routes import embed, explore, fill, scores, server
from bertie.serve.routes.rows import make_route
from bertie.serve.service import AnyRoute, Call, Header, Service
from bertie.serve.tasks import ROW_ROUTES

if TYPE_CHECKING:
    from starlette.types import ExceptionHandler

ROUTES: list[AnyRoute] = [
    *embed.ROUTES,
    *scores.ROUTES,
    *(make_route(task, declared) for task, declared in ROW_ROUTES.items()),
    *fill.ROUTES,
    *explore.ROUTES,
    *server.ROUTES,
]
_ERRORS = {
    400: "Nothing to work on, or not JSON.",
    401: "No API key, or one that is not known.",
    403: "Not with this key.",
    404: "There is no such model.",
    408: "The request did not arrive in time.",
    409: "There is one of that name already.",
    413: "Too large: the body, the batch or a text.",
    415: "Not application/json.",
    421: "Not a Host this server answers to.",
    422: "JSON, but not what the route takes.",
    424: "The model failed on this.",
    429: "Too many requests; Retry-After says when to come again.",
    503: "Loading, restarting or shutting down.",
}

Json = dict[str, object]
Endpoint = Callable[[Request], Awaitable[Response]]


def make_app(service: Service, *, startup: Callable[[], Awaitable[None]] | None = None) -> Middleware:
    """The ASGI application of a service. `startup` is awaited when it begins to listen."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if startup is not None:
            await startup()
        yield
        service.close()

    app = FastAPI(
        title="Bertie", version=bertie.__version__, description="BERT behind HTTP: every task, batched across clients.",
        docs_url=None, redoc_url=None, lifespan=lifespan,
    )  # fmt: skip
    components: Json = {}
    for route in ROUTES:
        app.add_api_route(
            route.path,
            make_endpoint(route),
            methods=[route.method],
            summary=route.summary,
            tags=[route.group],
            name=route.handler.__name__,
            operation_id=f"{route.method.lower()}_{route.path.strip('/').replace('/', '_')}",
            openapi_extra=describe(route, components),
            response_class=Response,
        )
    made = app.openapi

    def openapi() -> dict[str, Any]:
        document = made()
        document.setdefault("components", {}).setdefault("schemas", {}).update(components)
        if service.settings.keys or service.settings.admin_keys:
            document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
            document["security"] = [{"key": []}]
        return document

    app.openapi = openapi  # type: ignore[method-assign]
    add_pages(app)
    app.add_exception_handler(HTTPException, cast("ExceptionHandler", _http_error))  # it is given this kind alone
    return Middleware(app, service, ROUTES)


def make_endpoint(route: AnyRoute) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        call: Call = request.scope["bertie.call"]
        return _as_response(*await call.answer(route))

    return endpoint


def _as_response(status: int, headers: list[Header], body: bytes) -> Response:
    response = Response(body, status)
    response.raw_headers += headers
    return response


async def _http_error(request: Request, error: HTTPException) -> Response:
    """No such path, or not with this method."""
    kind = {404: "NotFound", 405: "MethodNotAllowed"}.get(error.status_code, "Validation")
    refusal = Refusal(error.status_code, kind, f"{error.detail}.")
    response = _as_response(*refusal.answer(request.url.path))
    response.headers.update(error.headers or {})
    return response


# -- the document ---------------------------------------------------------------------------------------------------


def describe(route: AnyRoute, components: Json) -> Json:
    """A route's part of the OpenAPI document. Schemas that have a name go to `components`."""
    error = _schema(schemas.OpenAIError if route.path.startswith("/v1/") else schemas.TeiError, components)
    media = route.media_type.partition(";")[0]
    schema = {"type": "string"} if route.answer is None else _schema(route.answer, components)
    common = (401, 421) if route.method == "GET" else (401, 408, 421)
    responses: Json = {"200": {"description": "The answer.", "content": {media: {"schema": schema}}}}
    for status in sorted({*route.errors, *common}):
        content = {"application/json": {"schema": error}}
        responses[str(status)] = {"description": _ERRORS[status], "content": content}
    described: Json = {"responses": responses}
    if route.parameters:
        described["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in route.parameters
        ]
    if route.body is not None:
        examples = {name: {"value": value} for name, value in route.examples.items()}
        body = {"schema": _schema(route.body, components), "examples": examples}
        described["requestBody"] = {"required": True, "content": {"application/json": body}}
    return described


def _schema(kind: object, components: Json) -> Json:
    (found,), defined = msgspec.json.schema_components([kind], ref_template="#/components/schemas/{name}")
    components.update(defined)
    return found
