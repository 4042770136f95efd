"""Embeddings: texts that belong together are brought together. A `BertModel` with pooling on top.

    query, positive                     each pair's other positives are the negatives (in-batch negatives)
    anchor, positive, negative, …       and these besides: columns called negative, negative_1, negative_2 …
    sentence1, sentence2, score         how similar two texts are (STS-B)
    questions + answers (json)          ReQA's layout, see data/retrieval.py

Every distinct text is kept and tokenized once; an example is a row of text numbers. The losses:

- contrastive: an anchor's positive against all other positives and hard negatives of the batch, by softmax over scaled
  cosines (Henderson et al. 2017; scale 20 is a temperature of 0.05). A text that is a positive of an
  equal anchor elsewhere in the batch, or the anchor itself, is not used as a negative.
- cosine: the squared difference of the cosine and a score (Reimers & Gurevych 2019).
- cosent: pairs in the order of their scores: log(1 + Σ exp(scale·(cos_j − cos_i))) over all i that score above j.

Contrastive and CoSENT compare the texts of a batch with each other, so their batches are not cut (`whole_batches`). Of
several processes each sees the vectors of all (run/distributed.py), and the gradient is that of one on the whole batch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from bertie.checkpoint.open_checkpoint import open_checkpoint
from bertie.data import BadRows, choose_label, choose_pair
from bertie.data.columns import label_of, text_of
from bertie.data.glue import read_glue
from bertie.data.retrieval import read_answer_retrieval
from bertie.errors import DataError
from bertie.model import BertModel
from bertie.running.batching import split_by_tokens
from bertie.running.pooling import read_pooling
from bertie.running.sentence_folder import SentenceSettings, read_sentence_settings
from bertie.text import BertTokenizer
from bertie.training import metrics
from bertie.training.contract import Batch, Examples, Numbers, TextObjective, evaluating, own_examples, run_model
from bertie.training.run.distributed import counts_of_all, rows_of_all, several_processes
from bertie.training.sentence_folder import write_sentence_folder
from bertie.training.sources import Columns, Source, sources_of
from bertie.training.task import EmbedLoss, LoadedTask, Request, Task, notes_of
from bertie.training.token_rows import TokenRow, TokenRows, fingerprint, pack

_NEGATIVE = re.compile(r"(hard_)?neg(ative)?s?[ _-]?\d*", re.IGNORECASE)


def load(request: Request) -> LoadedTask:
    options = request.options
    model = request.load(BertModel, add_pooling_layer=False)
    settings, folder = SentenceSettings(), None
    if request.model is None:
        folder = open_checkpoint(request.path, with_companions=True).folder
        settings = read_sentence_settings(folder, model.config.hidden_size)
    if options.pooling is not None:
        settings, folder = SentenceSettings(pooling=read_pooling(options.pooling, settings.pooling)), None
    length = request.max_length(model, default=settings.max_length)

    def read(given: object, scored: bool | None) -> EmbedExamples:
        return embed_examples(
            given,
            request.tokenizer,
            max_length=length,
            columns=options.columns,
            skip_bad=options.skip_bad,
            scored=scored,
            prompt=settings.prompts.get(settings.default_prompt_name or "", ""),
        )

    train = read(request.train, False if options.loss == "contrastive" else None)
    dev = None if request.dev is None else read(request.dev, None)
    if train.scores is None and options.loss in ("cosine", "cosent"):
        raise DataError(
            "{loss} needs a score for every pair, and the training data has none.",
            "Name its column: {label}, or use the contrastive loss.",
            loss=options.loss,
            label=...,
        )
    if train.scores is not None:
        largest = float(np.abs(train.scores).max())
        if largest > 1:  # 0 to 5, say: a cosine goes no further than 1
            train = train.scaled(largest)
    best = options.best_metric
    if best is None and dev is not None:
        best = "mrr" if dev.scores is None else "spearman"
    objective = Embedding(
        model,
        request.tokenizer,
        loss=options.loss or ("contrastive" if train.scores is None else "cosine"),
        scale=options.scale,
        settings=settings,
        folder=folder,
        max_length=length,
        best_metric=best,
    )
    # Without hard negatives an anchor has only its neighbours to be compared with.
    smallest = 2 if objective.whole_batches and train.table.shape[1] == 2 else 1
    return LoadedTask(objective, train, dev, notes_of(train, dev), max_length=length, smallest_batch=smallest)


_FIGURES = ("mrr", "recall@1", "recall@5", "recall@10", "spearman", "pearson")
TASKS = (Task("embed", _FIGURES, load, reported=("scale",)),)


# -- examples ----------------------------------------------------------------------------------------------------------


class EmbedExample(NamedTuple):
    """Rows: the anchor, its positive, its hard negatives; and the numbers of these texts."""

    rows: list[TokenRow]
    texts: Numbers
    score: float


@dataclass(frozen=True)
class EmbedExamples(Examples[EmbedExample]):
    """`table[i]` are the text numbers of example i, the anchor first; `scores` is None for pairs without."""

    texts: TokenRows
    table: Numbers  # [examples, 2 + negatives]
    scores: npt.NDArray[np.float32] | None
    bad: BadRows

    def __len__(self) -> int:
        return len(self.table)

    def length(self, index: int) -> int:
        return sum(self.texts.length(int(text)) for text in self.table[index])

    def get(self, index: int, epoch: int) -> EmbedExample:
        numbers = self.table[index]
        score = 0.0 if self.scores is None else float(self.scores[index])
        return EmbedExample([self.texts[int(text)] for text in numbers], numbers, score)

    def fingerprint(self) -> str:
        return fingerprint(*self.texts.arrays(), self.table, [] if self.scores is None else self.scores)

    def groups(self) -> list[int]:
        """Pairs of the same anchor belong together."""
        anchors: list[int] = self.table[:, 0].tolist()
        return anchors

    def take(self, things: Numbers) -> EmbedExamples:
        """These pairs alone, with the texts they need."""
        used, table = np.unique(self.table[things], return_inverse=True)
        scores = None if self.scores is None else self.scores[things]
        return EmbedExamples(self.texts.take(used), table.reshape(len(things), -1), scores, self.bad)

    def scaled(self, largest: float) -> EmbedExamples:
        """With scores divided by `largest`: 0 to 5 becomes 0 to 1, which a cosine can be."""
        scores = None if self.scores is None else self.scores / np.float32(largest)
        return EmbedExamples(self.texts, self.table, scores, self.bad)


def embed_examples(
    given: object,
    tokenizer: BertTokenizer,
    *,
    max_length: int,
    columns: Columns | None = None,
    skip_bad: bool = False,
    scored: bool | None = None,
    prompt: str = "",
) -> EmbedExamples:
    """Read and tokenize. `scored=None` takes scores where there is a column of them; `prompt` goes before each text."""
    bad = BadRows(skip=skip_bad)
    numbers: dict[str, int] = {}
    table: list[tuple[int, ...]] = []
    scores: list[float] = []
    sources = sources_of(given, columns)
    for texts, score, where in chain.from_iterable(_items(source, scored, bad) for source in sources):
        has_score = score is not None
        wrong = None
        if table and len(texts) != len(table[0]):
            wrong = f"{where}: {len(texts) - 2} negatives; the rows before have {len(table[0]) - 2}."
        elif table and has_score != bool(scores):
            wrong = f"{where}: {'a score, and rows before have none' if has_score else 'no score'}."
        if wrong is not None:
            bad.report(DataError(wrong, "Give every row the same columns."))
            continue
        table.append(tuple(numbers.setdefault(text, len(numbers)) for text in texts))
        if score is not None:
            scores.append(score)
    if not table:
        raise DataError(f"{sources[0].name} has no pairs to use.", "Check the file and its columns.")
    rows = TokenRows.encode(tokenizer, [prompt + text for text in numbers], max_length=max_length)
    made = np.asarray(scores, dtype=np.float32) if scores else None
    return EmbedExamples(rows, np.asarray(table, dtype=np.int64), made, bad)


_Item = tuple[Sequence[str], float | None, str]


def _items(source: Source, scored: bool | None, bad: BadRows) -> Iterator[_Item]:
    task, columns = source.glue, source.columns
    if task is not None and task.text_b is not None:
        for example in read_glue(task.name, source.name, encoding=columns.encoding).reading(bad):
            where = f"{source.name}, example {example.guid}"
            try:
                score = None if scored is False else float("" if example.label is None else example.label)
            except ValueError:
                bad.report(DataError(f"{where}: the label {example.label!r} is no score.", "Use STS-B, or MRPC."))
                continue
            yield (example.text_a, example.text_b or ""), score, where
        return
    answers = None if source.path is None else _answer_retrieval(source.path, columns.encoding)
    yield from _rows(source, scored, bad) if answers is None else answers


def _answer_retrieval(path: str, encoding: str) -> list[_Item] | None:
    """ReQA's pairs, if that is what the file holds: an object with a list called questions."""
    if Path(path).suffix.lower() != ".json" or not Path(path).is_file():
        return None
    with open(path, "rb") as file:
        head = file.read(2048)
    if not re.match(rb'\s*\{\s*"(questions|candidates|answers|ground_truths)"', head):
        return None
    found = read_answer_retrieval(path, encoding=encoding)
    return [
        ((question, found.candidates[answer]), None, f"{path}, questions[{number}]")
        for number, (question, answers) in enumerate(zip(found.questions, found.relevant, strict=True))
        for answer in answers
    ]


