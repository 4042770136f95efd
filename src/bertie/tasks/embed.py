"""Texts to vectors.

    >>> import bertie
    >>> bertie.embed("A text.").shape          # doctest: +SKIP
    (384,)

A checkpoint's own pooling, dense layers, normalising, prompts and length (sentence_folder.py) are the default, so the
vectors are those of sentence-transformers; a plain BERT gives the mean of its tokens. `Embedder` keeps a model ready
and has sentence-transformers' methods (running/sentence_transformers.py); `embed` is the function for one line.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import ClassVar, Literal, TypedDict, Unpack, overload

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike
from torch import Tensor

from bertie.arguments import is_whole
from bertie.defaults import default_embedding_model
from bertie.errors import InputError
from bertie.model import BertModel
from bertie.running.open import ModelLike, OpenModel, is_named, open_model
from bertie.running.pooling import Pieces, divide, join, read_pooling
from bertie.running.precision import NEED_RANGES, Numbers, check_precision, quantize
from bertie.running.rows import Cuts, Cutting, cut_ids
from bertie.running.sentence_folder import SentenceSettings, read_sentence_settings
from bertie.running.sentence_transformers import SentenceTransformerMethods
from bertie.running.stream import Vectors, VectorStream
from bertie.running.task import Streamed, expected, wants_bar, with_bar
from bertie.tasks.similarity import score_matrix, score_pairs
from bertie.text import BertTokenizer

logger = logging.getLogger("bertie.tasks")


class _ModelSettings(TypedDict, total=False):
    tokenizer: BertTokenizer | None
    device: torch.device | str | None
    dtype: torch.dtype | str | None
    pooling: str | Sequence[str] | None
    normalize: bool | None
    truncate_dim: int | None


class EmbedderSettings(_ModelSettings, total=False):
    max_length: int | None
    engine: str | None


class CallSettings(TypedDict, total=False):
    prompt_name: str | None
    prompt: str | None
    ranges: ArrayLike | None
    long: str
    progress: bool | None


class EmbedSettings(CallSettings, _ModelSettings, total=False):
    model: ModelLike | Embedder | None


class Embedder(SentenceTransformerMethods):
    """A model that is loaded and ready to embed. It has the methods of a `SentenceTransformer` too.

    - `model`: a folder, a hub name, or a model object; by default all-MiniLM-L6-v2.
    - `tokenizer`: replaces the one beside the model's files; a model object needs one.
    - `device`: "cpu", "cuda", "cuda:1" …; by default a GPU if PyTorch finds one.
    - `dtype`: "float32" (default), "bfloat16", "float16", "int8" (CPU) or "fp8" (GPU).
    - `pooling`: how token vectors become one vector: "mean", "cls", "max" …, or several of them, joined. By default,
      this and the next three are the checkpoint's own.
    - `normalize`: True makes vectors of unit length, after `truncate_dim` has cut them; False leaves out the
      checkpoint's own normalization.
    - `truncate_dim`: how many numbers of a vector to keep.
    - `max_length`: how many tokens of a text are read, special tokens included.
    - `engine`: "reference" runs the plain model instead of the faster engine ("auto").
    """

    name: ClassVar[str] = "embed"

    def __init__(
        self,
        model: ModelLike | None = None,
        *,
        tokenizer: BertTokenizer | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | str | None = None,
        pooling: str | Sequence[str] | None = None,
        normalize: bool | None = None,
        truncate_dim: int | None = None,
        max_length: int | None = None,
        engine: str | None = "auto",
    ) -> None:
        self.model = model
        self.given: EmbedderSettings = {
            "tokenizer": tokenizer,
            "dtype": dtype,
            "pooling": pooling,
            "normalize": normalize,
            "truncate_dim": truncate_dim,
            "max_length": max_length,
            "engine": engine,
        }
        self.loaded = open_model(
            model,
            BertModel,
            task="embed",
            tokenizer=tokenizer,
            device=device,
            dtype=dtype,
            engine=engine or "auto",
            default=default_embedding_model,
            add_pooling_layer=False,
        )
        hidden_size = self.loaded.config.hidden_size
        folder = self.loaded.folder
        self.settings = SentenceSettings() if folder is None else read_sentence_settings(folder, hidden_size)
        self._stages = [
            stage.to(self.device) for stage in self.settings.stages if not (stage.normalizes and normalize is False)
        ]
        self._only_normalizes = all(stage.normalizes for stage in self._stages)
        self.pooling = read_pooling(pooling, self.settings.pooling)
        self.normalize = normalize
        self.max_length = _checked_length(max_length, self.settings.max_length, self.loaded)
        if self.settings.dense_inputs not in (None, hidden_size * len(self.pooling.modes)):
            raise InputError(
                f"{{pooling}} gives {hidden_size * len(self.pooling.modes)} numbers; the checkpoint's dense layer "
                f"takes {self.settings.dense_inputs}.",
                "Leave out {pooling=} to use the checkpoint's own.",
                pooling=list(self.pooling.modes),
            )
        self._full = self.settings.dimension(hidden_size, self.pooling)
        own = self.settings.truncate_dim
        self.truncate_dim = self.checked_dim(truncate_dim) or (None if own is None else min(own, self._full))
        # sentence-transformers knows these two names in every model; the folder's prompts come on top.
        self.prompts: dict[str, str] = {"query": "", "document": "", **self.settings.prompts}

    @property
    def dimension(self) -> int:
        """The length of a float32 vector."""
        return self.truncate_dim or self._full

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.loaded.device

    def __repr__(self) -> str:
        return f"Embedder({self.loaded.name!r}, dimension={self.dimension}, pooling={'+'.join(self.pooling.modes)})"

    # -- our own way ---------------------------------------------------------------------------------------------

    @overload
    def embed(
        self, texts: Sequence[str], *, precision: Literal["float32"] = ..., **settings: Unpack[CallSettings]
    ) -> Vectors: ...

    @overload
    def embed(
        self, texts: Streamed[str], *, precision: Literal["float32"] = ..., **settings: Unpack[CallSettings]
    ) -> Iterator[Vectors]: ...

    @overload
    def embed(self, texts: Sequence[str], *, precision: str, **settings: Unpack[CallSettings]) -> Numbers: ...

    @overload
    def embed(self, texts: Streamed[str], *, precision: str, **settings: Unpack[CallSettings]) -> Iterator[Numbers]: ...

    def embed(
        self,
        texts: Sequence[str] | Streamed[str],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        precision: str = "float32",
        ranges: ArrayLike | None = None,
        long: str = "truncate",
        progress: bool | None = None,
    ) -> Numbers | Iterator[Numbers]:
        """A text's vector `[d]`; a list's `[n, d]`; for an iterator (or a file) an iterator of vectors in its order.

        - `texts`: one text, a list, or an iterator.
        - `prompt_name`, `prompt`: a prompt of the model by its name, or the prompt itself, put before every text.
        - `precision`: "float32", "int8", "uint8", "binary" or "ubinary" (eight numbers in a byte).
        - `ranges`: `[2, d]`, the lowest and highest values that int8 and uint8 are scaled to; a list's own by default.
        - `long`: what happens to a text that is longer than the model. "truncate" reads its beginning and warns,
          "windows" reads all of it in overlapping windows, every token counted once, and "error" rejects it.
        - `progress`: True shows a progress bar, False hides it; by default it appears when a call takes long.
        """
        check_precision(precision)
        vectors = self.vector_stream(self.cutting(prompt=prompt, prompt_name=prompt_name, long=long))
        shape, items = self.shaped(texts)
        if shape != "list" and precision in NEED_RANGES and ranges is None:
            raise InputError(
                f"{'One text' if shape == 'one' else 'A stream of texts'} cannot be made {precision} by itself: its "
                "steps lie between values of many vectors.",
                "Give many texts at once, or use another {precision=}. Or give {ranges=} (calibration_ranges).",
            )
        if shape == "stream":
            show = wants_bar(progress)
            total = expected(texts) if show else None
            return with_bar(_quantized(vectors, items, precision, ranges), "embedding", total, show)
        if shape == "list":
            return quantize(self.all_vectors(list(items), vectors, progress), precision, ranges=ranges)
        with vectors.cutting.cuts.told():
            (vector,) = with_bar(map(vectors.vector, items), "embedding", 1, progress)
        return vector if precision == "float32" else quantize(vector[None], precision, ranges=ranges)[0]

    __call__ = embed  # type: ignore[assignment]  # of a list it gives an array, where other tasks give a list

    def stream(self, items: Iterable[str]) -> Iterator[Vectors]:
        return _quantized(self.vector_stream(self.cutting()), items, "float32", None)

    def each_checked(self, items: Iterable[object]) -> Iterator[str]:
        # There may be millions of texts, so the place of one is written out only if it is wrong.
        for number, item in enumerate(items):
            yield item if isinstance(item, str) else self.checked(item, f"Text {number}")

    def is_cut(self, text: str, *, prompt_name: str | None = None) -> bool:
        """Whether the text, with its prompt, has more tokens than the model reads at once."""
        prepared = self.cutting(prompt_name=prompt_name).prepared([text])
        return bool(cut_ids(self.loaded.tokenizer, prepared, self.max_length)[2][0])

    def all_vectors(self, texts: list[str], vectors: VectorStream, progress: bool | None) -> Vectors:
        """`[n, d]`."""
        array = np.empty((len(texts), self.dimension), dtype=np.float32)

        def filled() -> Iterator[int]:
            nonlocal array
            done = 0
            for block in vectors.vectors(texts):
                if block.shape[1] != array.shape[1]:  # cut shorter, in this call
                    array = array[:, : block.shape[1]].copy()
                array[done : done + len(block)] = block
                yield from range(len(block))  # one step of the bar to a text
                done += len(block)

        with vectors.cutting.cuts.told():
            deque(with_bar(filled(), "embedding", len(texts), progress), maxlen=0)
        return array

    # -- the three steps, for callers that make their own batches (the server): texts → rows → sums → vectors ----------

    def cutting(
        self,
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        long: str = "truncate",
        max_length: int | None = None,
    ) -> Cutting:
        """How texts become rows: `cutting.pieces(texts)`. It may be kept; give `pieces` a `Cuts` of each call then."""
        limit = self.max_length if max_length is None else max_length
        return Cutting(
            self.loaded.tokenizer,
            max_length=limit,
            prompt=self._prompt(prompt, prompt_name),
            count_prompt=self.pooling.include_prompt,
            lower=self.settings.do_lower_case,
            long=long,
            cuts=Cuts(long, limit),
        )

    @torch.inference_mode()
    def pooled(self, pieces: Pieces) -> Tensor:
        """`[rows, modes, hidden]` on the model's device: the model run over one batch, each row's tokens added up."""
        return self.loaded.pooled(pieces, self.pooling.modes)

    @torch.inference_mode()
    def finished(self, pooled: Tensor, pieces: Pieces, *, raw: bool = False, truncate_dim: int | None = None) -> Tensor:
        """`[texts, dimension]` from what `pooled` gave for all rows of these texts, on any device.

        `raw` leaves out the checkpoint's own normalising; `truncate_dim` cuts shorter than the embedder does.
        """
        modes = self.pooling.modes
        vectors = divide(pooled if pieces.whole else join(pooled, pieces, modes), pieces, modes)
        for stage in self._stages:
            if not (raw and stage.normalizes):
                vectors = stage(vectors)
        vectors = vectors[:, : truncate_dim or self.truncate_dim]
        return F.normalize(vectors, p=2, dim=1) if self.normalize else vectors

    def vectors(self, pieces: Pieces, *, raw: bool = False, truncate_dim: int | None = None) -> Callable[[], Tensor]:
        """`[texts, dimension]` of texts of one row each, on the CPU when it is called: `pooled` and `finished` in one.

        Where nothing but unit length comes after pooling, the engine does it all.
        """
        if len(self.pooling.modes) == 1 and not (truncate_dim or self.truncate_dim) and self._only_normalizes:
            unit = bool(self.normalize) or (bool(self._stages) and not raw)
            found = self.loaded.vectors(pieces, self.pooling.modes[0], unit=unit)
            if found is not None:
                return found
        return self.loaded.read_later(self.finished(self.pooled(pieces), pieces, raw=raw, truncate_dim=truncate_dim))

    def _prompt(self, prompt: str | None, prompt_name: str | None) -> str:
        if prompt is not None:
            if not isinstance(prompt, str):
                raise InputError(f"prompt is a {type(prompt).__name__}, not a string.")
            if prompt_name is not None:
                logger.warning("Both prompt and prompt_name were given; prompt_name=%r is not used.", prompt_name)
            return prompt
        name = self.settings.default_prompt_name if prompt_name is None else prompt_name
        if name is None:
            return ""
        if name not in self.prompts:
            raise InputError(
                f"There is no prompt called {name!r}.",
                f"The model has: {', '.join(self.prompts)}; or give the text itself with {{prompt=}}.",
            )
        return self.prompts[name]

    def vector_stream(
        self, cutting: Cutting, *, budget: int | None = None, truncate_dim: int | None = None
    ) -> VectorStream:
        finish = partial(self.finished, truncate_dim=truncate_dim)
        start = partial(self.vectors, truncate_dim=truncate_dim)
        return VectorStream(self.loaded, cutting, self.pooled, finish, start, budget or self.loaded.budget)

    def checked_dim(self, truncate_dim: int | None) -> int | None:
        if truncate_dim is None:
            return None
        if not is_whole(truncate_dim, 1, self._full):
            raise InputError(
                f"{{truncate_dim}}; this model's vectors have {self._full} numbers.",
                f"Use a whole number from 1 to {self._full}.",
                truncate_dim=truncate_dim,
            )
        return truncate_dim

    def similarity(self, embeddings1: ArrayLike, embeddings2: ArrayLike) -> Tensor:
        """Scores `[n, m]` of two lists of vectors, by the function the model was trained for."""
        return torch.from_numpy(score_matrix(embeddings1, embeddings2, self.settings.similarity))

    def similarity_pairwise(self, embeddings1: ArrayLike, embeddings2: ArrayLike) -> Tensor:
        """Scores `[n]` of the first with the first, the second with the second, …"""
        return torch.from_numpy(score_pairs(embeddings1, embeddings2, self.settings.similarity))

    @property
    def similarity_fn_name(self) -> str:
        """The function that the model's vectors are compared with: "cosine", "dot" …"""
        return self.settings.similarity

    def on(self, device: torch.device | str) -> Embedder:
        """The same embedder elsewhere. A model object moves, as in sentence-transformers; files are opened again."""
        if self.model is not None and not is_named(self.model):
            if self.loaded.is_fast:
                raise InputError(
                    f"The model was compiled for {self.device}; it cannot move to {device}.",
                    "Compile it for that device, or name its folder instead.",
                )
            self.loaded.model.to(device)
            self._stages = [stage.to(self.device) for stage in self._stages]
            return self
        given: EmbedderSettings = {**self.given, "device": device}
        return Embedder(self.model, **given)


