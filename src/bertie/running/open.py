"""A model that is ready for a task: weights, tokenizer, device, and how a batch of rows goes through it.

Tasks take a model by name, by path, as a `OpenModel`, or as a model object with its tokenizer. A name or path is loaded
once and kept, so that `bertie.embed(...)` in a loop costs what it should.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, TypeGuard, Union

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertie.arguments import one_of, whole_number
from bertie.checkpoint.find_checkpoint import name_of
from bertie.checkpoint.load_weights import usable_device
from bertie.checkpoint.open_checkpoint import open_checkpoint
from bertie.checkpoint.report import listed
from bertie.config import BertConfig
from bertie.defaults import default_embedding_model as default_embedding_model
from bertie.engine.compile import DTYPES, dtype_name
from bertie.engine.compile import compile as compile_model
from bertie.engine.fast import FastBert
from bertie.engine.half_precision import in_half_precision
from bertie.engine.runner import PooledRows
from bertie.errors import CheckpointError, InputError
from bertie.family import related
from bertie.loading import model_class, named_kind
from bertie.model.inputs import ids_below
from bertie.model.pretrained import BertPreTrainedModel
from bertie.running.pooling import Pieces, hear, means, pool, upload
from bertie.running.rows import Row
from bertie.text import BertTokenizer

ModelLike = Union[str, "os.PathLike[str]", BertPreTrainedModel, "OpenModel"]
Ints = NDArray[np.int64]
ENGINES = ("auto", "reference")

# Tokens to a batch of the reference, which computes it in one go: enough to fill the device, few enough to stay in its
# caches. The engine's runners say what they like.
_BUDGETS = {"cpu": 2048, "cuda": 32768}
# Types that only the engine has: the first on a CPU, the second on a GPU.
_ENGINE_TYPES = ("int8", "fp8")

# What a class answers, as error messages say it.
_HEADS = {
    "BertForMaskedLM": "a masked-word head (cls.predictions)",
    "BertLMHeadModel": "a language-model head (cls.predictions)",
    "BertForNextSentencePrediction": "a next-sentence head (cls.seq_relationship)",
    "BertForSequenceClassification": "a text classifier (classifier)",
    "BertForTokenClassification": "a token classifier (classifier)",
    "BertForQuestionAnswering": "an answer head (qa_outputs)",
    "BertForMultipleChoice": "a multiple-choice head (classifier)",
}
# Heads whose weights have the same names, so that only the configuration tells them apart, and what each is for.
_CLASSIFIERS = {
    "BertForSequenceClassification": "classify and rerank take this one",
    "BertForTokenClassification": "tag takes this one",
    "BertForMultipleChoice": "BertForMultipleChoice.from_pretrained(…) loads this one",
}
# `watching.read(tokens)`, where this thread has set it, hears of tokens that the model is about to read: progress.py.
watching = threading.local()


@dataclass
class OpenModel:
    """A model with its tokenizer. `folder` is where it came from, if it came from files; `is_fast`: the engine answers.

    `rounded` is the type that the engine computes in where that is not the type of the weights: int8, fp8.
    """

    model: BertPreTrainedModel
    tokenizer: BertTokenizer
    folder: Path | None = None
    name: str = ""
    budget: int = 0
    rounded: str | None = None
    is_fast: bool = field(init=False)
    steps: Sequence[int] = field(init=False)  # sizes of small batches, in tokens, whose first batch takes long
    unused: int = field(init=False)  # positions that no token of a text has: RoBERTa's first ones are padding's

    def __post_init__(self) -> None:
        self.unused = self.config.max_position_embeddings - self.config.max_input_length
        base = getattr(self.model, "base_model", None)
        fast = base if isinstance(base, FastBert) else None
        self.is_fast = fast is not None
        self.steps = () if fast is None else fast.runner.steps
        self._makes_vectors = fast is not None and fast.runner.makes_vectors
        if not self.budget:
            own = _BUDGETS.get(self.device.type, _BUDGETS["cpu"])
            self.budget = own if fast is None else fast.runner.token_budget

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def config(self) -> BertConfig:
        return self.model.config

    @property
    def dtype(self) -> str:
        """What the model computes in."""
        return self.rounded or str(self.model.dtype).removeprefix("torch.")

    @property
    def max_length(self) -> int:
        """The longest row the model takes, special tokens included."""
        return min(self.positions, self.tokenizer.model_max_length)

    @property
    def positions(self) -> int:
        """How many tokens a text may have by the position table alone."""
        return self.config.max_position_embeddings - self.unused

    def checked_length(self, max_length: int | None, *, default: int | None = None) -> int:
        """`max_length` where it was given, otherwise the default; never more than the model takes."""
        if max_length is None:
            return self.max_length if default is None else min(default, self.max_length)
        whole_number("max_length", max_length)
        if max_length > self.max_length:
            raise InputError(
                f"{{max_length:is}} the model takes at most {self.max_length} tokens at once.",
                "Leave it out: longer texts are cut or read in overlapping windows.",
                max_length=max_length,
            )
        return max_length

    def run(self, rows: Sequence[Row], **options: Tensor | bool) -> Any:
        """The model's output for a packed batch; `split` gives each row its part of it."""
        lengths = np.fromiter((len(row.ids) for row in rows), np.int64, len(rows))
        tokens = int(lengths.sum())
        ids = np.fromiter(chain.from_iterable(row.ids for row in rows), np.int64, tokens)
        types = None
        if any(row.type_ids is not None for row in rows):
            flat = chain.from_iterable(row.type_ids or [0] * len(row) for row in rows)
            types = np.fromiter(flat, np.int64, tokens)
        return self._run(ids, lengths, types, options)

    @torch.inference_mode()
    def _run(self, ids: Ints, lengths: Ints, types: Ints | None, options: dict[str, Tensor | bool]) -> Any:
        self._tell(len(ids))
        flat, segments = torch.from_numpy(ids), None if types is None else torch.from_numpy(types)
        device = self.device
        if device.type != "cpu":
            if self.is_fast:
                # Ids are looked at here, where no GPU is waited for; a model that is compiled for one does not look.
                ids_below("input_ids", flat, self.config.vocab_size, "vocab_size")
                if segments is not None and self.config.has_segments:
                    ids_below("token_type_ids", segments, self.config.type_vocab_size, "type_vocab_size")
            flat, segments = upload(ids, device), None if types is None else upload(types, device)
        return self.model(
            flat,
            token_type_ids=segments,
            cu_seqlens=torch.from_numpy(np.append(0, np.cumsum(lengths))),
            return_dict=True,
            **options,
        )

    def last_states(self, ids: Ints, lengths: Ints) -> Tensor:
        """`[tokens, hidden]` for rows laid end to end, as a `BertModel` gives them. On a GPU nothing waits for them."""
        if not isinstance(self.model, FastBert):
            states: Tensor = self._run(ids, lengths, None, {}).last_hidden_state
            return states
        self._tell(len(ids))
        return self.model.last_state(torch.from_numpy(ids), lengths.tolist())

    def pooled(self, pieces: Pieces, modes: Sequence[str]) -> Tensor:
        """`[rows, modes, hidden]` on the model's device, as `pool` gives them: by the engine, where it pools too."""
        if isinstance(self.model, FastBert):
            columns = map(torch.from_numpy, (pieces.lengths, pieces.starts, pieces.counts, pieces.positions))
            found = self.model.pooled(torch.from_numpy(pieces.ids), PooledRows(*columns), modes)
            if found is not None:
                self._tell(len(pieces.ids))
                return hear(found, pieces, modes)
        return pool(self.last_states(pieces.ids, pieces.lengths), pieces, modes)

    def vectors(self, pieces: Pieces, mode: str, *, unit: bool) -> Callable[[], Tensor] | None:
        """`[texts, hidden]` on the CPU when it is called, of texts of one row each; None: `pooled` is the way."""
        if not (self._makes_vectors and isinstance(self.model, FastBert)):
            return None
        wanted = means(pieces, mode, unit=unit)
        found = None if wanted is None else self.model.vectors(pieces.ids, wanted)
        if found is not None:
            self._tell(len(pieces.ids))
        return found

    def logits(self, rows: Sequence[Row]) -> Callable[[], Tensor]:
        """`[rows, num_labels]` float32 logits of a model that judges rows, on the CPU when they are asked for."""
        return self.read_later(self.run(rows).logits.float())

    def row_logits(self, rows: Sequence[Row]) -> Callable[[], list[Tensor]]:
        """As `logits`, `[num_labels]` for each row."""
        logits = self.logits(rows)
        return lambda: list(logits().unbind(0))

    @staticmethod
    def _tell(tokens: int) -> None:
        if (read := getattr(watching, "read", None)) is not None:
            read(tokens)

    @staticmethod
    def read_later(values: Tensor) -> Callable[[], Tensor]:
        """The same on the CPU, when it is asked for; a GPU copies it meanwhile."""
        if not values.is_cuda:
            return lambda: values
        device, copied = values.device, values.to("cpu", non_blocking=True)
        ready = torch.cuda.current_stream(device).record_event()

        def read() -> Tensor:
            ready.synchronize()
            return copied

        return read

    @staticmethod
    def split(packed: Tensor, rows: Sequence[Row]) -> tuple[Tensor, ...]:
        """`[tokens, …]` → one `[length, …]` per row."""
        return torch.split(packed, [len(row) for row in rows])


