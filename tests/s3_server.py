"""A bucket of S3 in this process: the requests that pyarrow makes of one, over HTTP, with objects kept in memory."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import BinaryIO
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.sax.saxutils import escape

MOMENT = "2022-10-12T17:50:00.000Z"
RANGE = re.compile(r"bytes=(\d+)-(\d+)")


class Bucket(ThreadingHTTPServer):
    """Its objects by name, and uploads that are not complete: parts by number."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.objects: dict[str, bytes] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def served() -> Iterator[Bucket]:
    with Bucket() as bucket:
        thread = Thread(target=bucket.serve_forever, daemon=True)
        thread.start()
        yield bucket
        bucket.shutdown()
        thread.join()


class _Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Bucket

    def _asked(self) -> tuple[str, dict[str, str]]:
        """The object's name, empty for the bucket itself, and the query."""
        address = urlsplit(self.path)
        name = unquote(address.path).lstrip("/").partition("/")[2]
        return name, dict(parse_qsl(address.query, keep_blank_values=True))

    def _answer(self, code: int, body: bytes = b"", *, length: int | None = None, **headers: str) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        else:
            body = _chunks(self.rfile)
            while self.rfile.readline().strip():
                pass  # trailers
        if self.headers.get("x-amz-content-sha256", "").startswith("STREAMING"):
            body = _chunks(io.BytesIO(body))  # Amazon's chunks, inside those of HTTP
        return body

    def do_HEAD(self) -> None:
        name, _ = self._asked()
        if not name:
            self._answer(200, x_amz_bucket_region="us-east-1")
        elif name in self.server.objects:
            moment = "Wed, 12 Oct 2022 17:50:00 GMT"
            self._answer(200, length=len(self.server.objects[name]), ETag='"tag"', Last_Modified=moment)
        else:
            self._answer(404)

    def do_GET(self) -> None:
        name, query = self._asked()
        if not name:
            self._answer(200, self._listed(query.get("prefix", ""), query.get("delimiter", "")).encode())
        elif name not in self.server.objects:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        else:
            content = self.server.objects[name]
            wanted = RANGE.match(self.headers.get("Range", ""))
            first, last = (int(wanted[1]), min(int(wanted[2]), len(content) - 1)) if wanted else (0, len(content) - 1)
            place = f"bytes {first}-{last}/{len(content)}"
            self._answer(206 if wanted else 200, content[first : last + 1], Content_Range=place)

    def _listed(self, prefix: str, delimiter: str) -> str:
        names, folders = [], set()
        for name in sorted(self.server.objects):
            inside, found, _ = name.removeprefix(prefix).partition(delimiter) if delimiter else (name, "", "")
            if name.startswith(prefix):
                folders.add(prefix + inside + found) if found else names.append(name)
        size = {name: len(self.server.objects[name]) for name in names}
        return (
            "<ListBucketResult><IsTruncated>false</IsTruncated>"
            + f"<KeyCount>{len(names) + len(folders)}</KeyCount>"
            + "".join(
                f"<Contents><Key>{escape(name)}</Key><Size>{size[name]}</Size><LastModified>{MOMENT}</LastModified></Contents>"
                for name in names
            )
            + "".join(f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>" for one in sorted(folders))
            + "</ListBucketResult>"
        )

    def do_PUT(self) -> None:
        name, query = self._asked()
        if "partNumber" in query:
            self.server.uploads[query["uploadId"]][int(query["partNumber"])] = self._body()
        else:
            self.server.objects[name] = self._body()
        self._answer(200, ETag='"tag"')

    def do_POST(self) -> None:
        name, query = self._asked()
        self._body()
        if "uploads" in query:
            number = f"{name}-{len(self.server.uploads)}"
            self.server.uploads[number] = {}
            self._answer(200, f"<Upload><UploadId>{escape(number)}</UploadId></Upload>".encode())
        else:  # the parts become an object, in one step
            parts = self.server.uploads.pop(query["uploadId"])
            self.server.objects[name] = b"".join(part for _, part in sorted(parts.items()))
            self._answer(200, b"<CompleteMultipartUploadResult><ETag>tag</ETag></CompleteMultipartUploadResult>")

    def do_DELETE(self) -> None:
        self.server.objects.pop(self._asked()[0], None)
        self._answer(204)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002  # the name is http.server's
        """Tests are quiet."""


def _chunks(stream: BinaryIO) -> bytes:
    """Chunks, each after a line with its size in hexadecimal, up to one of size 0."""
    body = b""
    while size := int(stream.readline().partition(b";")[0], 16):
        body += stream.read(size)
        stream.readline()
    return body