def _rows(source: Source, scored: bool | None, bad: BadRows) -> Iterator[_Item]:
    reader = source.open(skip_bad=bad.skip)
    chosen: tuple[list[str], str | None] | None = None
    for row in reader.reading(bad):
        if chosen is None:
            chosen = _choose(list(row.values), source.columns, scored, reader.name)
        names, label = chosen
        try:
            texts = [text_of(row, name) for name in names]
            score = None if label is None else float(label_of(row, label, scored=True))
        except DataError as error:
            bad.report(error)
            continue
        yield texts, score, row.where


def _choose(names: list[str], columns: Columns, scored: bool | None, source: str) -> tuple[list[str], str | None]:
    negatives = sorted(
        (name for name in names if _NEGATIVE.fullmatch(name.strip())),
        key=lambda name: (int("0" + re.sub(r"\D", "", name)), name),
    )
    first, second = choose_pair([n for n in names if n not in negatives], given=columns.pair, source=source)
    label = None
    if scored is not False and not negatives:
        try:
            label = choose_label([n for n in names if n not in (first, second)], given=columns.label, source=source)
        except DataError:
            if scored or columns.label:
                raise
    return [first, second, *([] if label else negatives)], label


# -- objective ---------------------------------------------------------------------------------------------------------


class Embedding(TextObjective[EmbedExample]):
    """`settings` are a sentence-transformers folder's own pooling and stages; `folder` is where they came from."""

    name = "embed"

    def __init__(
        self,
        model: BertModel,
        tokenizer: BertTokenizer,
        *,
        loss: EmbedLoss,
        scale: float = 20.0,
        settings: SentenceSettings | None = None,
        folder: Path | None = None,
        max_length: int | None = None,
        best_metric: str | None = None,
    ) -> None:
        judged = best_metric or ("mrr" if loss == "contrastive" else "spearman")
        super().__init__(model, tokenizer, best_metric=judged)
        self.kind = loss
        self.scale = scale
        self.settings = settings or SentenceSettings()
        self.folder = folder
        self.max_length = max_length
        self.whole_batches = loss != "cosine"

    def collate(self, examples: Sequence[EmbedExample]) -> Batch:
        columns = len(examples[0].rows)
        # Anchors first, then positives, then the first negatives …
        tensors = pack([example.rows[column] for column in range(columns) for example in examples])
        tensors["texts"] = torch.from_numpy(np.stack([example.texts for example in examples], axis=1))  # [columns, n]
        tensors["scores"] = torch.tensor([example.score for example in examples])
        return Batch(tensors, float(len(examples)), len(tensors["input_ids"]), len(examples))

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        vectors = F.normalize(self._vectors(model, batch), dim=-1)  # [columns · n, d]
        texts, scores = batch.tensors["texts"], batch.tensors["scores"]
        count = len(scores)
        if self.kind == "cosine":
            cosines = (vectors[:count] * vectors[count : 2 * count]).sum(dim=-1)
            return F.mse_loss(cosines, scores, reduction="sum"), {}
        first, own = 0, count
        if several_processes():
            # A share without examples holds one that does not count; it is nobody's negative.
            own = count if batch.num_examples else 0
            counts = counts_of_all(own, vectors.device)
            rows = vectors.view(len(texts), count, -1).transpose(0, 1)[:own]  # [n, columns, d]
            vectors = rows_of_all(rows, counts).transpose(0, 1).flatten(0, 1)
            texts, scores = rows_of_all(texts.T[:own], counts).T, rows_of_all(scores[:own], counts)
            first, count = sum(counts[: dist.get_rank()]), sum(counts)
        anchors, others = vectors[:count], vectors[count:]
        if self.kind == "contrastive":
            loss = contrastive_loss(anchors[first : first + own], others, texts, scale=self.scale, first=first)
        else:
            cosines = (anchors * others[:count]).sum(dim=-1)
            loss = cosent_loss(cosines, scores, scale=self.scale) * own
        return loss, {}

    def _vectors(self, model: nn.Module, batch: Batch) -> Tensor:
        states: Tensor = run_model(model, batch)["last_hidden_state"]
        pooled = pool_packed(states.float(), batch.tensors["cu_seqlens"], self.settings.pooling.modes)
        for stage in self.settings.stages:
            pooled = stage(pooled)
        return pooled

    def metric_names(self, dev: Examples[EmbedExample]) -> tuple[str, ...]:
        scored = own_examples(dev, EmbedExamples, self).scores is not None
        return ("spearman", "pearson") if scored else ("mrr", "recall@1", "recall@5", "recall@10")

    def evaluate(
        self, model: nn.Module, examples: Examples[EmbedExample], *, token_budget: int, device: torch.device | str
    ) -> dict[str, float]:
        """Correlations of cosines with scores; or, for pairs without, how well anchors find their positives."""
        data = own_examples(examples, EmbedExamples, self)
        rows = data.texts
        vectors = torch.empty(0)
        with evaluating(model):
            for indices in split_by_tokens(rows.lengths().tolist(), token_budget):
                tensors = pack([rows[index] for index in indices])
                batch = Batch(tensors, 0.0, len(tensors["input_ids"]), len(indices)).to(device)
                found = F.normalize(self._vectors(model, batch), dim=-1).cpu()
                if not len(vectors):
                    vectors = torch.empty(len(rows), found.shape[1])
                vectors[torch.tensor(indices)] = found
        anchors, positives = torch.from_numpy(data.table[:, 0]), torch.from_numpy(data.table[:, 1])
        if data.scores is not None:
            cosines = (vectors[anchors] * vectors[positives]).sum(dim=-1).numpy()
            return {
                "spearman": metrics.spearman(cosines, data.scores),
                "pearson": metrics.pearson(cosines, data.scores),
            }
        return _found(vectors, data.table)

    def save_extras(self, folder: Path) -> None:
        """The tokenizer, and the files that make the folder a sentence-transformers one."""
        super().save_extras(folder)
        write_sentence_folder(
            folder,
            hidden_size=self.model.config.hidden_size,
            pooling=self.settings.pooling,
            max_length=self.max_length,
            source=self.folder,
        )