@overload
def embed(
    texts: Sequence[str], *, precision: Literal["float32"] = ..., **settings: Unpack[EmbedSettings]
) -> Vectors: ...


@overload
def embed(
    texts: Streamed[str], *, precision: Literal["float32"] = ..., **settings: Unpack[EmbedSettings]
) -> Iterator[Vectors]: ...


@overload
def embed(texts: Sequence[str], *, precision: str, **settings: Unpack[EmbedSettings]) -> Numbers: ...


@overload
def embed(texts: Streamed[str], *, precision: str, **settings: Unpack[EmbedSettings]) -> Iterator[Numbers]: ...


def embed(
    texts: Sequence[str] | Streamed[str],
    *,
    model: ModelLike | Embedder | None = None,
    tokenizer: BertTokenizer | None = None,
    prompt_name: str | None = None,
    prompt: str | None = None,
    pooling: str | Sequence[str] | None = None,
    normalize: bool | None = None,
    truncate_dim: int | None = None,
    precision: str = "float32",
    ranges: ArrayLike | None = None,
    long: str = "truncate",
    device: torch.device | str | None = None,
    dtype: torch.dtype | str | None = None,
    progress: bool | None = None,
) -> Numbers | Iterator[Numbers]:
    """Vectors of texts: `[d]` of one, `[n, d]` of a list, an iterator of vectors in order of an iterator or a file.

        embed("A text.").shape                               # (384,)
        embed(["A text.", "Another."], normalize=True)       # [2, 384]

    - `texts`: one text, a list, or an iterator.
    - `model`: a folder, a hub name, an `Embedder` or a model object; by default all-MiniLM-L6-v2.
    - `tokenizer`: replaces the one beside the model's files; a model object needs one.
    - `prompt_name`, `prompt`: a prompt of the model by its name, or the prompt itself, put before every text.
    - `pooling`: "mean", "cls", "max" …, or several; by default the checkpoint's own.
    - `normalize`: True makes vectors of unit length; False leaves out the checkpoint's own normalization.
    - `truncate_dim`: how many numbers of a vector to keep; by default all.
    - `precision`: "float32", "int8", "uint8", "binary" or "ubinary".
    - `ranges`: `[2, d]`, the lowest and highest values that int8 and uint8 are scaled to; by default those of the list.
    - `long`: "truncate" reads the beginning of a text that is too long and warns, "windows" reads all of it, "error"
      rejects it.
    - `device`: "cpu", "cuda", "cuda:1" …; by default a GPU if PyTorch finds one.
    - `dtype`: "float32" (default), "bfloat16", "float16", "int8" (CPU) or "fp8" (GPU).
    - `progress`: True shows a progress bar, False hides it; by default it appears when a call takes long.
    """
    embedder = as_embedder(
        model, tokenizer=tokenizer, device=device, dtype=dtype, pooling=pooling, normalize=normalize,
        truncate_dim=truncate_dim,
    )  # fmt: skip
    call: CallSettings = {
        "prompt_name": prompt_name, "prompt": prompt, "ranges": ranges, "long": long, "progress": progress,
    }  # fmt: skip
    return embedder.embed(texts, precision=precision, **call)


