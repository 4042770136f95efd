"""Search: a corpus embedded on disk, and the k texts nearest to a query, exactly.

    index = build_index(read_rows("corpus.jsonl"), "index")
    for hit in index.search("how do birds find their way?", k=5):
        print(hit.score, hit.text)

Building commits chunk by chunk (files.py). Killed and started again with the same rows, it continues where it stopped;
whether they are the same rows is checked by a hash over all that were indexed.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertie.answers import Hit
from bertie.arguments import one_of, whole_number
from bertie.data import as_rows
from bertie.data.lists import listed
from bertie.errors import BertieError, DataError, InputError
from bertie.running.open import ModelLike, is_named
from bertie.running.task import described, with_bar
from bertie.search.files import (
    MANIFEST,
    STORED,
    IndexRows,
    IndexSettings,
    Manifest,
    OpenPart,
    commit,
    linked,
    read_manifest,
    remove_strays,
    write_manifest,
    writing,
)
from bertie.search.nearest import top_k
from bertie.tasks.embed import Embedder, as_embedder
from bertie.tasks.similarity import score_pairs, unit

CHUNK_ROWS = 4096
# A model is the index's own if it still gives these texts their vectors; other dtypes and devices round a little.
_PROBES = (
    "The quick brown fox jumps over the lazy dog.",
    "Which treaty ended the war, and who signed it in 1648?",
    "def top_k(scores): return sorted(scores)[-5:]",
    "水は百度で沸騰する。 L'eau bout à cent degrés.",
)
_SAME_MODEL = 0.99


class Index:
    """An index on disk. `Index.open(folder)` or `build_index(rows, folder)` make one."""

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        *,
        open_embedder: Callable[[], Embedder],
        partial: bool = False,
        verify: bool = True,
    ) -> None:
        self.folder = folder
        self.manifest = manifest
        self._open_embedder = open_embedder
        self._partial = partial
        self._verify = verify
        self._open: dict[str, OpenPart] = {}

    @classmethod
    def open(
        cls,
        folder: str | os.PathLike[str],
        *,
        model: ModelLike | Embedder | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | str | None = None,
        partial: bool = False,
        verify: bool = True,
    ) -> Index:
        """Open an index. `model` is needed only if the model has moved; a different model is rejected.

        An index to which an addition has not ended (or ran out of disk) answers from the rows it held before; one whose
        first building has not ended is rejected. `partial=True` uses all rows that exist. `verify=False` skips
        checking the files' hashes when they are first read.
        """
        place = Path(folder)
        manifest = read_manifest(place)
        if manifest.is_unfinished and not manifest.num_finished and not partial:
            raise DataError(
                f"{place} is not finished: it holds {manifest.count} rows, and more were on the way.",
                "Run the same indexing again, which continues where it stopped; or open it with {partial=True}.",
            )

        def open_embedder() -> Embedder:
            if isinstance(model, Embedder):
                return model
            source = manifest.model if model is None else model
            if source is None and not manifest.settings.get("default_model"):
                raise InputError(
                    f"{place} was built with a model object, so its files are unknown.",
                    "Give it: Index.open(folder, model=…).",
                )
            kept = manifest.settings
            return Embedder(
                source, device=device, dtype=dtype, pooling=kept.get("pooling"), normalize=kept.get("normalize"),
                truncate_dim=kept.get("truncate_dim"), max_length=kept.get("max_length"),
            )  # fmt: skip

        index = cls(place, manifest, open_embedder=open_embedder, partial=partial, verify=verify)
        if model is not None:
            _ = index.embedder
        return index

    def __len__(self) -> int:
        return self.manifest.count if self._partial else self.manifest.num_finished

    def __repr__(self) -> str:
        return f"Index({str(self.folder)!r}, {len(self)} texts, dimension={self.manifest.dimension})"

    @cached_property
    def embedder(self) -> Embedder:
        """The model, opened when it is first needed and checked to be the one the index was built with."""
        embedder = self._open_embedder()
        _check_same_model(embedder, self.manifest, self.folder)
        return embedder

    # -- asking --------------------------------------------------------------------------------------------------

    @overload
    def search(self, query: str, k: int = ...) -> list[Hit]: ...

    @overload
    def search(self, query: list[str] | tuple[str, ...], k: int = ...) -> list[list[Hit]]: ...

    @overload
    def search(self, query: NDArray[np.floating], k: int = ...) -> list[Hit] | list[list[Hit]]: ...

    def search(self, query: str | Sequence[str] | NDArray[np.floating], k: int = 5) -> list[Hit] | list[list[Hit]]:
        """The k best hits, best first, of a query; a list of them for each of several. Queries may be vectors too."""
        whole_number("k", k)
        vectors, single = self._query_vectors(query)
        longest = 1.01 if self.manifest.function == "cosine" else None  # unit vectors, also after rounding to float16
        found = top_k(self._vectors, vectors, min(k, max(len(self), 1)), longest=longest)
        answers = [self._hits(one) for one in found]
        return answers[0] if single else answers

    def _query_vectors(self, query: str | Sequence[str] | NDArray[np.floating]) -> tuple[NDArray[np.float32], bool]:
        settings = self.manifest.settings
        match query:
            case np.ndarray() if query.dtype.kind == "f":
                vectors, single = np.atleast_2d(query).astype(np.float32), query.ndim == 1
            case None | int() | float():
                raise InputError(f"The query is {described(query)}.", "Give a text, a list of texts, or a vector.")
            case _:
                single = isinstance(query, str)
                texts = [str(query)] if single else listed(query, "queries")
                vectors = self.embedder.embed(texts, prompt_name=settings["query_prompt_name"], long=settings["long"])
        if vectors.shape[1] != self.manifest.dimension or not np.isfinite(vectors).all():
            raise InputError(f"A query for this index is {self.manifest.dimension} finite numbers, or a text.")
        return (unit(vectors) if self.manifest.function == "cosine" else vectors), single

    def _part(self, number: int) -> OpenPart:
        part = self.manifest.parts[number]
        if part.name not in self._open:
            self._open[part.name] = OpenPart(self.folder, part, dimension=self.manifest.dimension, verify=self._verify)
        return self._open[part.name]

    def _vectors(self) -> Iterator[tuple[int, Tensor]]:
        first = 0
        for number, part in enumerate(self.manifest.parts):
            if first >= len(self):
                return
            opened = self._part(number)
            yield first, opened.vectors[: len(self) - first]
            opened.release()
            first += part.count

    def _hits(self, found: Sequence[tuple[int, float]]) -> list[Hit]:
        starts = [0]
        for part in self.manifest.parts:
            starts.append(starts[-1] + part.count)
        hits = []
        for position, score in found:
            number = bisect_right(starts, position) - 1
            (line,) = self._part(number).lines([position - starts[number]])
            hits.append(Hit(str(line["id"]), score, str(line["text"]), position))
        return hits

    # -- adding --------------------------------------------------------------------------------------------------

    def add(
        self,
        rows: object,
        *,
        text_column: str | None = None,
        id_column: str | None = None,
        vector_column: str | None = None,
        skip_bad: bool = False,
        progress: bool | None = None,
        chunk_rows: int = CHUNK_ROWS,
    ) -> int:
        """Add rows (whatever `as_rows` takes) at the end; returns how many. After a kill, call it again."""
        with writing(self.folder):
            self.manifest = read_manifest(self.folder)
            begin = self.manifest.num_finished
            begin_hash = self.manifest.begun_hash if self.manifest.is_unfinished else self.manifest.rows_hash
            self._extend(rows, begin, begin_hash, text_column, id_column, vector_column, skip_bad, progress, chunk_rows)
            return len(self) - begin

    def _extend(
        self,
        rows: object,
        begin: int,
        begin_hash: str,
        text_column: str | None,
        id_column: str | None,
        vector_column: str | None,
        skip_bad: bool,
        progress: bool | None,
        chunk_rows: int,
    ) -> None:
        """Rows number `begin` and on; those that the index holds already are skipped once they prove the same."""
        whole_number("chunk_rows", chunk_rows)
        remove_strays(self.folder, self.manifest)
        held = self.manifest
        source = IndexRows(
            as_rows(rows, skip_bad=skip_bad),
            text_column=text_column,
            id_column=id_column,
            usual=(held.text_column, held.id_column),
            first_number=begin,
            vector_column=vector_column,
            dimension=held.dimension,
        )
        lines = iter(source)
        self._pass_over(lines, begin, begin_hash)
        if held.count == 0:
            self.manifest = replace(held, text_column=source.text_column, id_column=source.id_column)
        if not self.manifest.is_unfinished:
            self._commit_manifest(replace(self.manifest, begun_at=held.count, begun_hash=held.rows_hash))
        waiting: deque[bytes] = deque()

        def texts() -> Iterator[str]:
            for text, line in lines:
                waiting.append(line)
                yield text

        stream = self._embedded(texts()) if vector_column is None else self._given(texts(), source)
        total = len(rows) - (held.count - begin) if isinstance(rows, Sequence) else None
        vectors: list[NDArray[np.float32]] = []
        for vector in with_bar(stream, "indexing", total, progress):
            vectors.append(vector)
            if len(vectors) == chunk_rows:
                self._commit(vectors, [waiting.popleft() for _ in vectors])
                vectors = []
        if vectors:
            self._commit(vectors, [waiting.popleft() for _ in vectors])
        self._commit_manifest(replace(self.manifest, begun_at=None, begun_hash=""))

    def _embedded(self, texts: Iterator[str]) -> Iterator[NDArray[np.float32]]:
        settings = self.manifest.settings
        return self.embedder.embed(texts, prompt_name=settings["prompt_name"], long=settings["long"], progress=False)

    def _given(self, texts: Iterator[str], rows: IndexRows) -> Iterator[NDArray[np.float32]]:
        """The vectors that the rows bring. The first is compared with the model's own, so that no other's come in."""
        for number, text in enumerate(texts):
            if not number:
                likeness = float(score_pairs(rows.vector[None], [next(self._embedded(iter([text])))])[0])
                if likeness < _SAME_MODEL:
                    raise DataError(
                        f"The vector given for {text[:40]!r} is not the one of this model (cosine {likeness:.3f}).",
                        "Name the {model=} that the vectors come from; or leave out {vector_column=} to embed again.",
                    )
            yield rows.vector

    def _commit(self, vectors: Sequence[NDArray[np.float32]], lines: Sequence[bytes]) -> None:
        array = np.stack(vectors)
        if self.manifest.function == "cosine":
            array = unit(array)
        rows_hash = self.manifest.rows_hash
        for line in lines:
            rows_hash = linked(rows_hash, line)
        self.manifest = commit(self.folder, self.manifest, torch.from_numpy(array), lines, rows_hash)
        kept = {part.name for part in self.manifest.parts}
        self._open = {name: part for name, part in self._open.items() if name in kept}

    def _commit_manifest(self, manifest: Manifest) -> None:
        write_manifest(self.folder, manifest)
        self.manifest = manifest

    def _pass_over(self, lines: Iterator[tuple[str, bytes]], begin: int, rows_hash: str) -> None:
        held = self.manifest.count - begin
        for number in range(held):
            _, line = next(lines, ("", None))
            if line is None:
                raise DataError(
                    f"{self.folder} holds {held} rows already, and only {number} were given.",
                    "To build another index use another folder; to add rows use Index.open(folder).add(rows), "
                    "or `bertie index --add`.",
                )
            rows_hash = linked(rows_hash, line)
        if held and rows_hash != self.manifest.rows_hash:
            raise DataError(
                f"{self.folder} holds {held} rows, and they are not the first {held} of those given.",
                "Give the rows that this addition was begun with; until it ends, searching does without them."
                if begin
                else "Give the rows it was begun with, or another folder; Index.open(folder).add(rows), "
                "or `bertie index --add`, adds others.",
            )


def build_index(
    rows: object,
    folder: str | os.PathLike[str],
    *,
    model: ModelLike | Embedder | None = None,
    text_column: str | None = None,
    id_column: str | None = None,
    vector_column: str | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | str | None = None,
    pooling: str | Sequence[str] | None = None,
    normalize: bool | None = None,
    truncate_dim: int | None = None,
    max_length: int | None = None,
    prompt_name: str | None = None,
    query_prompt_name: str | None = None,
    long: str = "truncate",
    function: str | None = None,
    store: str = "float32",
    skip_bad: bool = False,
    progress: bool | None = None,
    chunk_rows: int = CHUNK_ROWS,
) -> Index:
    """Embed rows (a list of texts or dicts, a table, `read_rows(path)`, a path object) into an index in `folder`.

    If the folder holds an index of these rows, or of the first of them, it is completed.

    - `rows`: the texts; `text_column` and `id_column` say which columns to use, if their names do not tell.
    - `vector_column`: a column of vectors that this model made before, as in the files of a bulk job; none is computed.
    - `model`, `device`, `dtype`, `pooling`, `normalize`, `truncate_dim`, `max_length`: as in `Embedder`.
    - `prompt_name`, `query_prompt_name`: the model's prompts for documents and for queries; by default its own.
    - `long`: what happens to texts that are too long, as in `embed`.
    - `function`: how vectors are compared; by default as the model was trained.
    - `store`: "float32", or "float16", which takes half the space.
    - `skip_bad`: skip rows that cannot be read instead of stopping.
    - `progress`: True shows a progress bar, False hides it.
    - `chunk_rows`: how many rows are saved at a time; an interrupted build continues after the last of them.
    """
    one_of("store", store, STORED)
    embedder = as_embedder(
        model,
        device=device,
        dtype=dtype,
        pooling=pooling,
        normalize=normalize,
        truncate_dim=truncate_dim,
        max_length=max_length,
    )
    function = function or embedder.similarity_fn_name
    if function not in ("cosine", "dot"):
        raise InputError(f"An index cannot rank by {function!r}.", "Use {function=cosine} or 'dot'.")
    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{place} cannot be made a folder: {error.strerror}.", "Use another place.") from None
    settings: IndexSettings = {
        "pooling": embedder.given.get("pooling"),
        "normalize": embedder.given.get("normalize"),
        "truncate_dim": embedder.given.get("truncate_dim"),
        "max_length": embedder.given.get("max_length"),
        "default_model": embedder.model is None,
        "prompt_name": prompt_name or embedder.document_prompt_name,
        "query_prompt_name": query_prompt_name or "query",
        "long": long,
    }
    with writing(place):
        manifest = read_manifest(place) if (place / MANIFEST).is_file() else None
        if manifest is not None and manifest.count:
            _check_same_settings(manifest, {"function": function, "store": store, **settings}, place)
            _check_same_model(embedder, manifest, place)
        else:
            if manifest is None:
                _check_empty(place)
            manifest = Manifest(
                model=_model_name(embedder.model),
                dimension=embedder.dimension,
                function=function,
                dtype=store,
                settings=settings,
                probe=_probe(embedder, settings),
                begun_at=0,
            )
            write_manifest(place, manifest)
        index = Index(place, manifest, open_embedder=lambda: embedder)
        index._extend(rows, 0, "", text_column, id_column, vector_column, skip_bad, progress, chunk_rows)
        return index


def _model_name(model: ModelLike | None) -> str | None:
    if model is None or not is_named(model):
        return None
    name = os.fspath(model)
    return os.path.abspath(name) if os.path.exists(name) else name


def _probe(embedder: Embedder, settings: IndexSettings) -> list[list[float]]:
    vectors = embedder.embed(list(_PROBES), prompt_name=settings["prompt_name"], long=settings["long"], progress=False)
    return [[round(float(number), 6) for number in vector] for vector in vectors]


def _check_same_settings(manifest: Manifest, wanted: Mapping[str, object], folder: Path) -> None:
    found = {"function": manifest.function, "store": manifest.dtype, **manifest.settings}
    changed = [name for name, value in wanted.items() if found.get(name) != value and name != "default_model"]
    if changed:
        told = ", ".join(f"{name} was {found.get(name)!r}, is {wanted[name]!r}" for name in changed)
        raise DataError(
            f"{folder} holds an index that was begun with other settings: {told}.",
            "Use the same settings, or another folder.",
        )


def _check_same_model(embedder: Embedder, manifest: Manifest, folder: Path) -> None:
    known = np.asarray(manifest.probe, dtype=np.float32)
    likeness = -1.0
    if embedder.dimension == manifest.dimension == known.shape[-1]:
        try:
            likeness = float(score_pairs(known, _probe(embedder, manifest.settings)).min())
        except BertieError:  # it has not even the index's prompts
            likeness = -1.0
    if likeness < _SAME_MODEL:
        detail = (
            f"its vectors have {embedder.dimension} numbers, the index's {manifest.dimension}"
            if embedder.dimension != manifest.dimension
            else f"the same texts get other vectors (cosine {likeness:.3f})"
        )
        raise DataError(
            f"{folder} was built with another model ({manifest.model or 'the default, or an object'}): {detail}.",
            "Open it with the model it was built with, or build it again.",
        )


def _check_empty(folder: Path) -> None:
    if any(not path.name.startswith(".") for path in folder.iterdir()):
        raise DataError(
            f"{folder} is not empty and holds no index.", "Name a new or empty folder, so that nothing is mixed up."
        )
