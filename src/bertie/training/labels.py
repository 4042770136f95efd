"""The labels of a data set: which there are, in what order they are numbered, and what a wrong one is told.

Numbers are put in the order of numbers, names in the alphabet's, tags with O first and then by type (B-LOC, I-LOC,
B-PER …). A checkpoint that has labels of its own which cover the data's keeps them, so that its head stays right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from bertie.config import BertConfig
from bertie.data.reading import SKIP_REMEDY, BadRows
from bertie.errors import DataError

_PREFIX_ORDER = {prefix: place for place, prefix in enumerate("BIMELSU")}


@dataclass(frozen=True)
class LabelNumbers:
    """Labels with their numbers; `source` is where they were learned."""

    names: tuple[str, ...]
    source: str = "the training data"

    def __post_init__(self) -> None:
        object.__setattr__(self, "_numbers", {name: number for number, name in enumerate(self.names)})

    def __len__(self) -> int:
        return len(self.names)

    @property
    def id2label(self) -> dict[int, str]:
        return dict(enumerate(self.names))

    def number(self, label: str, where: str) -> int:
        """The number of a label, or a `DataError` that names the place and the labels there are."""
        numbers: dict[str, int] = self._numbers  # type: ignore[attr-defined]
        if label in numbers:
            return numbers[label]
        shown = ", ".join(map(repr, self.names[:10])) + (" …" if len(self.names) > 10 else "")
        raise DataError(
            f"{where}: the label {label!r} is not one of {self.source}'s: {shown}.",
            SKIP_REMEDY,
        )


def label_numbers(
    labels: Iterable[str], *, config: BertConfig | None = None, tags: bool = False, source: str = "the training data"
) -> LabelNumbers:
    """The labels that occur, numbered.

    >>> label_numbers(["10", "9", "9"]).names, label_numbers(["I-X", "O", "B-X"], tags=True).names
    (('9', '10'), ('O', 'B-X', 'I-X'))
    """
    found = set(labels)
    if not found:
        raise DataError(f"{source}: there are no rows in it with labels.", "Give a file with texts and their labels.")
    if config is not None and not _made_up(config):
        own = tuple(config.id2label[number] for number in range(config.num_labels))
        if found <= set(own):
            return LabelNumbers(own, "the checkpoint")
    key: Callable[[str], object] = _tag_key if tags else str
    if not tags and all(_whole(label) for label in found):
        key = int
    return LabelNumbers(tuple(sorted(found, key=key)), source)  # type: ignore[arg-type]


def numbered(
    labels: Sequence[str], places: Sequence[str], numbers: LabelNumbers, bad: BadRows
) -> tuple[list[int], list[int]]:
    """(the indices of rows with known labels, their numbers); others are reported to `bad`."""
    kept, found = [], []
    for index, (label, where) in enumerate(zip(labels, places, strict=True)):
        try:
            number = numbers.number(label, where)
        except DataError as error:
            bad.report(error)
            continue
        kept.append(index)
        found.append(number)
    return kept, found


def _made_up(config: BertConfig) -> bool:
    """Whether the labels are only LABEL_0, LABEL_1 …, which every config has that was told none."""
    return all(name == f"LABEL_{number}" for number, name in config.id2label.items())


def _whole(label: str) -> bool:
    return label.lstrip("-").isdecimal() and str(int(label)) == label if label.lstrip("-").isdecimal() else False


def _tag_key(tag: str) -> tuple[bool, str, int, str]:
    prefix, dash, kind = tag.partition("-")
    if not dash or prefix not in _PREFIX_ORDER:
        return tag != "O", tag, 0, tag
    return True, kind, _PREFIX_ORDER[prefix], tag
