"""Log lines as JSON, one object per line, written by a thread of their own.

The event loop never waits for whoever reads the log, and hardly works for it: records are put aside, and twenty times a
second a thread writes what there is. Where nobody reads and too many wait, further ones are counted and dropped. Values
are encoded, so nothing a client sends can begin a line of its own. Bodies, queries and keys are never logged; a key
appears as the beginning of its digest.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections import deque
from datetime import UTC, datetime
from typing import TextIO

import msgspec

_MOST_RECORDS = 10_000
_EVERY_SECONDS = 0.05
_OWN_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}


class JsonLines(logging.Handler):
    """Records to JSON lines on a stream, through a thread."""

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__()
        self._stream = stream or sys.stderr
        self._records: deque[logging.LogRecord] = deque()
        self._dropped = 0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="log", daemon=True)
        self._thread.start()

    def createLock(self) -> None:  # noqa: N802  # logging's own name
        self.lock = None  # appending to a deque needs none

    def emit(self, record: logging.LogRecord) -> None:
        if len(self._records) < _MOST_RECORDS:
            self._records.append(record)
        else:
            self._dropped += 1

    def close(self) -> None:
        self._closing.set()
        self._thread.join(timeout=2)
        super().close()

    def _work(self) -> None:
        ends = False
        while not ends:
            ends = self._closing.wait(_EVERY_SECONDS)
            lines = b"".join(json_line(self._records.popleft()) for _ in range(len(self._records)))
            if self._dropped:
                lines += msgspec.json.encode({"level": "warning", "event": "log lines lost", "count": self._dropped})
                lines, self._dropped = lines + b"\n", 0
            if lines:
                try:
                    self._stream.write(lines.decode())
                    self._stream.flush()
                except (OSError, ValueError):  # nobody to write to any more
                    return


class JsonLinesAtOnce(logging.Handler):
    """The same without a thread, for a process that forks and says little."""

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(json_line(record).decode())
            sys.stderr.flush()


def json_line(record: logging.LogRecord) -> bytes:
    fields: dict[str, object] = {
        "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
        "level": record.levelname.lower(),
        "event": record.getMessage(),
    }
    fields.update((name, value) for name, value in vars(record).items() if name not in _OWN_FIELDS)
    if record.exc_info:
        fields["error"] = logging.Formatter().formatException(record.exc_info)
    return msgspec.json.encode(fields, enc_hook=str) + b"\n"


def start_logging(level: str) -> JsonLines:
    """All of the server's log, uvicorn's too, as JSON lines on standard error."""
    handler = JsonLines()
    use_handler(handler, level)
    return handler


def use_handler(handler: logging.Handler, level: str) -> None:
    # uvicorn warns of every request that is not HTTP; those are counted instead (bertie_connections_refused).
    levels = {"bertie": "WARNING", "bertie.serve": level.upper(), "uvicorn": "ERROR", "uvicorn.error": "ERROR"}
    for name, its_level in levels.items():
        logger = logging.getLogger(name)
        logger.handlers = [] if "." in name else [handler]
        logger.propagate = "." in name
        logger.setLevel(its_level)
    logging.getLogger("uvicorn.access").disabled = True
