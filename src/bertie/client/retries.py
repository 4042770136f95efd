"""When a request is sent again, and how long after.

Every route of the server only computes, so a request may be sent twice without harm. It is sent again when the server
said that it is busy (429) or away (503), or when the connection failed; other refusals are final. The pause doubles
from one attempt to the next, a random part of it is left out so that many clients do not come back at the same moment,
and it is never shorter than the server's Retry-After.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

from bertie.errors import BertieError, InputError

BUSY = (429, 503)


class ServerError(BertieError, OSError):
    """A server that cannot be reached, or that did not answer. `status` is HTTP's; None where there was no response."""

    def __init__(self, cause: str, remedy: str | None = None, *, status: int | None = None) -> None:
        super().__init__(cause, remedy)
        self.status = status


@dataclass(frozen=True)
class Retrying:
    """`attempts` in all; pauses start at `first` seconds, double, and stay below `longest`."""

    attempts: int = 6
    first: float = 0.25
    longest: float = 20.0

    def __post_init__(self) -> None:
        if isinstance(self.attempts, bool) or not isinstance(self.attempts, int) or self.attempts < 1:
            raise InputError(f"attempts is {self.attempts!r}; it takes a whole number of at least 1.")

    def pause(self, attempt: int, retry_after: float | None = None) -> float | None:
        """Seconds to wait after attempt number `attempt` (from 1); None to give up.

        A server that asks for more patience than `longest` is not waited for.
        """
        if attempt >= self.attempts or (retry_after or 0) > self.longest:
            return None
        grown = min(self.first * 2.0 ** (attempt - 1), self.longest)
        return max(grown * random.uniform(0.5, 1.0), retry_after or 0.0)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that a response asks to wait: Retry-After as a number or as a date."""
    value = headers.get("retry-after")
    if value is None:
        return None
    try:
        return max(float(value), 0.0)
    except ValueError:
        pass
    try:
        return max(parsedate_to_datetime(value).timestamp() - time.time(), 0.0)
    except ValueError:
        return None


def refusal(status: int, payload: Any, *, url: str) -> BertieError:
    """The error for a response that is not an answer, with the server's own words.

    What the request itself got wrong is an InputError, as it is without a server in between.
    """
    cause, remedy = _words(payload)
    said = cause or f"The server answered with status {status}."
    if status in (400, 413, 422):
        return InputError(said, remedy)
    if status in (401, 403):
        return ServerError(said, remedy or "Put a key that the server knows into BERTIE_API_KEY.", status=status)
    if status == 404:
        return ServerError(said, remedy or f"Look at {url}/info for what this server can do.", status=status)
    return ServerError(said, remedy or f"Look at {url}/health and the server's log.", status=status)


def unreachable(url: str, problem: Exception) -> ServerError:
    return ServerError(
        f"{url} cannot be reached: {problem or type(problem).__name__}.",
        "Start a server with `bertie serve -m MODEL`, or give its address with url= (--url).",
    )


def too_slow(url: str, seconds: float | None) -> ServerError:
    return ServerError(
        f"{url} did not answer within {seconds} seconds.", "Allow more with timeout= (--timeout), or send fewer texts."
    )


def _words(payload: Any) -> tuple[str | None, str | None]:
    """Cause and remedy in any of the shapes that servers use: ours, OpenAI's, text-embeddings-inference's."""
    if not isinstance(payload, dict):
        return None, None
    error = payload.get("error", payload.get("detail"))
    if isinstance(error, dict):
        payload, error = error, error.get("message")
    cause = payload.get("cause") or payload.get("message") or error
    remedy = payload.get("remedy")
    return (cause if isinstance(cause, str) else None), (remedy if isinstance(remedy, str) else None)
