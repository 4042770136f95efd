"""What a task's answers are, and how well a model gives them.

Compressing asks three things of a task: rows to look at while it chooses and fits (`fit`), the answers that are to stay
the same (`answers`: logits, or a text's vector), and a figure to judge by (`score`). The rows that judge are others
than those that fit.

- Tasks that are fine-tuned bring all of it: their files, labels and metrics are those of training/tasks/.
- Plain texts do for vectors: the target is the original's own vectors, and the figure their mean cosine with it.
- Plain texts do for masked words too: every seventh token is hidden, and the figure is how many are found.

Plain texts are the lines of a file, or a column of a table.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from bertie import family, json_values
from bertie.arguments import is_path
from bertie.checkpoint.open_checkpoint import open_checkpoint
from bertie.data.columns import texts as texts_of
from bertie.data.documents import read_documents
from bertie.data.rows import known_format, read_rows
from bertie.errors import DataError, InputError
from bertie.model import BertForMaskedLM, BertModel
from bertie.model.outputs import ModelOutput
from bertie.model.pretrained import BertPreTrainedModel
from bertie.running.open import open_model
from bertie.running.sentence_folder import read_sentence_settings
from bertie.text import BertTokenizer
from bertie.training.contract import Batch, Examples, batches_of, evaluating, run_model
from bertie.training.distillation import load_with_head
from bertie.training.registry import TASKS, load_task
from bertie.training.sentence_folder import write_sentence_folder
from bertie.training.sources import Columns
from bertie.training.task import TaskOptions
from bertie.training.tasks.embed import Embedding, pool_packed
from bertie.training.token_rows import TokenRow, TokenRows, pack

E = TypeVar("E")

FIT_TOKENS = 16_384  # that choices and fits look at
_BATCH = 2048
_HIDDEN_EVERY = 7
_NAMES = ("logits", "start_logits", "end_logits")


class Target(Protocol):
    """A task with its data, and the model that is to be compressed."""

    model: BertPreTrainedModel  # the original, in eval mode
    tokenizer: BertTokenizer
    labelled: ClassVar[bool]  # whether its data has labels
    metric: str
    meaning: str  # of the metric, where its name does not say it; else empty
    fit: Sequence[Batch]  # packed, FIT_TOKENS at most

    @property
    def lengths(self) -> Sequence[int]:
        """Tokens of the rows that judge: the shape of the user's batches."""

    def answers(self, model: BertPreTrainedModel, batch: Batch) -> Tensor:
        """What is to stay the same, `[rows, numbers]`, with gradients."""

    def score(self, model: BertPreTrainedModel) -> float:
        """How well a model does on the rows that judge; more is better."""

    def save_extras(self, folder: Path) -> None:
        """All files of a model's folder but the model's."""