def pool_packed(states: Tensor, cu_seqlens: Tensor, modes: Sequence[str]) -> Tensor:
    """`[T, hidden]` → `[texts, modes · hidden]`; the modes of running/pooling.py, with gradients."""
    ends = cu_seqlens.to(states.device).long()
    starts, lengths = ends[:-1], ends.diff()
    number = len(lengths)
    segments = torch.repeat_interleave(torch.arange(number, device=states.device), lengths, output_size=len(states))
    counts = lengths[:, None].to(states.dtype)

    def summed(values: Tensor) -> Tensor:
        return values.new_zeros(number, values.shape[1]).index_add(0, segments, values)

    pooled = []
    for mode in modes:
        if mode == "cls":
            pooled.append(states[starts])
        elif mode == "lasttoken":
            pooled.append(states[ends[1:] - 1])
        elif mode == "max":
            index = segments[:, None].expand_as(states)
            least = states.new_full((number, states.shape[1]), -torch.inf)
            pooled.append(least.scatter_reduce(0, index, states, "amax"))
        elif mode == "weightedmean":
            places = torch.arange(1, len(states) + 1, device=states.device) - starts[segments]
            weights = places[:, None].to(states.dtype)
            pooled.append(summed(states * weights) / summed(weights))
        else:
            pooled.append(summed(states) / (counts if mode == "mean" else counts.sqrt()))
    return torch.cat(pooled, dim=-1)


