"""Bodies in and out of JSON without holding up anyone else.

msgspec decodes and encodes in one call, in which no other thread of Python runs. So a large body is looked through
first (in blocks, by NumPy, beside other threads), and one with more lists, strings or numbers than a legal request can
have is refused. What is left is decoded in parts, an element of its lists at a time: a million token ids in one call
would hold up everyone for a tenth of a second. Large answers are encoded in parts, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import is_dataclass
from functools import cache
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

import msgspec
import numpy as np
import orjson
from numpy.typing import NDArray

from bertie.serve.failures import UNREADABLE, invalid, too_large, unreadable
from bertie.serve.settings import Limits

# Bytes that are decoded, or encoded, on the event loop.
INLINE_BYTES = 64 << 10
_BLOCK = 256 << 10
# Of JSON, at most: of a number with its label, and of a number with its comma (-1.2345678901234567e-308, say).
LABEL_BYTES, NUMBER_BYTES = 64, 25
# Elements of a list that are encoded at once.
_AT_ONCE = 4
_ROWS_AT_ONCE = 32

T = TypeVar("T")

encode = msgspec.json.Encoder().encode
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_elements = msgspec.json.Decoder(list[msgspec.Raw]).decode


def read_body(decoder: msgspec.json.Decoder[T], body: bytes, limits: Limits) -> T:
    """The body as the type of its route."""
    if len(body) > INLINE_BYTES:
        check_shape(body, limits)
    try:
        return decoder.decode(body) if len(body) <= INLINE_BYTES else _in_parts(decoder, body, limits)
    except UNREADABLE as error:
        raise unreadable(error) from None


def _in_parts(decoder: msgspec.json.Decoder[T], body: bytes, limits: Limits) -> T:
    """What `decoder.decode(body)` gives, from many calls that take a moment each."""
    fields = _decode_fields(body)
    lists: dict[str, list[object]] = {}
    kind: Any = decoder.type  # which mypy does not know to be hashable
    for name, element_decoder in _element_decoders(kind).items():
        given = memoryview(fields.get(name, b""))
        if len(given) > INLINE_BYTES and given[0] == ord("["):
            elements = _decode_elements(given)
            lists[name] = [_element(element_decoder, one, name, at, limits) for at, one in enumerate(elements)]
            fields[name] = msgspec.Raw(b"[]")
    found = decoder.decode(encode(fields))
    for name, values in lists.items():
        setattr(found, name, values)
    return found


def _element(decoder: msgspec.json.Decoder[T], given: msgspec.Raw, name: str, at: int, limits: Limits) -> T:
    if len(memoryview(given)) > INLINE_BYTES and shape(given)[2] > _most_elements(limits):
        raise too_large(f"`{name}[{at}]` has more than {_most_elements(limits)} elements.")
    try:
        return decoder.decode(given)
    except msgspec.ValidationError as error:
        what, _, inside = str(error).partition(" - at `$")
        raise msgspec.ValidationError(f"{what} - at `$.{name}[{at}]{inside or '`'}") from None


@cache
def _element_decoders(kind: type[object]) -> dict[str, msgspec.json.Decoder[object]]:
    """For each field of a body that may be a plain list: the decoder of its elements."""
    found = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        for option in (hint, *get_args(hint)):
            if get_origin(option) is list:
                found[name] = msgspec.json.Decoder(get_args(option)[0])
                break
    return found


def _most_elements(limits: Limits) -> int:
    """Of one list in a legal body."""
    return max(16 * limits.batch + 64, limits.text_tokens)


def check_shape(body: bytes, limits: Limits) -> None:
    """Refuse a body with more in it than any route takes: an input is a list or an object of a few strings at most."""
    lists, strings, commas, outer = shape(body)
    most = 16 * limits.batch + 64
    if lists > most:  # or nested too deeply
        raise invalid(f"The body is not what this route takes: it has more than {most} lists and objects.")
    if strings > most or commas > most + limits.request_tokens:
        what = f"{most} strings" if strings > most else f"{limits.request_tokens} numbers"
        raise too_large(f"The body has more than {what}.", f"Send at most {limits.batch} inputs at once.")
    if outer > _most_elements(limits):
        raise too_large(f"A list of the body has more than {_most_elements(limits)} elements.")


def shape(body: bytes | msgspec.Raw) -> tuple[int, int, int, int]:
    """(lists and objects, strings, commas, commas of the second level) of JSON; signs inside of strings do not count.

    >>> shape(b'{"a": ["x,[", "\\\\"", 3, [4, 5]]}')
    (3, 3, 4, 3)
    """
    lists = quotes = commas = outer = depth = 0
    inside, backslashes = np.bool_(False), 0  # at the end of the block before: in a string; how many in a row
    whole = np.frombuffer(body, np.uint8)
    for start in range(0, len(whole), _BLOCK):
        block = whole[start : start + _BLOCK]
        quote = block == ord('"')
        is_backslash = block == ord("\\")
        if backslashes or is_backslash.any():
            places = np.arange(len(block))
            others = np.maximum.accumulate(np.where(is_backslash, -1 - backslashes, places))
            in_a_row = places - others  # backslashes up to here
            before = np.concatenate(([backslashes], in_a_row[:-1]))
            quote &= before % 2 == 0  # an odd number of them escapes what follows
            backslashes = int(in_a_row[-1])
        in_string = np.bitwise_xor.accumulate(quote) ^ inside
        inside = in_string[-1]
        outside = ~in_string
        opening = ((block == ord("[")) | (block == ord("{"))) & outside
        closing = ((block == ord("]")) | (block == ord("}"))) & outside
        comma = (block == ord(",")) & outside
        depths = depth + np.cumsum(opening.view(np.int8) - closing.view(np.int8), dtype=np.int64)
        depth = int(depths[-1])
        lists += int(np.count_nonzero(opening))
        commas += int(np.count_nonzero(comma))
        outer += int(np.count_nonzero(comma & (depths == 2)))
        quotes += int(np.count_nonzero(quote))
    return lists, quotes // 2, commas, outer


def encode_answer(found: object) -> bytes:
    """A handler's answer as JSON; lists and tuples, also in a dict, struct or dataclass, a few elements at a time.

    All of it is copied once, at the end: no other thread runs while megabytes are copied.
    """
    return b"".join(_parts_of(found))


def _parts_of(found: object) -> Iterator[bytes | msgspec.Raw]:
    fields: Iterable[tuple[str, object]]
    match found:
        case msgspec.Raw():
            yield found
            return
        case [msgspec.Raw(), *_]:
            for number, element in enumerate(cast(list[msgspec.Raw], found)):
                yield b"," if number else b"["
                yield element
            yield b"]"
            return
        case list() | tuple():
            yield b"["
            for start in range(0, len(found), _AT_ONCE):
                if start:
                    yield b","
                yield encode(found[start : start + _AT_ONCE])[1:-1]
            yield b"]"
            return
        case dict() if all(isinstance(name, str) for name in found):
            fields = found.items()
        case msgspec.Struct():
            fields = ((name, getattr(found, name)) for name in found.__struct_fields__)
        case _ if is_dataclass(found):
            fields = ((name, getattr(found, name)) for name in found.__dataclass_fields__)
        case _:
            yield encode(found)
            return
    before = b"{"
    for name, one in fields:
        if one is not msgspec.UNSET:
            yield before + encode(name) + b":"
            yield from _parts_of(one)
            before = b","
    yield b"{}" if before == b"{" else b"}"


def encode_parts(parts: Iterable[bytes]) -> bytes:
    """A list in JSON, from its elements in JSON."""
    return b"[%b]" % b",".join(parts)


def encode_rows(rows: NDArray[np.floating]) -> bytes:
    """A vector, or a list of them some at a time: orjson writes arrays as they lie in memory, in the fewest digits."""
    if rows.ndim < 2 or len(rows) <= _ROWS_AT_ONCE:
        return orjson.dumps(np.ascontiguousarray(rows), option=orjson.OPT_SERIALIZE_NUMPY)
    starts = range(0, len(rows), _ROWS_AT_ONCE)
    return encode_parts(encode_rows(rows[start : start + _ROWS_AT_ONCE])[1:-1] for start in starts)
