"""Which of a checkpoint's names is which of the model's.

Most are the same. What differs, over eight years of checkpoints:

    bert.encoder…  ↔  encoder…                a model with a head, and the same model without
    module.…, _orig_mod.…, 0.auto_model.…     left by DataParallel, torch.compile, sentence-transformers
    LayerNorm.gamma, LayerNorm.beta           → weight, bias (names from the TensorFlow days)
    embeddings.position_ids                   a buffer that old versions saved: known, not wanted
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bertie.errors import WeightsMismatch

BASE = "bert."
WRAPPERS = ("module.", "_orig_mod.", "0.auto_model.", "auto_model.", "model.", "transformer.")
_BUFFER = re.compile(r"(^|\.)embeddings\.(position_ids|token_type_ids)$")
_OLD_NORM = re.compile(r"LayerNorm\.(gamma|beta)$")
_LAYER = re.compile(r"(?:^|\.)(?:encoder|transformer)\.layer\.(\d{1,9})\.")
# What every BERT has: cross-attention, relative positions and what people add to layers may be missing.
_PARTS = r"""(?:embeddings\.(?:word_embeddings|position_embeddings|token_type_embeddings|LayerNorm|project)
    |encoder\.relative_attention_bias|encoder\.layer\.\d+\.(?:attention\.self\.(?:query|key|value)|attention\.output\.(?:dense|LayerNorm)
    |intermediate\.dense|output\.(?:dense|LayerNorm)))\.(?:weight|bias)$"""
_CORE = re.compile(r"(?:^|\.)" + _PARTS, re.VERBOSE)
_REQUIRED = re.compile(r"(?:encoder\.|decoder\.bert\.)?" + _PARTS, re.VERBOSE)  # of one BERT, or of two joined


@dataclass
class Matching:
    """`places` maps the model's names to the checkpoint's."""

    places: dict[str, str] = field(default_factory=dict)
    unexpected: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    renamed: dict[str, str] = field(default_factory=dict)


def match_names(
    found: Iterable[str],
    wanted: Collection[str],
    *,
    prefix: str = BASE,
    key_mapping: Mapping[str, str] | None = None,
    in_files: Sequence[tuple[str, str]] = (),
) -> Matching:
    """Find every checkpoint name's place among the names a model wants.

    `prefix` is where the model keeps its BERT; `key_mapping` renames first: `{pattern: replacement}`. `in_files` are
    the (file's, model's) parts of names that differ in a relative of BERT.
    """
    found, matching = list(found), Matching()
    wrapper = common_wrapper(found)
    for name in found:
        plain = modern(name.removeprefix(wrapper))
        for pattern, replacement in (key_mapping or {}).items():
            plain = re.sub(pattern, replacement, plain)
        candidates = [
            candidate
            for known in dict.fromkeys((renamed(plain, in_files), plain))  # a state dict may have the model's own
            for bare in (known, known.removeprefix(BASE).removeprefix(prefix))
            for candidate in (bare, prefix + bare)
        ]
        place = next((candidate for candidate in candidates if candidate in wanted), None)
        if place is None:
            (matching.ignored if _BUFFER.search(plain) else matching.unexpected).append(name)
            continue
        if place in matching.places:
            raise WeightsMismatch(
                f"The checkpoint holds {place} twice, as {matching.places[place]} and as {name}.",
                "Remove one of them: it is two checkpoints in one.",
            )
        matching.places[place] = name
        if place != name:
            matching.renamed[name] = place
    return matching


def renamed(name: str, parts: Iterable[tuple[str, str]]) -> str:
    """The name with each old part that begins it, or begins after a dot, in its new form, in the order they have."""
    for old, new in parts:
        if name.startswith(old):
            name = new + name.removeprefix(old)
        name = name.replace(f".{old}", f".{new}")
    return name


def common_wrapper(names: Collection[str]) -> str:
    """The prefix that some wrapper put before every single name; '' when there is none."""
    prefix = ""
    while names:
        found = next((w for w in WRAPPERS if all(name.startswith(prefix + w) for name in names)), None)
        if found is None:
            break
        prefix += found
    return prefix


def modern(name: str) -> str:
    """The name with today's words for LayerNorm's two vectors."""
    return _OLD_NORM.sub(lambda match: "LayerNorm." + ("weight" if match[1] == "gamma" else "bias"), name)


def is_core(name: str) -> bool:
    """Whether this is a weight every BERT has: of the embeddings and encoder layers, not of heads or the pooler."""
    return bool(_CORE.search(name))


def is_required(name: str, prefix: str = BASE) -> bool:
    """Whether a model without this weight is no model: one of its own BERT, not of another it has beside that."""
    return bool(_REQUIRED.match(name.removeprefix(prefix)))


def num_layers(names: Iterable[str], prefix: str = "") -> int:
    """How many encoder layers the names go up to."""
    numbers = (int(found[1]) for name in names if name.startswith(prefix) and (found := _LAYER.search(name)))
    return max(numbers, default=-1) + 1
