"""What embeds for the server: texts to rows (`EmbedTexts`, which needs no weights) and rows to vectors (`EmbedRunner`).

With several processes the two halves are in two of them: a front has the tokenizer, an engine the model. The rows of a
request stay arrays from the tokenizer to the batch, so nothing here costs Python a step for every text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast, overload

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from bertie.running.pooling import Pieces
from bertie.running.rows import Cuts, Cutting, cut_ids
from bertie.serve.failures import Refusal, invalid, too_large
from bertie.serve.models import Place, Source
from bertie.serve.queues import Lane, Later
from bertie.serve.settings import Truncation
from bertie.tasks.embed import Embedder
from bertie.text import BertTokenizer

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

_WITHOUT_LIMIT = 1 << 30


@dataclass(frozen=True, slots=True, eq=False)
class EmbedRows(Sequence["EmbedRows"]):
    """Rows end to end: one per text, whose first `skipped` tokens do not count, or those of `pieces`.

    `raw`: without the checkpoint's own normalising.
    """

    ids: Ints  # [tokens]
    lengths: Ints  # [rows]
    skipped: int = 0
    raw: bool = False
    pieces: Pieces | None = None  # where a text may have several rows

    def __len__(self) -> int:
        return len(self.lengths)

    @overload
    def __getitem__(self, which: int) -> EmbedRows: ...

    @overload
    def __getitem__(self, which: slice) -> EmbedRows: ...

    def __getitem__(self, which: int | slice) -> EmbedRows:
        match which:
            case slice():
                start, stop, _ = which.indices(len(self))
            case _ if 0 <= which < len(self):
                start, stop = which, which + 1
            case _:
                raise IndexError(which)
        if stop - start == len(self):
            return self
        if self.pieces is not None:
            return EmbedRows.of_pieces(self.pieces.between(start, stop), raw=self.raw)
        begin = int(self.lengths[:start].sum())
        lengths = self.lengths[start:stop]
        return EmbedRows(self.ids[begin : begin + int(lengths.sum())], lengths, self.skipped, self.raw)

    @classmethod
    def of_pieces(cls, pieces: Pieces, *, raw: bool) -> EmbedRows:
        return cls(pieces.ids, pieces.lengths, raw=raw, pieces=pieces)

    def as_pieces(self) -> Pieces:
        return self.pieces or Pieces.of_texts(self.ids, self.lengths, skipped=self.skipped)

    @staticmethod
    def joined(parts: Sequence[EmbedRows]) -> Pieces:
        """The rows of several requests as one batch."""
        first = parts[0]
        if len(parts) == 1:
            return first.as_pieces()
        if any(part.pieces is not None or part.skipped != first.skipped for part in parts):
            return Pieces.joined([part.as_pieces() for part in parts])
        ids, lengths = (np.concatenate(column) for column in zip(*((p.ids, p.lengths) for p in parts), strict=True))
        return Pieces.of_texts(ids, lengths, skipped=first.skipped)


class EmbedSettings(msgspec.Struct, frozen=True):
    """All that making rows for a model takes, beside its tokenizer."""

    folder: str | None  # of the tokenizer
    max_length: int
    dimension: int
    vocabulary: int
    prompts: dict[str, str]
    default_prompt: str | None
    count_prompt: bool
    lower: bool
    normalizes: bool

    @classmethod
    def of(cls, embedder: Embedder) -> EmbedSettings:
        settings, loaded = embedder.settings, embedder.loaded
        return cls(
            folder=None if loaded.folder is None else str(loaded.folder),
            max_length=embedder.max_length,
            dimension=embedder.dimension,
            vocabulary=loaded.config.vocab_size,
            prompts=embedder.prompts,
            default_prompt=settings.default_prompt_name,
            count_prompt=embedder.pooling.include_prompt,
            lower=settings.do_lower_case,
            normalizes=any(stage.normalizes for stage in settings.stages),
        )


class EmbedTexts:
    """Texts, or ids, to rows. What it gives goes through lane `vectors`, wherever that runs."""

    def __init__(self, tokenizer: BertTokenizer, settings: EmbedSettings, vectors: Lane[EmbedRows, Floats]) -> None:
        self.tokenizer, self.settings, self.vectors = tokenizer, settings, vectors
        self.dimension, self.max_length = settings.dimension, settings.max_length
        self._cuttings: dict[tuple[str | None, bool, str], Cutting] = {}  # as many as there are prompts, times four

    def rows(
        self,
        texts: Sequence[str] | Sequence[list[int]],
        *,
        prompt_name: str | None = None,
        truncation: Truncation = "right",
        long: str = "truncate",
        raw: bool = False,
        cuts: Cuts | None = None,
    ) -> EmbedRows:
        """The rows of all texts (or ids), in order. Texts that are cut are counted in `cuts`."""
        cuts = cuts or Cuts("truncate", 0)
        if not isinstance(texts[0], str):
            return self._cut(self._of_ids(cast(Sequence[list[int]], texts), raw), truncation, cuts)
        if prompt_name is not None and prompt_name not in self.settings.prompts:
            names = ", ".join(self.settings.prompts)
            raise invalid(f"There is no prompt called {prompt_name[:80]!r}. The model has: {names}.")
        whole = long == "truncate" and truncation != "right"
        cutting = self._cuttings.get((prompt_name, whole, long))
        if cutting is None:
            cutting = self._cuttings[prompt_name, whole, long] = self._cutting(prompt_name, whole, long)
        given = cast(Sequence[str], texts)
        if long != "truncate":
            return EmbedRows.of_pieces(cutting.pieces(given, cuts), raw=raw)
        ids, lengths, is_cut = cut_ids(self.tokenizer, cutting.prepared(given), cutting.max_length)
        cuts.count(int(np.count_nonzero(is_cut)), len(given))
        skipped = 0 if cutting.count_prompt or not cutting.prompt_ids else 1 + len(cutting.prompt_ids)
        rows = EmbedRows(ids, lengths, skipped, raw)
        return self._cut(rows, truncation, cuts) if whole else rows

    def _cutting(self, prompt_name: str | None, whole: bool, long: str) -> Cutting:
        settings = self.settings
        limit = _WITHOUT_LIMIT if whole else settings.max_length
        name = settings.default_prompt if prompt_name is None else prompt_name
        return Cutting(
            self.tokenizer,
            max_length=limit,
            prompt="" if name is None else settings.prompts[name],
            count_prompt=settings.count_prompt,
            lower=settings.lower,
            long=long,
            cuts=Cuts(long, limit),
        )

    def _of_ids(self, texts: Sequence[list[int]], raw: bool) -> EmbedRows:
        tokenizer = self.tokenizer
        rows = []
        for number, given in enumerate(texts):
            ids = checked_ids(given, self.settings.vocabulary, number)
            # Ids with their special tokens are taken as they are; ids of a text alone get them.
            if not (len(ids) >= 2 and ids[0] == tokenizer.cls_token_id and ids[-1] == tokenizer.sep_token_id):
                ids = tokenizer.build_inputs_with_special_tokens(ids)
            rows.append(np.array(ids, dtype=np.int64))
        return EmbedRows(np.concatenate(rows), np.array([len(row) for row in rows]), raw=raw)

    def _cut(self, given: EmbedRows, truncation: Truncation, cuts: Cuts) -> EmbedRows:
        """Rows that are too long, refused or cut at their beginning or end, special tokens kept."""
        limit = self.max_length
        if int(given.lengths.max(initial=0)) <= limit:
            return given
        rows = np.split(given.ids, np.cumsum(given.lengths)[:-1])
        for number, row in enumerate(rows):
            if len(row) > limit:
                if truncation == "error":
                    raise too_long(number, len(row), limit)
                kept = (row[:1], row[len(row) - limit + 1 :]) if truncation == "left" else (row[: limit - 1], row[-1:])
                rows[number] = np.concatenate(kept)
                cuts.count(1, 0)
        return EmbedRows(np.concatenate(rows), np.array([len(row) for row in rows]), given.skipped, given.raw)


class EmbedRunner(EmbedTexts):
    """The same with the model: vectors of texts (lane `vectors`), and of every token (lane `tokens`)."""

    def __init__(self, source: Source, place: Place) -> None:
        self.embedder = Embedder(source, device=place.device, dtype=place.dtype)
        self.loaded = self.embedder.loaded
        super().__init__(
            self.loaded.tokenizer, EmbedSettings.of(self.embedder), Lane("embed", self._run_vectors, in_parts=True)
        )
        self.tokens = Lane("embed_all", self._run_tokens, in_parts=True)

    def warm_up(self) -> None:
        row = self.rows(["warm up"])
        for tokens in (len(row.ids), *self.loaded.steps):
            match self._run_vectors([row] * (tokens // len(row.ids))):
                case Later() as answers:
                    answers.read()

    def join(self, rows: EmbedRows, answers: Sequence[Floats]) -> Floats:
        """`[texts, d]` out of the lane's answers for rows of which a text may have several."""
        pieces = rows.as_pieces()
        heads = np.flatnonzero(pieces.firsts).tolist()
        vectors: list[Floats] = []
        for start, stop in zip(heads, [*heads[1:], len(pieces)], strict=True):
            if stop - start == 1:
                vectors.append(answers[start])
                continue
            sums = torch.from_numpy(np.stack(answers[start:stop]))
            own = pieces.take(np.arange(start, stop))
            vectors.append(self.embedder.finished(sums, own, raw=rows.raw).numpy()[0])
        return np.stack(vectors)

    def _run_vectors(self, parts: list[EmbedRows]) -> Sequence[Floats] | Later[Floats]:
        """For a text of one row its vector; for a row of a longer text its sums, `[modes, hidden]`."""
        batch = EmbedRows.joined(parts)
        kinds = {part.raw for part in parts}
        if len(kinds) == 1 and batch.whole:
            read = self.embedder.vectors(batch, raw=kinds.pop())
            return Later(lambda: cast(Sequence[Floats], read().numpy()))  # [texts, d]: a sequence of rows
        return self._run_mixed(parts, batch, kinds)

    @torch.inference_mode()
    def _run_mixed(self, parts: list[EmbedRows], batch: Pieces, kinds: set[bool]) -> Sequence[Floats]:
        sums = self.embedder.pooled(batch)
        whole = batch.firsts & batch.lasts
        raw = np.repeat([part.raw for part in parts], [len(part) for part in parts])
        answers: list[Floats | None] = [None] * len(batch)
        for kind in kinds:
            places = np.flatnonzero(whole & (raw == kind))
            if len(places):
                vectors = self.embedder.finished(sums[places], batch.take(places), raw=kind).cpu().numpy()
                for place, vector in zip(places.tolist(), vectors, strict=True):
                    answers[place] = vector
        on_cpu = None if whole.all() else sums.cpu().numpy()
        return [cast(Any, on_cpu)[n] if answer is None else answer for n, answer in enumerate(answers)]

    @torch.inference_mode()
    def _run_tokens(self, parts: list[EmbedRows]) -> list[Floats]:
        batch = EmbedRows.joined(parts)
        hidden = self.loaded.last_states(batch.ids, batch.lengths).float().cpu()
        return [part.numpy() for part in torch.split(hidden, batch.lengths.tolist())]


def checked_ids(given: Sequence[int], vocabulary: int, number: int) -> list[int]:
    ids = list(given)
    for one in (min(ids, default=0), max(ids, default=0)):
        if not 0 <= one < vocabulary:
            raise invalid(f"Input {number} holds the token id {one}; this model's go from 0 to {vocabulary - 1}.")
    return ids


def too_long(number: int, found: int, limit: int) -> Refusal:
    return too_large(
        f"`inputs` must have at most {limit} tokens. Given: {found} (input {number}). Set truncate, or send less."
    )