def open_model(
    model: ModelLike | None,
    kind: type[BertPreTrainedModel],
    *,
    task: str,
    tokenizer: BertTokenizer | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | str | None = None,
    engine: str = "auto",
    default: Callable[[], str] | None = None,
    **construct: Any,
) -> OpenModel:
    """A model of class `kind` for the task called `task`. A checkpoint without that head is refused, not filled up.

    A model named by its files is compiled (`engine="auto"`) where the engine has a runner for it; `"reference"` leaves
    it plain. A model object or a `OpenModel` is used as it is. Without `dtype`, a CPU computes in float32 and a GPU in
    half precision (engine/half_precision.py).
    """
    one_of("engine", engine, ENGINES)
    match model:
        case BertPreTrainedModel():
            if tokenizer is None:
                raise InputError(
                    f"{task} was given a model object without its tokenizer.",
                    "Pass tokenizer=BertTokenizer.from_pretrained(…), or the model's folder instead of the object.",
                )
            fitting = _fitting(OpenModel(model, tokenizer, name=type(model).__name__), kind, task, device, dtype)
            fitting.model.eval()
            return fitting
        case OpenModel():
            return _fitting(model, kind, task, device, dtype)
    source = default() if model is None and default is not None else model
    if source is None:
        raise InputError(f"{task} needs a model.", "Name one: a folder with a checkpoint, or a hub name.")
    given = _type_name(dtype)
    if device is None:
        device = "cuda" if torch.cuda.is_available() and given != "int8" else "cpu"
    else:
        _check_device(str(device))
    if given in _ENGINE_TYPES and engine == "reference":
        raise InputError(f"The reference has no {given}.", "Use {engine=auto}, or a dtype like float32.")
    name = os.fspath(source) if is_named(source) else name_of(source)  # which refuses it
    arguments = (name, _stamp(name), kind, task, str(device), given, engine, tuple(sorted(construct.items())))
    loaded = _from_files(*arguments)  # type: ignore[arg-type]  # a class hashes, whatever its instances do
    return loaded if tokenizer is None else replace(loaded, tokenizer=tokenizer)


