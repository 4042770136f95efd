"""Entity tags: which scheme they follow, what spans they mean, and one scheme as another.

- IO: `I-` on every token of an entity. IOB1: `B-` only where an entity follows another of its type. BIO (IOB2): `B-` at
  every start. BIOES (BILOU with L for E and U for S): the end and the single token are marked too.
- plain: tags that are no spans, such as parts of speech.

Spans are read by the rule of conlleval (CoNLL-2000): an `I-` or `E-` that continues nothing begins an entity.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from bertie.data.reading import bad_row
from bertie.errors import DataError

Scheme = Literal["IO", "IOB1", "BIO", "BIOES", "plain"]
OUTSIDE = "O"

_BILOU = {"L": "E", "U": "S"}
_PREFIXES = ("B", "I", "E", "S", "L", "U")


@dataclass(frozen=True, slots=True)
class TagSpan:
    """An entity: its type, and its tokens from `start` up to, not including, `end`."""

    type: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Sentence:
    """Tokens with a tag each, and the line each was found on. `tags` is empty where the file has none."""

    tokens: tuple[str, ...]
    tags: tuple[str, ...]
    lines: tuple[int, ...] = ()
    source: str = "the sentence"

    def where(self, index: int) -> str:
        return f"{self.source}, line {self.lines[index]}" if self.lines else f"{self.source}, token {index + 1}"


def split_tag(tag: str, *, where: str = "the tags") -> tuple[str, str]:
    """`B-creative-work` as (`B`, `creative-work`), BILOU's letters as BIOES's; `O` as (`O`, ``)."""
    if tag == OUTSIDE:
        return OUTSIDE, ""
    prefix, dash, kind = tag.partition("-")
    if prefix not in _PREFIXES or not dash or not kind:
        raise bad_row(f"{where}: the tag {tag!r} is neither O nor one of B-, I-, E-, S- (L-, U-) and a type.")
    return _BILOU.get(prefix, prefix), kind


def tag_spans(tags: Sequence[str], *, where: str = "the tags") -> list[TagSpan]:
    """The entities of one sentence, from any scheme but plain.

    >>> tag_spans(["B-PER", "I-PER", "O", "S-LOC"])
    [TagSpan(type='PER', start=0, end=2), TagSpan(type='LOC', start=3, end=4)]
    """
    spans: list[TagSpan] = []
    start = 0
    open_type: str | None = None
    for index, tag in enumerate(tags):
        prefix, kind = split_tag(tag, where=where)
        if open_type is not None and (prefix in ("O", "B", "S") or kind != open_type):
            spans.append(TagSpan(open_type, start, index))
            open_type = None
        if prefix != "O":
            if open_type is None:
                start, open_type = index, kind
            if prefix in ("E", "S"):
                spans.append(TagSpan(kind, start, index + 1))
                open_type = None
    if open_type is not None:
        spans.append(TagSpan(open_type, start, len(tags)))
    return spans


def span_tags(spans: Iterable[TagSpan], length: int, *, scheme: Scheme = "BIO") -> list[str]:
    """The tags of a sentence of `length` tokens with these entities; they must not overlap."""
    if scheme not in get_args(Scheme) or scheme == "plain":
        raise DataError("{scheme} cannot write spans.", "Use BIO, BIOES, IOB1 or IO.", scheme=scheme)
    tags = [OUTSIDE] * length
    previous: TagSpan | None = None
    for span in sorted(spans, key=lambda span: span.start):
        if not (0 <= span.start < span.end <= length) or (previous is not None and span.start < previous.end):
            raise DataError(f"{span} overlaps another or is outside a sentence of {length} tokens.")
        for index in range(span.start, span.end):
            tags[index] = f"I-{span.type}"
        touching = previous is not None and previous.end == span.start and previous.type == span.type
        if scheme in ("BIO", "BIOES") or (scheme == "IOB1" and touching):
            tags[span.start] = f"B-{span.type}"
        if scheme == "BIOES":
            tags[span.end - 1] = f"{'S' if span.end - span.start == 1 else 'E'}-{span.type}"
        previous = span
    return tags


def convert_tags(tags: Sequence[str], *, scheme: Scheme, where: str = "the tags") -> list[str]:
    """The same entities in another scheme.

    >>> convert_tags(["I-PER", "I-PER", "O", "I-LOC"], scheme="BIOES")
    ['B-PER', 'E-PER', 'O', 'S-LOC']
    """
    return span_tags(tag_spans(tags, where=where), len(tags), scheme=scheme)


def tag_scheme(sentences: Iterable[Sentence | Sequence[str]], *, source: str = "the tags") -> Scheme:
    """The scheme that all of these sentences' tags follow, or a `DataError` naming the first tag that follows none.

    Sentences that were read from a file know their lines, and the error names the line; lists of tags will do.

    >>> tag_scheme([["B-PER", "I-PER", "O"]]), tag_scheme([["I-PER", "B-PER", "O"]])
    ('BIO', 'IOB1')
    """
    broken: dict[Scheme, str] = {}
    saw_spans = saw_plain = ""
    prefixes = set()
    for where, before, tag, after in _windows(sentences, source):
        if tag == OUTSIDE:
            continue
        if tag.partition("-")[0] not in _PREFIXES or "-" not in tag:
            saw_plain = saw_plain or f"{where}: {tag!r}"
        else:
            prefix, kind = split_tag(tag, where=where)
            saw_spans = saw_spans or tag
            prefixes.add(prefix)
            for scheme in _breaks(prefix, kind, before, after):
                broken.setdefault(scheme, f"{where}: {tag!r} between {before!r} and {after!r}")
        if saw_plain and saw_spans:
            raise DataError(
                f"{saw_plain} has no prefix that is known, though {saw_spans!r} has.",
                "Use O, and B-, I- (E-, S-) with a type.",
            )
    if saw_plain:
        return "plain"
    if not saw_spans:
        return "BIO"
    order: tuple[Scheme, ...] = ("BIOES",) if prefixes & {"E", "S"} else ("BIO", "IOB1")
    if prefixes == {"I"}:
        return "IO"
    for scheme in order:
        if scheme not in broken:
            return scheme
    raise DataError(
        f"{broken[order[0]]} is not {order[0]}" + (", and other tags are not IOB1." if len(order) > 1 else "."),
        "Correct it, or convert the tags by the spans they are read as: convert_tags(tags, scheme='BIO').",
    )


def _breaks(prefix: str, kind: str, before: str, after: str) -> Iterator[Scheme]:
    """The schemes that do not allow this tag here."""
    continues = before in (f"B-{kind}", f"I-{kind}")
    goes_on = after in (f"I-{kind}", f"E-{kind}", f"L-{kind}")
    if prefix == "I" and not continues:
        yield "BIO"
    if prefix == "B" and not continues:
        yield "IOB1"
    if (prefix in ("I", "E")) != continues or (prefix in ("B", "I") and not goes_on):
        yield "BIOES"


def _windows(sentences: Iterable[Sentence | Sequence[str]], source: str) -> Iterator[tuple[str, str, str, str]]:
    """(where, the tag before, the tag, the tag after) for every token."""
    for number, sentence in enumerate(sentences, start=1):
        inner = sentence.tags if isinstance(sentence, Sentence) else sentence
        tags = [OUTSIDE, *inner, OUTSIDE]
        for index in range(len(inner)):
            where = sentence.where(index) if isinstance(sentence, Sentence) else f"{source}, sentence {number}"
            yield where, tags[index], tags[index + 1], tags[index + 2]
