"""What a route is: a path, the types of its bodies, and the function that answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from bertie.serve.service import Call, Service

Handler = Callable[[Service, Call, Any], Awaitable[Any]]


@dataclass(frozen=True)
class Route:
    """`body` is None for a route that reads none. A handler gives an object for JSON, or bytes of JSON."""

    path: str
    handler: Handler
    summary: str
    group: str
    body: Any = None
    answer: Any = None
    method: str = "POST"
    examples: dict[str, Any] = field(default_factory=dict)
    timed: bool = False  # text-embeddings-inference's timing headers
    media_type: str = "application/json"
    errors: tuple[int, ...] = (400, 413, 415, 422, 424, 429, 503)
    parameters: tuple[str, ...] = ()