def is_named(model: ModelLike | None) -> TypeGuard[str | os.PathLike[str]]:
    """Whether a model is given by its files, and not as an object."""
    return isinstance(model, (str, os.PathLike))


def _fitting(
    opened: OpenModel,
    kind: type[BertPreTrainedModel],
    task: str,
    device: torch.device | str | None,
    dtype: torch.dtype | str | None,
) -> OpenModel:
    """A model that is there already, or the encoder inside it where that is all that is wanted."""
    _check_same(opened, device, dtype)
    inside = opened.model
    if not isinstance(inside, BertPreTrainedModel) or isinstance(inside, kind):
        return opened
    if kind.__name__ == "BertModel" and hasattr(inside, "bert"):
        return replace(opened, model=inside.base_model)
    raise InputError(
        f"{task} needs a {kind.__name__}; it was given a {type(inside).__name__}.",
        f"If the checkpoint has that head, name its folder, or load it with {kind.__name__}.from_pretrained(…).",
    )


def _stamp(source: str) -> tuple[int, ...]:
    """When a local folder's files last changed: one that was saved again is loaded again."""
    try:
        return tuple(sorted(entry.stat().st_mtime_ns for entry in os.scandir(source) if entry.is_file()))
    except OSError:
        return ()


def _check_device(name: str) -> None:
    if name == "cpu":
        return
    kind, _, number = name.partition(":")
    if kind != "cuda" or (number and not number.isdecimal()):
        usable_device(name)
        return
    if not torch.cuda.is_available():
        raise InputError(
            "The device is cuda, but PyTorch finds no GPU.", "Use cpu, or install a PyTorch that was built for CUDA."
        )
    if (found := torch.cuda.device_count()) <= int(number or 0):
        raise InputError(
            f"The device {name} was requested, but PyTorch finds only {found} GPU{'s' if found > 1 else ''}.",
            f"The last one is cuda:{found - 1}.",
        )


