"""Opening what a user named: a file, a compressed file, a pipe or standard input, as checked bytes and lines.

Compression (gzip, bzip2, xz) is recognised by the first bytes, so it works on pipes and under any name. Lines end at
`\\n` and nowhere else: U+2028, form feeds and lone carriage returns are text. All that can go wrong while opening or
reading leaves here as a `DataError` that names the file.
"""

from __future__ import annotations

import bz2
import codecs
import difflib
import gzip
import io
import lzma
import os
import stat
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeVar, cast

from bertie.data.reading import BadRows, Reader, bad_row
from bertie.errors import DataError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

PathLike = str | os.PathLike[str]
T = TypeVar("T")

STANDARD_INPUT = "-"
MAX_LINE_BYTES = 64 * 2**20
COMPRESSIONS = {".gz": "gzip", ".xz": "xz", ".bz2": "bzip2"}

_HEAD_BYTES, _PIECE_BYTES = 512, 2**16
_READ_FAILURES = (OSError, EOFError, zlib.error, lzma.LZMAError, ValueError)


@dataclass(frozen=True, slots=True)
class Opened:
    """An open source: its name for messages, its bytes, and the first of them for sniffing (still to be read)."""

    name: str
    stream: IO[bytes]
    head: bytes


def source_name(path: PathLike) -> str:
    return "standard input" if is_standard_input(path) else os.fspath(path)


def is_standard_input(path: PathLike) -> bool:
    return os.fspath(path) == STANDARD_INPUT


def is_regular(path: PathLike) -> bool:
    """Whether `path` is a plain file: one that has a meaningful name and can be read twice."""
    return not is_standard_input(path) and Path(path).is_file()


def check_readable(path: PathLike) -> None:
    """Raise early what opening would raise late. A pipe is not opened: that would take its one reader."""
    if is_standard_input(path):
        return
    name = os.fspath(path)
    try:
        mode = os.stat(name).st_mode
    except (OSError, ValueError) as error:
        raise _cannot_open(name, error) from None
    if stat.S_ISDIR(mode):
        raise _cannot_open(name, IsADirectoryError(name))
    if not os.access(name, os.R_OK):
        raise _cannot_open(name, PermissionError(name))


@contextmanager
def opened(path: PathLike) -> Iterator[Opened]:
    """Open `path` (`-` is standard input), decompressing what is compressed."""
    name = source_name(path)
    check_readable(path)
    file = _standard_input() if is_standard_input(path) else _open_file(name)
    try:
        yield from_stream(file, name)
    finally:
        if not is_standard_input(path):
            file.close()


def from_stream(file: IO[bytes], name: str) -> Opened:
    """What somebody else has opened, decompressed if it is compressed; errors call it `name`."""
    head, stream = _looked_at(_checked(file, name))
    kind = _compression(head)
    _check_suffix(name, head, kind)
    if kind is not None:
        head, stream = _looked_at(_checked(_decompressor(kind, stream), name))
    return Opened(name, stream, head)


def read_source(path: PathLike, read: Callable[[Opened, BadRows], Iterator[T]], *, skip_bad: bool = False) -> Reader[T]:
    """A reader of a file that is opened again for each iteration. What cannot be opened is said at once."""
    check_readable(path)

    def opening(bad: BadRows) -> Iterator[T]:
        with opened(path) as source:
            yield from read(source, bad)

    return Reader(source_name(path), opening, skip_bad=skip_bad, once=not is_regular(path))


def text_lines(
    source: Opened, bad: BadRows, *, encoding: str = "utf-8", keep_ends: bool = False
) -> Iterator[tuple[int, str]]:
    """Numbered lines (from 1), without their `\\n` or `\\r\\n`. Undecodable and endless lines are reported to `bad`."""
    stream, encoding = _decodable(source, encoding)
    number = 0
    while line := stream.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            while not line.endswith(b"\n") and (line := stream.readline(MAX_LINE_BYTES)):
                pass
            limit = f"{MAX_LINE_BYTES / 2**20:.3g} MB"
            bad.report(bad_row(f"{source.name}, line {number}: longer than {limit}, the longest taken."))
            continue
        if not keep_ends and line.endswith(b"\n"):
            line = line[:-2] if line.endswith(b"\r\n") else line[:-1]
        try:
            text = line.decode(encoding)
        except UnicodeDecodeError as error:
            bad.report(_undecodable(f"{source.name}, line {number}", line, error, can_skip=True))
            continue
        yield number, text


