"""The page in one HTML file: the built page with its script and style inside, and the answers to what it will ask.

The file asks nobody for anything: its policy allows the one script and the one style in it, by their hashes. Answers
are kept under the names and options by which the page asks for them (web/src/explore/source.ts), as zlib's form of:
length of the index (4 bytes, little-endian), index (JSON), answers one after the other. Thumbnails are not in it: the
page makes them of the maps. Bytes are written as letters, 13 bits to two of them (base64 would have 12).
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shlex
import zlib
from collections.abc import Iterable, Iterator
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import bertie
from bertie.errors import BertieError
from bertie.explore.attribution import Method
from bertie.explore.page import STATIC
from bertie.explore.page.queries import LENS_TOKENS, QUERIES, Json, Off, attribution, measured, opened, patching
from bertie.explore.session import Session
from bertie.files import replace_file

if TYPE_CHECKING:
    from bertie.explore.ranking import Importance

# The walk of every token of a short text is in the file; of a longer one, that of the first few and of the answer's.
_MOST_WALKED = 4
# Without occlusion, which runs the model once for every token. The steps are fixed, and the page says how far the
# scores are from adding up.
_METHODS: tuple[Method, ...] = ("integrated_gradients", "gradient_x_input", "rollout")
_STEPS = 50
_LIGHT_METHODS: tuple[Method, ...] = ("gradient_x_input",)
_MOST_TARGETS = 1
_INLINE_HEIGHT = 860
# The answer with each single part off is in the file of a short text; a longer one takes a minute and more.
_MOST_SWITCHED = 128

# What ASCII prints, without what HTML has to mark.
_ALPHABET = np.array([code for code in range(32, 127) if chr(code) not in "\"&'<"], np.uint8)
_AT_ONCE = 13 * 2**16  # bytes that end with a group of 13 bits


def write_page(
    session: Session,
    path: str | os.PathLike[str],
    *,
    other: Session | None = None,
    importance: Importance | None = None,
) -> int:
    """Write the page to a file, whole or not at all; its size in bytes.

    `other` is the text whose states are put into this one in the view of patching, and `importance` what was measured
    over a file (`bertie.explore.importance`): a page has these views only where it is given them.
    """
    page = page_of(session, other=other, importance=importance)
    replace_file(Path(path), page)
    return len(page.encode())


def inline(session: Session) -> str:
    """The page for a notebook: an inner frame that needs neither a server nor the network."""
    page = escape(page_of(session, light=True), quote=True)
    allowed = "allow-scripts allow-downloads"
    return (
        f'<iframe srcdoc="{page}" sandbox="{allowed}" title="bertie.explore" '
        f'style="width:100%;height:{_INLINE_HEIGHT}px;border:0"></iframe>'
    )


def page_of(
    session: Session, *, light: bool = False, other: Session | None = None, importance: Importance | None = None
) -> str:
    """The whole HTML. `light` leaves out what takes long to compute."""
    packed = _packed(session, [*_answers(session, light=light), *_given(session, other, importance)])
    script, style = ((STATIC / name).read_text(encoding="utf-8") for name in ("page.js", "page.css"))
    icon = f"data:image/svg+xml;base64,{base64.b64encode((STATIC / 'icon.svg').read_bytes()).decode()}"
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    exchanged = {
        '<link rel="stylesheet" href="/static/page.css">': f"<style>{style}</style>",
        '<script type="module" src="/static/page.js"></script>': "",
        '<meta charset="utf-8">': '<meta charset="utf-8">\n'
        f'  <meta http-equiv="Content-Security-Policy" content="{escape(policy, quote=True)}">',
        "</body>": f'<script type="application/octet-stream" id="bertie-saved" data-version="{bertie.__version__}" '
        f'data-size="{len(packed)}">{_letters(packed)}</script>\n<script type="module">{script}</script>\n</body>',
    }
    for old, new in exchanged.items():
        if page.count(old) != 1:
            raise RuntimeError(f"the built page does not hold {old!r} once")
        page = page.replace(old, new)
    return page.replace('"/static/icon.svg"', f'"{icon}"')


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _packed(session: Session, answers: Iterable[tuple[str, Json | bytes]]) -> bytes:
    entries: dict[str, tuple[int, int, bool]] = {}
    parts: list[bytes] = []
    size = 0
    for key, answer in answers:
        part = (
            answer
            if isinstance(answer, bytes)
            else json.dumps(answer, ensure_ascii=False, separators=(",", ":")).encode()
        )
        entries[key] = (size, len(part), part is answer)
        parts.append(part)
        size += len(part)
    second = list(session.texts[1:]) if session.task == "choice" else (session.texts[1:] or (None,))[0]
    subject = {"model": session.name, "task": session.task, "text": session.texts[0], "second": second}
    index = json.dumps({"command": _command(session), "subject": subject, "entries": entries}).encode()
    whole = len(index).to_bytes(4, "little") + index + b"".join(parts)
    # Short repetitions in maps and vectors are accidents, and cost more to point at than to write again.
    packer = zlib.compressobj(9, memLevel=9, strategy=zlib.Z_FILTERED)
    return packer.compress(whole) + packer.flush()


def _letters(data: bytes) -> str:
    """Every 13 bits as two of 91 letters, the last ones filled up with zeros."""
    parts = []
    for start in range(0, len(data), _AT_ONCE):
        bits = np.unpackbits(np.frombuffer(data, np.uint8, min(_AT_ONCE, len(data) - start), start))
        groups = np.pad(bits, (0, -len(bits) % 13)).reshape(-1, 13)
        numbers = groups @ (1 << np.arange(12, -1, -1, dtype=np.uint16))
        parts.append(_ALPHABET[np.stack(np.divmod(numbers, len(_ALPHABET)), axis=1)].tobytes())
    return b"".join(parts).decode("ascii")


def _answers(session: Session, *, light: bool) -> Iterator[tuple[str, Json | bytes]]:
    """What the page asks for, and what it gets."""

    def ask(what: str, **options: object) -> tuple[str, Json | bytes]:
        return _key(what, options), QUERIES[what](session, **options)

    views = session.views
    yield _key("open", {}), opened(session) | {"writes": False}
    yield ask("answer")
    for row, text in enumerate(session.rows):
        yield ask("statistics", row=row)
        for layer, heads in session.heads.items():
            for head in heads:
                yield ask("map", row=row, layer=layer, head=head)
        for first in range(0, len(text), LENS_TOKENS) if "lens" in views else ():
            yield ask("lens", row=row, first=first)
        yield ask("drift", row=row)
        for place in _walked(session, row, len(text)):
            yield ask("walk", row=row, place=place)
    if "match" in views:
        yield ask("match")
    if "ablate" in views and not light and sum(map(len, session.rows)) <= _MOST_SWITCHED:
        for off in _single_parts(session):
            yield ask("switch", off=off)
    if "attribute" in views:
        yield ask("targets")
        for method in _LIGHT_METHODS if light else _METHODS:
            for target in range(min(_MOST_TARGETS, len(session.targets()))):
                try:
                    steps = _STEPS if method == "integrated_gradients" else None
                    found = attribution(session, _silent, method=method, target=target, steps=steps)
                    yield _key("attribution", {"method": method, "target": target}), found
                except BertieError:  # this method has nothing to say of this answer; the page says so
                    continue


def _given(
    session: Session, other: Session | None, importance: Importance | None
) -> Iterator[tuple[str, Json | bytes]]:
    if other is not None:
        yield _key("patching", {}), patching(session, _silent, other=other) | {"other": other.texts[0]}
    if importance is not None:
        yield _key("importance", {}), measured(importance)


def _single_parts(session: Session) -> Iterator[Off]:
    for layer, heads in session.heads.items():
        for head in heads:
            yield {"heads": [(layer, head)], "layers": [], "feed_forward": []}
        yield {"heads": [], "layers": [layer], "feed_forward": []}
        yield {"heads": [], "layers": [], "feed_forward": [layer]}


def _walked(session: Session, row: int, length: int) -> list[int]:
    """The tokens whose walk is in the file: the answer's own, and the first few."""
    targets = session.targets()[:1] if "attribute" in session.views else ()
    chosen = [target.place for target in targets if target.row == row and target.place is not None]
    return sorted({*chosen, *range(min(length, _MOST_WALKED))})


def _silent(done: int, total: int, partial: object) -> None:
    pass


def _key(what: str, options: dict[str, object]) -> str:
    return what + json.dumps(options, sort_keys=True, separators=(",", ":"))


def _command(session: Session) -> str:
    """What to type to have the same page with the model behind it."""
    parts = ["bertie", "explore", *session.texts, "-m", session.name, "--task", session.task]
    return shlex.join(parts)