def contrastive_loss(anchors: Tensor, candidates: Tensor, texts: Tensor, *, scale: float, first: int = 0) -> Tensor:
    """The sum over anchors. `anchors [n, d]` and `candidates [m, d]` are of unit length; `texts [columns, N]` are the
    text numbers of anchors (first row), positives and negatives. These anchors are `first`, `first` + 1 … of the N, and
    candidate i is the positive of anchor i.
    """
    wanted = torch.arange(first, first + len(anchors), device=anchors.device)
    owners, positives, others = texts[0], texts[1], texts[1:].flatten()  # [N], [N], [m]
    ours = owners[wanted][:, None]  # [n, 1]
    same_anchor = (ours == owners[None, :]).float()  # [n, N]
    is_positive = (positives[:, None] == others[None, :]).float()  # [N, m]
    belongs = (same_anchor @ is_positive > 0) | (ours == others[None, :])
    hidden = belongs & (torch.arange(len(others), device=anchors.device)[None, :] != wanted[:, None])
    with torch.autocast(anchors.device.type, enabled=False):  # twenty cosines' worth of bfloat16 would be too coarse
        scores = (anchors @ candidates.T * scale).masked_fill(hidden, -torch.inf)
    return F.cross_entropy(scores, wanted, reduction="sum")