def whole_text(source: Opened, *, encoding: str = "utf-8", limit: int) -> str:
    """Everything, decoded, where a format cannot be streamed; more than `limit` bytes is an error."""
    stream, encoding = _decodable(source, encoding)
    # Piece by piece: read(limit) would set all of it aside for a file of ten bytes.
    pieces: list[bytes] = []
    size = 0
    while size <= limit and (piece := stream.read(2**20)):
        pieces.append(piece)
        size += len(piece)
    content = b"".join(pieces)
    if len(content) > limit:
        raise DataError(
            f"{source.name}: larger than {limit / 2**20:.4g} MB, the most that is taken in one piece.",
            "Write it as JSON lines (jsonl), which are read one by one.",
        )
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise _undecodable(f"{source.name}, line {line}", content, error) from None


class _Pieces(io.RawIOBase):
    """Pieces of bytes, one after the other, as a stream."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        while not self._rest and (piece := next(self._pieces, None)) is not None:
            self._rest = piece
        view = memoryview(buffer).cast("B")
        count = min(len(view), len(self._rest))
        view[:count], self._rest = self._rest[:count], self._rest[count:]
        return count


def _checked(file: IO[bytes], name: str) -> Iterator[bytes]:
    """What a file has. Every failure is a `DataError`: a truncated gzip, a vanished disk, a closed standard input."""
    # read1 returns what a pipe has now; read would wait until all that is asked for has come.
    read: Callable[[int], bytes] = getattr(file, "read1", file.read)
    try:
        while piece := read(_PIECE_BYTES):
            yield piece
    except DataError:
        raise
    except _READ_FAILURES as error:
        raise DataError(
            f"{name}: cannot be read to its end: {reason_of(error)}.",
            "The file may be cut short or damaged; fetch or write it again.",
        ) from error


def _recoded(source: Opened, encoding: str) -> Iterator[bytes]:
    """UTF-16, UTF-32 and the like as UTF-8, in which a line ends at one byte."""
    decoder = codecs.getincrementaldecoder(encoding)()
    data = b"-"
    while data:
        data = source.stream.read(_PIECE_BYTES)
        try:
            text = decoder.decode(data, final=not data)
        except UnicodeDecodeError as error:
            raise _undecodable(source.name, error.object, error) from None
        yield text.encode("utf-8", "surrogatepass")


def _open_file(name: str) -> IO[bytes]:
    try:
        return open(name, "rb", buffering=0)
    except (OSError, ValueError) as error:
        raise _cannot_open(name, error) from None


def _standard_input() -> IO[bytes]:
    stream: IO[bytes] | None = getattr(sys.stdin, "buffer", None)
    if stream is None or stream.closed:
        raise DataError("standard input: there is none to read.", "Pipe something in, or give a file.")
    return stream


def _looked_at(pieces: Iterator[bytes]) -> tuple[bytes, IO[bytes]]:
    """The beginning, and a stream of everything."""
    head = b""
    # Stops at a line's end, so that someone who types is answered line by line.
    while len(head) < _HEAD_BYTES and b"\n" not in head and (piece := next(pieces, b"")):
        head += piece
    return head[:_HEAD_BYTES], io.BufferedReader(_Pieces(chain((head,), pieces)), _PIECE_BYTES)


def _compression(head: bytes) -> str | None:
    if head.startswith(b"\x1f\x8b"):
        return "gzip"
    if head.startswith(b"\xfd7zXZ\0"):
        return "xz"
    # "BZh" alone may begin a text; the block that follows has one of two fixed marks.
    if head.startswith(b"BZh") and head[4:10] in (b"1AY&SY", b"\x17rE8P\x90"):
        return "bzip2"
    return None


def _check_suffix(name: str, head: bytes, kind: str | None) -> None:
    suffix = Path(name).suffix.lower()
    if head.startswith(b"\x28\xb5\x2f\xfd"):
        raise DataError(f"{name}: compressed with zstd, which Bertie cannot read.", "Decompress it first: unzstd.")
    if head.startswith(b"PK\x03\x04"):
        raise DataError(f"{name}: a zip archive.", "Unpack it first, and give the file that was inside.")
    if suffix in COMPRESSIONS and kind is None:
        what = "is empty" if not head else f"does not begin like a {COMPRESSIONS[suffix]} file"
        raise DataError(f"{name}: is named {suffix}, but {what}.", "Fetch it again, or rename it if it is not packed.")


def _decompressor(kind: str, stream: IO[bytes]) -> IO[bytes]:
    if kind == "gzip":
        return cast(IO[bytes], gzip.GzipFile(fileobj=stream, mode="rb"))
    if kind == "xz":
        return lzma.LZMAFile(stream, "rb")
    return bz2.BZ2File(stream, "rb")


def _decodable(source: Opened, encoding: str) -> tuple[IO[bytes], str]:
    """The stream from after its byte-order mark, in an encoding where a line ends at the byte 0x0A."""
    try:
        newline = "\n".encode(encoding)
        name = codecs.lookup(encoding).name
    except (LookupError, ValueError):
        raise DataError(
            "{encoding} is not one Python knows.", "Use utf-8, utf-16, latin-1, cp1252, gb18030 …", encoding=encoding
        ) from None
    if newline != b"\n":
        return io.BufferedReader(_Pieces(_recoded(source, encoding))), "utf-8"
    if name.startswith("utf-8"):
        if _looks_like_utf16(source.head):
            raise DataError(f"{source.name}: looks like UTF-16, not UTF-8.", "Say so: {encoding}.", encoding="utf-16")
        if source.head.startswith(codecs.BOM_UTF8):
            source.stream.read(3)
        return source.stream, "utf-8"
    return source.stream, encoding


def _looks_like_utf16(head: bytes) -> bool:
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return True
    # Without a mark: every other byte is nought and the ones between are not.
    even, odd = head[0:16:2], head[1:16:2]
    return len(odd) >= 4 and ((not any(odd) and all(even)) or (not any(even) and all(odd)))


def _undecodable(where: str, data: bytes, error: UnicodeDecodeError, *, can_skip: bool = False) -> DataError:
    skip = ", or leave such lines out: {skip_bad}" if can_skip else ""
    return DataError(
        f"{where}: byte 0x{data[error.start]:02x} at {error.start + 1} is not {error.encoding}.",
        f"Say which encoding it is, e.g. {{encoding}}{skip}.",
        encoding="latin-1",
        skip_bad=True,
    )


def reason_of(error: Exception) -> str:
    """What the system says about it, without what it adds: a number, the name of the file."""
    reason = getattr(error, "strerror", None) or str(error)
    return (reason or type(error).__name__).rstrip(".")


def _cannot_open(name: str, error: Exception) -> DataError:
    if "://" in name:
        return DataError(f"{name}: an address, and Bertie reads only files.", "Download it first.")
    match error:
        case FileNotFoundError() | NotADirectoryError():
            return DataError(f"{name}: there is no such file.", _nearby(name))
        case IsADirectoryError():
            inside = sorted(entry.name for entry in Path(name).iterdir()) if os.access(name, os.R_OK) else []
            listed = ", ".join(inside[:5]) + (" …" if len(inside) > 5 else "")
            remedy = f"Name a file in it: {listed}" if inside else "It is empty."
            return DataError(f"{name}: a folder, not a file.", remedy)
        case PermissionError():
            return DataError(f"{name}: permission denied.", "Make it readable: chmod u+r, or ask its owner.")
    return DataError(f"{name!r}: cannot be opened: {reason_of(error)}.", "Check the path.")


def _nearby(name: str) -> str:
    """What to do about a missing file: the nearest name in the folder, or the first folder that is missing."""
    path = Path(name)
    folder = path.parent
    if not folder.is_dir():
        while not folder.parent.is_dir():
            folder = folder.parent
        return f"There is no folder {folder} either; check the path."
    try:
        names = [entry.name for entry in folder.iterdir()]
    except OSError:
        names = []
    close = difflib.get_close_matches(path.name, names, n=3, cutoff=0.6)
    if close:
        return "Did you mean " + " or ".join(str(folder / each) for each in close) + "?"
    return f"Check the path; nothing of a similar name is in {folder.resolve()}."