class TaskTarget(Target):
    """A task of training/tasks/, from a folder and files."""

    labelled = True

    def __init__(
        self, task: str, path: str, data: object, train: object | None, tokenizer: BertTokenizer, options: TaskOptions
    ) -> None:
        loaded = load_task(
            task, model=path, train=data if train is None else train, dev=None if train is None else data,
            tokenizer=tokenizer, options=options,
        )  # fmt: skip
        self.objective, self.tokenizer = loaded.objective, tokenizer
        # The head must be the checkpoint's: one that is made up answers nothing.
        model, missing = load_with_head(path, self.objective)
        if missing:
            raise InputError(
                f"The model has no weights for {', '.join(missing[:2])} of a {type(model).__name__}.",
                f"What is compressed is a model that does its task: fine-tune it first (bertie finetune {task}).",
            )
        self.model = model.requires_grad_(True).eval()
        self.model.config.problem_type = self.objective.model.config.problem_type
        self.objective.model = self.model
        self.metric, self.meaning = self.objective.best_metric, ""
        self._sign = 1.0 if self.objective.greater_is_better else -1.0
        examples = loaded.train
        judged = loaded.dev
        if judged is None:
            things = np.arange(len(examples.groups() or range(len(examples))))
            if len(things) < 2:
                raise DataError(
                    "{data} has one row.",
                    "Half of the rows are used for fitting and half for judging: give more.",
                    data=...,
                )
            examples, judged = examples.take(things[::2]), examples.take(things[1::2])
        self.judged = judged
        self.fit = list(_limited(batches_of(self.objective, _some(examples), token_budget=_BATCH, device="cpu")))

    @property
    def lengths(self) -> Sequence[int]:
        found: list[int] = self.judged.lengths().tolist()
        return found

    def answers(self, model: BertPreTrainedModel, batch: Batch) -> Tensor:
        outputs: list[ModelOutput] = []
        handle = model.register_forward_hook(lambda module, given, output: outputs.append(output))
        try:
            self.objective.loss(model, batch)  # tasks lay out their rows in ways of their own
        finally:
            handle.remove()
        output = outputs[0]
        if found := [output[name] for name in _NAMES if name in output]:
            logits = torch.stack([x.float() for x in found], dim=-1) if found[0].dim() == 1 else found[0].float()
            # What is added to all labels alike changes no probability.
            shared = logits.shape[-1] > 1 and model.config.problem_type == "single_label_classification"
            return logits - logits.mean(-1, keepdim=True) if shared else logits
        embedding = cast("Embedding", self.objective)  # the task whose model has no logits
        return _vectors(output, batch, embedding.settings.pooling.modes)

    def score(self, model: BertPreTrainedModel) -> float:
        figures = self.objective.evaluate(model, self.judged, token_budget=_BATCH, device=model.device)
        return self._sign * figures[self.metric]

    def save_extras(self, folder: Path) -> None:
        self.objective.save_extras(folder)


