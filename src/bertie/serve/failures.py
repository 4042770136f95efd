"""What a client is told when there is no answer: the status, the kind, and one sentence.

Kinds and codes are those of text-embeddings-inference (`Empty` 400, `Validation` 413, `Tokenizer` 422, `Overloaded`
429, `Backend` 424, `Unhealthy` 503), and a few of our own in the same style. Paths under /v1 get OpenAI's shape of
body, every other path text-embeddings-inference's.
"""

from __future__ import annotations

import msgspec

from bertie.errors import BertieError

_OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


_LONGEST_MESSAGE = 1000  # characters: some quote what was sent, which may be megabytes


class Refusal(Exception):
    """An answer that is an error. `retry_after` is in seconds."""

    def __init__(
        self, status: int, kind: str, message: str, *, remedy: str | None = None, retry_after: float | None = None
    ) -> None:
        if len(message) > _LONGEST_MESSAGE:
            message = message[:_LONGEST_MESSAGE] + "…"
        super().__init__(message)
        self.status, self.kind, self.message = status, kind, message
        self.remedy, self.retry_after = remedy, retry_after

    def headers(self) -> list[tuple[bytes, bytes]]:
        found = []
        if self.retry_after is not None:
            found.append((b"retry-after", str(max(1, round(self.retry_after))).encode()))
        if self.status == 401:
            found.append((b"www-authenticate", b"Bearer"))
        return found

    def answer(self, path: str) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        """Status, headers and body, in the shape of the path."""
        return self.status, [(b"content-type", b"application/json"), *self.headers()], self.body(path)

    def body(self, path: str) -> bytes:
        if not path.startswith("/v1/"):
            plain = {"error": self.message, "error_type": self.kind}
            return msgspec.json.encode(plain if self.remedy is None else plain | {"remedy": self.remedy})
        fallback = "server_error" if self.status >= 500 else "invalid_request_error"
        error: dict[str, str | None] = {
            "message": self.message,
            "type": _OPENAI_TYPES.get(self.status, fallback),
            "param": None,
            "code": self.kind.lower(),
        }
        if self.remedy is not None:
            error["remedy"] = self.remedy
        return msgspec.json.encode({"error": error})


class ClientLeft(Exception):
    """Nobody waits for the answer any more."""


class InferenceFailed(Exception):
    """The model failed on this work, and on no other."""


class EngineDown(Exception):
    """The model's engine broke down with this work in hand."""


def empty(what: str = "inputs") -> Refusal:
    return Refusal(400, "Empty", f"`{what}` cannot be empty")


def too_large(message: str, remedy: str | None = None) -> Refusal:
    return Refusal(413, "Validation", message, remedy=remedy)


def invalid(message: str) -> Refusal:
    return Refusal(422, "Validation", message)


def overloaded(message: str, retry_after: float) -> Refusal:
    return Refusal(429, "Overloaded", message, retry_after=retry_after)


def unhealthy(message: str, *, retry_after: float = 1) -> Refusal:
    return Refusal(503, "Unhealthy", message, retry_after=retry_after)


def as_refusal(error: Exception) -> Refusal:
    """What an error of the layers below means to a client. One that nobody expected is a failure of the backend."""
    match error:
        case Refusal():
            return error
        case EngineDown():
            return unhealthy("The engine broke down and is being restarted; try again.")
        case BertieError():
            return Refusal(422, "Validation", error.cause, remedy=error.remedy)
    if out_of_memory(error):
        return Refusal(424, "Backend", "There was not enough memory for this request; send less at once.")
    return Refusal(424, "Backend", "Inference failed.")


def is_told(error: Exception) -> bool:
    """Whether it was raised for the client to read; any other is a fault of ours."""
    return isinstance(error, BertieError | Refusal)


def out_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


def device_failed(error: BaseException) -> bool:
    """Has the device itself failed? Every later call on it would fail too."""
    if type(error).__name__ == "AcceleratorError":
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and "CUDA error" in text and "out of memory" not in text


UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def unreadable(error: Exception) -> Refusal:
    """For a body that could not be decoded."""
    match error:
        case msgspec.ValidationError():
            return Refusal(422, "Validation", f"The body is not what this route takes: {error}")
        case RecursionError():
            return Refusal(400, "Validation", "The body is nested too deeply.")
    return Refusal(400, "Validation", f"The body is not JSON: {error}")
