"""What is in a checkpoint, from its headers alone, whatever its size and format, and without torch."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertie.checkpoint.find_checkpoint import Located, read_located
from bertie.checkpoint.hostile.paths import open_weights
from bertie.checkpoint.hostile.safetensors_header import read_header
from bertie.checkpoint.hostile.torch_file import read_torch_headers
from bertie.checkpoint.names import common_wrapper, modern, num_layers
from bertie.checkpoint.report import listed
from bertie.checkpoint.weight_files import WeightFiles
from bertie.config import BertConfig
from bertie.errors import BertieError
from bertie.json_values import fields, items

# How a name betrays the part it belongs to, and what that part does.
_HEADS = {
    "cls.predictions.": "masked words",
    "cls.seq_relationship.": "next sentence",
    "classifier.": "classifier",
    "qa_outputs.": "answer spans",
}
_PARTS = {"embeddings.": "embeddings", "encoder.": "encoder", "pooler.": "pooler", **_HEADS}
_MAX_VOCABULARY_BYTES = 64 << 20


@dataclass(frozen=True)
class TensorHeader:
    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass
class Summary:
    """Everything `bertie inspect` shows."""

    source: str
    format: str
    files: list[tuple[str, int]]
    config: dict[str, Any]
    tensors: list[TensorHeader]
    vocabulary: tuple[str, int] | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        named = ", ".join(map(str, items(self.config.get("architectures")) or ()))
        return f"{named or 'BERT'} in {self.source}"

    @property
    def names(self) -> dict[str, TensorHeader]:
        """Tensors by today's names, without the prefixes wrappers and heads add."""
        wrapper = common_wrapper([tensor.name for tensor in self.tensors])
        return {modern(t.name.removeprefix(wrapper)).removeprefix("bert."): t for t in self.tensors}

    @property
    def heads(self) -> list[str]:
        return [what for prefix, what in _HEADS.items() if any(name.startswith(prefix) for name in self.names)]

    @property
    def layers(self) -> int:
        return num_layers(self.names)

    @property
    def parameters(self) -> dict[str, int]:
        """How many numbers each part holds. Tied weights that are stored twice count once, buffers not at all."""
        counts: dict[str, int] = {}
        for name, tensor in self.names.items():
            if name.endswith(("position_ids", "token_type_ids")) and tensor.dtype.startswith("int"):
                continue
            if name.startswith("cls.predictions.decoder.") and self._tied(name):
                continue
            part = next((part for prefix, part in _PARTS.items() if name.startswith(prefix)), "other")
            counts[part] = counts.get(part, 0) + math.prod(tensor.shape)
        return {**counts, "total": sum(counts.values())}

    def _tied(self, name: str) -> bool:
        twin = "embeddings.word_embeddings.weight" if name.endswith("weight") else "cls.predictions.bias"
        tied = self.config.get("tie_word_embeddings", True) or name.endswith("bias")
        return bool(tied) and twin in self.names

    @property
    def dtypes(self) -> list[str]:
        return sorted({tensor.dtype for tensor in self.tensors})

    def rows(self) -> list[tuple[str, str]]:
        """Label and value, the way a person reads them."""
        config = self.config
        size = sum(size for _, size in self.files)
        rows = [
            ("format", f"{self.format}, {len(self.files)} file{'s' if len(self.files) > 1 else ''}, {_bytes(size)}"),
            ("stored as", ", ".join(self.dtypes)),
            ("layers", f"{self.layers} × {config.get('hidden_size', '?')}, "
             f"{config.get('num_attention_heads', '?')} heads, feed-forward {config.get('intermediate_size', '?')}"),
            ("positions", f"{config.get('max_position_embeddings', '?')}, "
             f"{config.get('position_embedding_type', 'absolute')}"),
            ("numerics", f"{config.get('hidden_act', '?')}, LayerNorm eps {config.get('layer_norm_eps', 1e-12)}"),
            ("heads", ", ".join(self.heads) or "none: hidden states only"),
        ]  # fmt: skip
        if self.vocabulary is not None:
            rows.append(("vocabulary", f"{self.vocabulary[1]:,} tokens in {self.vocabulary[0]}"))
        labels = [str(label) for label in fields(config.get("id2label")).values()]
        if not all(label.startswith("LABEL_") for label in labels):
            rows.append(("labels", listed(labels)))
        rows += [(f"parameters: {part}", f"{count:,}") for part, count in self.parameters.items()]
        return rows

    def as_dict(self, *, with_tensors: bool = False) -> dict[str, object]:
        values: dict[str, object] = {
            "source": self.source,
            "format": self.format,
            "files": [{"name": name, "bytes": size} for name, size in self.files],
            "dtypes": self.dtypes,
            "layers": self.layers,
            "heads": self.heads,
            "parameters": self.parameters,
            "vocabulary": None if self.vocabulary is None else self.vocabulary[1],
            "config": self.config,
            "notes": self.notes,
        }
        if with_tensors:
            values["tensors"] = [{"name": t.name, "shape": list(t.shape), "dtype": t.dtype} for t in self.tensors]
        return values