class PlainTexts(Target):
    """Texts without labels, every other one to judge by where there are no others to choose by."""

    kind: type[BertPreTrainedModel]
    labelled = False

    def __init__(
        self, task: str, path: str, data: object, train: object | None, tokenizer: BertTokenizer, options: TaskOptions
    ) -> None:
        self.path, self.tokenizer = path, tokenizer
        if options.best_metric not in (None, self.metric):
            raise InputError(
                f"{{best_metric:is}} {task} with plain texts is judged by {self.metric}.",
                best_metric=options.best_metric,
            )
        extra: dict[str, Any] = {"add_pooling_layer": False} if self.kind is BertModel else {}
        opened = open_model(path, self.kind, task=task, device="cpu", dtype="float32", engine="reference", **extra)
        self.model = opened.model.eval()
        texts = read_texts(data, options)
        fit, judged = (read_texts(train, options), texts) if train is not None else (texts[::2], texts[1::2])
        if not fit or not judged:
            raise DataError(
                "{data} holds fewer than two texts.",
                "Half of them are used for fitting and half for judging.",
                data=...,
            )
        limits = (self.model.config.max_input_length, tokenizer.model_max_length, self._most(), options.max_length)
        length = min(limit for limit in limits if limit is not None)
        self.rows, self.judged = (TokenRows.encode(tokenizer, part, max_length=length) for part in (fit, judged))
        chosen = _spread(len(self.rows), self.rows.lengths().tolist())
        self.fit = list(_limited(self._batches(self.rows.take(chosen))))

    def _most(self) -> int | None:
        return None

    @property
    def lengths(self) -> Sequence[int]:
        found: list[int] = self.judged.lengths().tolist()
        return found

    def _batches(self, rows: TokenRows) -> Iterator[tuple[list[int], Batch]]:
        start = 0
        while start < len(rows):
            end, tokens = start, 0
            while end < len(rows) and (end == start or tokens + rows.length(end) <= _BATCH):
                tokens, end = tokens + rows.length(end), end + 1
            yield list(range(start, end)), self.batch([rows[i] for i in range(start, end)])
            start = end

    def batch(self, rows: Sequence[TokenRow]) -> Batch:
        """Rows end to end, with what the answers need."""
        return Batch(self._prepared(pack(rows)), len(rows), sum(len(row.ids) for row in rows), len(rows))

    def _prepared(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return tensors

    def answers(self, model: BertPreTrainedModel, batch: Batch) -> Tensor:
        return self.read(run_model(model, batch), batch)

    def read(self, output: ModelOutput, batch: Batch) -> Tensor:
        """The answers, out of what a model gives."""
        raise NotImplementedError

    def difference(self, ours: Tensor, theirs: Tensor) -> Tensor:
        """How far answers are from others: what a model that learns makes small."""
        raise NotImplementedError

    def save_extras(self, folder: Path) -> None:
        self.tokenizer.save_pretrained(folder)


class VectorTarget(PlainTexts):
    """The vectors of texts, as the original gives them."""

    kind, metric, meaning = BertModel, "cosine", "the mean over texts, with the original's vectors"

    def __init__(
        self, task: str, path: str, data: object, train: object | None, tokenizer: BertTokenizer, options: TaskOptions
    ) -> None:
        checkpoint = open_checkpoint(path, with_companions=True)
        self.folder = checkpoint.folder
        config = family.config_class(checkpoint.config.get("model_type")).from_dict(checkpoint.config)
        self.settings = read_sentence_settings(self.folder, config.hidden_size)
        super().__init__(task, path, data, train, tokenizer, options)
        self._wanted: Tensor | None = None

    def _most(self) -> int | None:
        return self.settings.max_length

    def read(self, output: ModelOutput, batch: Batch) -> Tensor:
        return _vectors(output, batch, self.settings.pooling.modes)

    def difference(self, ours: Tensor, theirs: Tensor) -> Tensor:
        return (ours - theirs).square().sum(-1).mean()

    def score(self, model: BertPreTrainedModel) -> float:
        if self._wanted is None:
            self._wanted = self._judged_vectors(self.model)
        return float(F.cosine_similarity(self._judged_vectors(model), self._wanted).mean())

    def _judged_vectors(self, model: BertPreTrainedModel) -> Tensor:
        with evaluating(model):
            found = [self.answers(model, batch.to(model.device)) for _, batch in self._batches(self.judged)]
        return torch.cat(found).cpu()

    def save_extras(self, folder: Path) -> None:
        super().save_extras(folder)
        width, length = self.model.config.hidden_size, self.settings.max_length
        write_sentence_folder(
            folder, hidden_size=width, pooling=self.settings.pooling, max_length=length, source=self.folder
        )


class MaskedWords(PlainTexts):
    """Words behind [MASK]."""

    kind, metric, meaning = BertForMaskedLM, "accuracy", "the share of hidden tokens that are found"

    def _prepared(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        ids = tensors["input_ids"]
        special = torch.isin(ids, torch.tensor(self.tokenizer.all_special_ids))
        places = torch.nonzero(~special)[::_HIDDEN_EVERY, 0]
        mask = self.tokenizer.mask_token_id
        if mask is None:
            raise InputError("The tokenizer has no [MASK].", "Masked words need one.")
        tensors = tensors | {"places": places, "words": ids[places]}
        tensors["input_ids"] = ids.index_fill(0, places, mask)
        return tensors

    def read(self, output: ModelOutput, batch: Batch) -> Tensor:
        logits: Tensor = output["logits"][batch.tensors["places"]]
        return logits.float() - logits.float().mean(-1, keepdim=True)

    def difference(self, ours: Tensor, theirs: Tensor) -> Tensor:
        return F.kl_div(ours.log_softmax(-1), theirs.log_softmax(-1), log_target=True, reduction="batchmean")

    def score(self, model: BertPreTrainedModel) -> float:
        found = total = 0
        with evaluating(model):
            for _, given in self._batches(self.judged):
                batch = given.to(model.device)
                best = self.answers(model, batch).argmax(-1)
                found, total = found + int((best == batch.tensors["words"]).sum()), total + len(best)
        return found / max(1, total)


def read_texts(given: object, options: TaskOptions | None = None) -> list[str]:
    """The texts of files (a line each, or the column of a table) or of a list; empty ones are left out."""
    chosen = options or TaskOptions()
    how, files = chosen.columns, _files(given)
    found: Iterable[str] = texts_of(given, how.text) if files is None else _from_files(files, how, chosen.skip_bad)
    return [text for text in found if text.strip()]


def _files(given: object) -> list[str | os.PathLike[str]] | None:
    """The files that were given: one by its name, several as a list of paths. A list of strings is texts."""
    if is_path(given):
        return [given]
    several = json_values.items(given)
    paths: list[str | os.PathLike[str]] = [one for one in several or () if isinstance(one, os.PathLike)]
    return paths if several and len(paths) == len(several) else None


def _from_files(files: Sequence[str | os.PathLike[str]], how: Columns, skip_bad: bool) -> Iterator[str]:
    for file in files:
        if _is_table(file):
            rows = read_rows(file, encoding=how.encoding, delimiter=how.delimiter, skip_bad=skip_bad)
            yield from texts_of(rows, how.text)
        else:
            for document in read_documents(file, encoding=how.encoding, skip_bad=skip_bad):
                yield from document.lines


def _is_table(file: str | os.PathLike[str]) -> bool:
    """Whether a file has columns, by its name: names that say nothing are those of plain texts."""
    try:
        return known_format(file, None) not in (None, "txt")
    except DataError:
        return False


def open_target(
    task: str, path: str, data: object, train: object | None, tokenizer: BertTokenizer, options: TaskOptions | None
) -> Target:
    """A task by its name: those of `bertie finetune`, embed with plain texts, and fill."""
    options = options or TaskOptions()
    if task == "fill":
        return MaskedWords(task, path, data, train, tokenizer, options)
    if task == "embed" and _is_plain(data, options.columns):
        return VectorTarget(task, path, data, train, tokenizer, options)
    if task not in TASKS:
        known = (*TASKS, "fill")
        raise InputError("{task} is not known.", f"Use one of {', '.join(known)}.", accepted=known, task=task)
    return TaskTarget(task, path, data, train, tokenizer, options)


def _is_plain(data: object, columns: Columns) -> bool:
    """Whether these are texts for themselves, and not pairs: lines, or the one column that was named."""
    files = _files(data)
    lines = bool(json_values.texts(data)) if files is None else not any(map(_is_table, files))
    return lines or columns.text is not None


def _vectors(output: ModelOutput, batch: Batch, modes: Sequence[str]) -> Tensor:
    states: Tensor = output["last_hidden_state"]
    return F.normalize(pool_packed(states.float(), batch.tensors["cu_seqlens"], modes), dim=-1)


def _some(examples: Examples[E]) -> Examples[E]:
    """Examples from all over the data, of FIT_TOKENS and a little more."""
    things = len(examples.groups() or range(len(examples)))
    if things != len(examples):
        return examples.take(_spread(things, [int(examples.lengths().mean())] * things))
    return examples.take(_spread(things, examples.lengths().tolist()))


def _spread(count: int, lengths: Sequence[int]) -> npt.NDArray[np.int64]:
    order = np.random.Generator(np.random.PCG64(0)).permutation(count)
    enough = int(np.searchsorted(np.cumsum(np.asarray(lengths)[order]), FIT_TOKENS)) + 1
    return np.sort(order[:enough])


def _limited(batches: Iterator[tuple[list[int], Batch]]) -> Iterator[Batch]:
    tokens = 0
    for _, batch in batches:
        if tokens and tokens + batch.num_tokens > FIT_TOKENS + _BATCH:
            return
        tokens += batch.num_tokens
        yield batch


__all__ = ["MaskedWords", "PlainTexts", "Target", "TaskTarget", "VectorTarget", "open_target", "read_texts"]
