"""What happened to every name while weights went into a model, as an object and as one readable message."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

NAMES_SHOWN = 10


class NewlyInitialized(UserWarning):
    """Some of the model's weights are not in the checkpoint and start from random numbers: it needs training."""


class UnusedWeights(UserWarning):
    """Some of the checkpoint's encoder weights have no place in the model: the two do not quite belong together."""


@dataclass(frozen=True)
class Misshaped:
    """A weight both sides know, of another size. Shapes are lists, the way they are printed."""

    name: str
    found: tuple[int, ...]
    wanted: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name} is {list(self.found)} in the checkpoint, {list(self.wanted)} in the model"


@dataclass
class LoadingReport:
    """Every name that did not simply fit. Names are the model's, except `unexpected` and `ignored`: the checkpoint's.

    It also reads like the dictionary that the hub's `output_loading_info=True` gives: `report["missing_keys"]`.
    """

    source: str
    model: str
    format: str
    files: tuple[str, ...] = ()
    dtype: str = ""
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    misshaped: list[Misshaped] = field(default_factory=list)
    newly_initialised: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)  # buffers, optimizer slots: known and not wanted
    renamed: dict[str, str] = field(default_factory=dict)  # the checkpoint's name → the model's
    untied: list[str] = field(default_factory=list)  # stored apart from what they are tied to, with other numbers

    def __getitem__(self, key: str) -> list[str]:
        return self._as_the_hub_has_it()[key]

    def keys(self) -> list[str]:
        return list(self._as_the_hub_has_it())

    def _as_the_hub_has_it(self) -> dict[str, list[str]]:
        return {
            "missing_keys": list(self.missing),
            "unexpected_keys": list(self.unexpected),
            "mismatched_keys": [one.name for one in self.misshaped],
            "error_msgs": [],
        }

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def items(self) -> list[tuple[str, list[str]]]:
        return list(self._as_the_hub_has_it().items())

    def values(self) -> list[list[str]]:
        return list(self._as_the_hub_has_it().values())

    def get(self, key: str, default: list[str] | None = None) -> list[str] | None:
        return self._as_the_hub_has_it().get(key, default)

    @property
    def complete(self) -> bool:
        """Nothing in the model was left to chance."""
        return not self.newly_initialised

    def __str__(self) -> str:
        lines = [f"{self.model} from {self.source} ({self.format}, {self.dtype or 'no weights'})"]
        for title, names in (
            ("newly initialised", self.newly_initialised),
            ("of another size", [str(one) for one in self.misshaped]),
            ("not in the model", self.unexpected),
            ("tied in the model, different in the checkpoint", self.untied),
            ("renamed", [f"{old} → {new}" for old, new in self.renamed.items()]),
            ("passed over", self.ignored),
        ):
            if names:
                lines.append(f"  {title} ({len(names)}): {listed(names)}")
        if len(lines) == 1:
            lines.append("  every weight found its place")
        return "\n".join(lines)


def listed(names: Sequence[str], *, shown: int = NAMES_SHOWN) -> str:
    """`a, b, c and 9 more`."""
    text = ", ".join(names[:shown])
    return text if len(names) <= shown else f"{text} and {len(names) - shown} more"
