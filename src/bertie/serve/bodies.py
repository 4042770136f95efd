"""Bodies in and out of JSON without holding up anyone else.

msgspec decodes and encodes in one call, in which no other thread of Python runs. So a large body is looked through
first (in blocks, by NumPy, beside other threads): one with more lists, strings or numbers than a legal request can have
is refused, and what is left decodes in a few milliseconds. Large answers are encoded in parts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import is_dataclass
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from bertie.serve.failures import Refusal, invalid, too_large
from bertie.serve.settings import Limits

# Bytes that are decoded, or encoded, on the event loop.
INLINE_BYTES = 64 << 10
_BLOCK = 256 << 10
# Elements of a list that are encoded at once.
_AT_ONCE = 4

T = TypeVar("T")

encode = msgspec.json.Encoder().encode


def read_body(decoder: msgspec.json.Decoder[T], body: bytes, limits: Limits) -> T:
    """The body as the type of its route."""
    if len(body) > INLINE_BYTES:
        check_shape(body, limits)
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise Refusal(422, "Validation", f"The body is not what this route takes: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refusal(400, "Validation", f"The body is not JSON: {error}") from None
    except RecursionError:
        raise Refusal(400, "Validation", "The body is nested too deeply.") from None


def check_shape(body: bytes, limits: Limits) -> None:
    """Refuse a body with more in it than any route takes: an input is a list or an object of a few strings at most."""
    lists, strings, commas = shape(body)
    most = 16 * limits.batch + 64
    if lists > most:  # or nested too deeply
        raise invalid(f"The body is not what this route takes: it has more than {most} lists and objects.")
    if strings > most or commas > most + limits.request_tokens:
        what = f"{most} strings" if strings > most else f"{limits.request_tokens} numbers"
        raise too_large(f"The body has more than {what}.", f"Send at most {limits.batch} inputs at once.")


def shape(body: bytes) -> tuple[int, int, int]:
    """(lists and objects, strings, commas) of JSON; signs inside of strings are not counted.

    >>> shape(b'{"a": ["x,[", "\\\\"", 3, [4]]}')
    (3, 3, 3)
    """
    lists = quotes = commas = 0
    inside, backslashes = np.bool_(False), 0  # at the end of the block before: in a string; how many in a row
    for start in range(0, len(body), _BLOCK):
        block = np.frombuffer(body, np.uint8, min(_BLOCK, len(body) - start), start)
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
        lists += int(np.count_nonzero(((block == ord("[")) | (block == ord("{"))) & outside))
        commas += int(np.count_nonzero((block == ord(",")) & outside))
        quotes += int(np.count_nonzero(quote))
    return lists, quotes // 2, commas


def encode_answer(found: object) -> bytes:
    """A handler's answer as JSON; lists, and the lists in a struct or dataclass, a few elements at a time."""
    if isinstance(found, list):
        parts = (encode(found[start : start + _AT_ONCE])[1:-1] for start in range(0, len(found), _AT_ONCE))
        return encode_parts(parts)
    if isinstance(found, msgspec.Struct) or is_dataclass(found):
        names = found.__struct_fields__ if isinstance(found, msgspec.Struct) else found.__dataclass_fields__
        values = ((name, getattr(found, name)) for name in names)
        fields = (b"%b:%b" % (encode(name), encode_answer(one)) for name, one in values if one is not msgspec.UNSET)
        return b"{%b}" % b",".join(fields)
    return encode(found)


def encode_parts(parts: Iterable[bytes]) -> bytes:
    """A list in JSON, from its elements in JSON."""
    return b"[%b]" % b",".join(parts)


def encode_rows(rows: Iterable[NDArray[np.float32]]) -> bytes:
    """A list of vectors, or of matrices."""
    return encode_parts(encode_rows(row) if row.ndim > 1 else encode(row.tolist()) for row in rows)