def _check_same(model: OpenModel, device: torch.device | str | None, dtype: torch.dtype | str | None) -> None:
    """A model that is there already stays where and what it is: device= and dtype= may only say the same."""
    if device is not None:
        _check_device(str(device))
        wanted = torch.device(device)
        if wanted.type != model.device.type or wanted.index not in (None, model.device.index):
            raise InputError(
                f"{{device}} was given with a model that is on {model.device}.",
                f"Move it first: model.to({str(device)!r}); or name its folder instead.",
                device=str(device),
            )
    given = _type_name(dtype)
    if given is None:
        return
    if given not in ("auto", model.dtype):
        raise InputError(
            f"{{dtype}} was given with a model that is {model.dtype}.",
            "Convert it first: model.to(torch.bfloat16) or bertie.compile(…); or name its folder instead.",
            dtype=given,
        )


def _type_name(dtype: torch.dtype | str | None) -> str | None:
    """`bf16`, `torch.bfloat16` and `bfloat16` are one; a type that the engine does not know is left as it is."""
    try:
        return None if dtype is None else dtype_name(dtype)
    except InputError:
        return str(dtype).removeprefix("torch.")


def forget_models() -> None:
    """Unload the models that were opened by name; whoever still uses one keeps it."""
    _from_files.cache_clear()


def _check_classifier(named: str | None, wanted: str, *, task: str, source: str) -> None:
    if named is not None and named != wanted and named in _CLASSIFIERS and wanted in _CLASSIFIERS:
        raise CheckpointError(
            f"{task} needs {_HEADS[wanted]}; {source} is a {named}, {_HEADS[named]}.",
            f"Use a checkpoint fine-tuned for {task}; {_CLASSIFIERS[named]}. "
            "If it is not what it says, correct architectures in its config.json.",
        )


@lru_cache(maxsize=4)
def _from_files(
    source: str,
    stamp: tuple[int, ...],  # part of the key only
    kind: type[BertPreTrainedModel],
    task: str,
    device: str,
    dtype: str | None,
    engine: str,
    construct: tuple[tuple[str, Any], ...],
) -> OpenModel:
    rounded = dtype if dtype in _ENGINE_TYPES else None
    # On a CPU bfloat16 does not round everything (engine/cpu/bfloat16.py), so parameters are read as they are.
    from_wide = engine == "auto" and dtype == "bfloat16" and torch.device(device).type == "cpu"
    checkpoint = open_checkpoint(source, with_companions=True)
    _check_classifier(named_kind(checkpoint.config), kind.__name__, task=task, source=source)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made: Any = related(kind, checkpoint.config.get("model_type")).from_pretrained(
            source,
            dtype="float32" if from_wide else DTYPES[rounded] if rounded else dtype,
            device=device,
            output_loading_info=True,
            **dict(construct),
        )
    built, report = made
    if report.newly_initialised:
        found = model_class(checkpoint).__name__
        raise CheckpointError(
            f"{task} needs {_HEADS.get(kind.__name__, kind.__name__)}; {source} is a {found} and lacks "
            f"{listed(report.newly_initialised, shown=2)}.",
            f"Use a checkpoint fine-tuned for {task}, or fine-tune this one first.",
        )
    tokenizer = BertTokenizer.from_pretrained(checkpoint.folder)
    vocabulary = built.config.vocab_size
    if len(tokenizer) > vocabulary:
        raise CheckpointError(
            f"{source}: the tokenizer knows {len(tokenizer)} tokens, the model's vocabulary has {vocabulary}.",
            "They belong to different models, or tokens were added without resize_token_embeddings().",
        )
    if engine == "auto" and dtype is None and built.device.type == "cuda" and built.dtype == torch.float32:
        built = in_half_precision(built, tokenizer)
    elif from_wide:
        built = compile_model(built, dtype=dtype, tokenizer=tokenizer, strict=False)
    elif engine == "auto" and (rounded or str(built.dtype).removeprefix("torch.") in DTYPES):
        # Rounding was asked for by name, so a model that cannot be rounded is refused; other types have the reference.
        built = compile_model(built, dtype=rounded, tokenizer=tokenizer, strict=rounded is not None)
    loaded = OpenModel(built, tokenizer, checkpoint.folder, source, rounded=rounded)
    if loaded.is_fast and built.device.type == "cuda":
        built.check_inputs = False  # OpenModel looks at the ids before they go there
    return loaded
