"""The routes, a file to each group of them; `Route` is what the application and the document are made of."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from bertie.serve.service import Call

B = TypeVar("B")


@dataclass(frozen=True)
class Route(Generic[B]):
    """`body` is None for a route that reads none. A handler gives an object for JSON, or bytes of JSON."""

    path: str
    handler: Callable[[Call, B], Awaitable[object]]
    summary: str
    group: str
    body: type[B] | None = None
    answer: object = None
    method: str = "POST"
    examples: Mapping[str, object] = field(default_factory=dict)
    timed: bool = False  # text-embeddings-inference's timing headers
    media_type: str = "application/json"
    errors: tuple[int, ...] = (400, 413, 415, 422, 424, 429, 503)
    parameters: tuple[str, ...] = ()