def summarise(source: str | os.PathLike[str]) -> Summary:
    """Read the headers of what `source` names: a folder, a file, a TensorFlow prefix or a hub name."""
    return read_located(source, lambda found: _summary(os.fspath(source), found))


def _summary(source: str, found: Located) -> Summary:
    summary = Summary(
        source=source,
        format=found.weights.format,
        files=_files(found.weights),
        config=found.config,
        tensors=_headers(found.weights),
        vocabulary=_vocabulary(found.folder),
    )
    summary.notes = list(_notes(summary))
    return summary


def _headers(weights: WeightFiles) -> list[TensorHeader]:
    if weights.format == "safetensors":
        return [
            TensorHeader(name, entry.shape, entry.dtype)
            for file in weights.files
            for name, entry in read_header(file)[0].items()
        ]
    if weights.format == "tensorflow":
        from bertie.checkpoint.tensorflow import BundleReader, to_hub

        with BundleReader(weights.files[0]) as bundle:
            plan = to_hub(bundle.shapes())
            return [
                TensorHeader(one.hub_name, tuple(one.shape), bundle.entries[one.tf_name].dtype.name)
                for one in plan.kept
            ]
    headers: list[TensorHeader] = []
    for file in weights.files:
        with open_weights(file) as opened:
            notes = read_torch_headers(file, opened).tensors
            headers += [TensorHeader(name, note.shape, note.dtype) for name, note in notes.items()]
    return headers


def _files(weights: WeightFiles) -> list[tuple[str, int]]:
    if weights.format != "tensorflow":
        return [(file.name, file.stat().st_size) for file in weights.files]
    prefix = weights.files[0]
    parts = sorted(path for path in prefix.parent.iterdir() if path.name.startswith(prefix.name + "."))
    return [(part.name, part.stat().st_size) for part in parts if part.name.endswith(".index") or ".data-" in part.name]


def _vocabulary(folder: Path) -> tuple[str, int] | None:
    file = folder / "vocab.txt"
    if not file.is_file() or file.stat().st_size > _MAX_VOCABULARY_BYTES:
        return None
    content = file.read_bytes()
    return file.name, content.count(b"\n") + (not content.endswith(b"\n") and bool(content))


def _notes(summary: Summary) -> Iterable[str]:
    """What a person should know before using it."""
    config = summary.config
    try:
        BertConfig.from_dict(config)
    except BertieError as error:
        yield f"the configuration is not valid: {error.cause}"
    words = summary.names.get("embeddings.word_embeddings.weight")
    rows = None if words is None else words.shape[0]
    if rows is None:
        yield "there are no word embeddings: these are not a whole BERT's weights"
    elif config.get("vocab_size", rows) != rows:
        yield f"config.vocab_size is {config['vocab_size']}, the weights have {rows} words"
    if rows is not None and summary.vocabulary is not None and summary.vocabulary[1] != rows:
        name, count = summary.vocabulary
        yield f"{name} has {count} tokens, the model {rows}" + (": ids would not fit" if count > rows else "")
    if config.get("num_hidden_layers", summary.layers) != summary.layers:
        yield f"config.num_hidden_layers is {config['num_hidden_layers']}, the weights have {summary.layers} layers"
    if summary.vocabulary is None:
        yield "no vocab.txt beside the weights"


def _bytes(size: int) -> str:
    power = next((power for power in (1, 2) if size < 1000 ** (power + 1)), 3)
    return f"{size} bytes" if size < 1000 else f"{size / 1000**power:.1f} {('kB', 'MB', 'GB')[power - 1]}"