def cosent_loss(cosines: Tensor, scores: Tensor, *, scale: float) -> Tensor:
    """One number for a batch: log(1 + Σ exp(scale · (cos_j − cos_i))) over the pairs with score i above score j."""
    differences = scale * (cosines[None, :] - cosines[:, None])  # [i, j]
    differences = differences.masked_fill(scores[:, None] <= scores[None, :], -torch.inf)
    return torch.logsumexp(torch.cat([differences.flatten(), differences.new_zeros(1)]), dim=0)


# -- rankings ----------------------------------------------------------------------------------------------------------


def _found(vectors: Tensor, table: Numbers) -> dict[str, float]:
    candidates = np.unique(table[:, 1:])
    place = {int(text): number for number, text in enumerate(candidates)}
    right: dict[int, list[int]] = {}
    for anchor, positive in table[:, :2].tolist():
        right.setdefault(anchor, []).append(place[positive])
    anchors = list(right)
    block, sums, pool = 512, dict[str, float](), vectors[torch.from_numpy(candidates)].T
    for start in range(0, len(anchors), block):  # a block of queries at a time: scores are queries × candidates
        some = anchors[start : start + block]
        scores = (vectors[torch.tensor(some)] @ pool).numpy()
        for row, anchor in enumerate(some):  # a text does not look for itself
            if anchor in place and place[anchor] not in right[anchor]:
                scores[row, place[anchor]] = -np.inf
        for name, value in metrics.retrieval(scores, [sorted(set(right[a])) for a in some]).items():
            sums[name] = sums.get(name, 0.0) + value * len(some) / len(anchors)
    return sums