def as_embedder(model: ModelLike | Embedder | None, **settings: Unpack[EmbedderSettings]) -> Embedder:
    """The embedder given, or one made of the model given; settings for one that is ready are refused."""
    if not isinstance(model, Embedder):
        return Embedder(model, **settings)
    given = sorted(name for name, value in settings.items() if value is not None)
    if given:
        raise InputError(f"{', '.join(given)} cannot change an Embedder that is ready.", "Give them to Embedder(…).")
    return model


def _quantized(
    vectors: VectorStream, texts: Iterable[str], precision: str, ranges: ArrayLike | None
) -> Iterator[Vectors]:
    with vectors.cutting.cuts.told():
        for block in vectors.vectors(texts, soon=True):
            # Copies: a vector that someone keeps should not keep its whole block.
            yield from (one.copy() for one in quantize(block, precision, ranges=ranges))


def _checked_length(given: int | None, own: int | None, loaded: OpenModel) -> int:
    positions = loaded.positions
    if given is None:
        return min(own, positions) if own is not None else min(loaded.max_length, positions)
    if not is_whole(given, 3, positions):
        raise InputError(
            f"{{max_length}}; this model takes texts of 3 to {positions} tokens, [CLS] and [SEP] included.",
            "Use a smaller one, and {long} to read all of a longer text.",
            max_length=given,
            long="windows",
        )
    return given
