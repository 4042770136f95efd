"""`CpuRunner`: a BertModel's weights laid out for the C++ kernels, and one call per batch.

Sizes are rounded up to 16 with zeros, so any width runs: a padded column of a weight is zero, and so is everything it
makes. Head width is padded per head, which keeps pruned models and odd sizes on the same path.
"""

from __future__ import annotations

import ctypes
import os
import threading
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor

from bertie.engine.calibration import PRODUCTS, Key, Rows, packed, products_of
from bertie.engine.cpu.bfloat16 import exact_inputs, random_rows, unrounded
from bertie.engine.cpu.cores import check_threads, own_quota
from bertie.engine.cpu.library import bfloat16_instructions, give_nodes, load_library
from bertie.engine.runner import AS_IT_IS, Options, Outside, PooledRows, Refused, Runner, embedding_tables
from bertie.errors import CalibrationWarning, InputError
from bertie.model import BertEmbeddings, BertLayer, BertModel
from bertie.model.activations import activation
from bertie.model.inputs import fits_positions, ids_below
from bertie.ops.packing import Packing
from bertie.ops.relative import bias_by_distance

if TYPE_CHECKING:
    from bertie.engine.cpu.calibrate import Int8Report

# How csrc/kernels.h counts activations.
_ACTIVATIONS = {
    "gelu": 0,
    "gelu_python": 0,
    "gelu_new": 1,
    "gelu_fast": 1,
    "gelu_pytorch_tanh": 1,
    "gelu_accurate": 1,
    "relu": 2,
}
_FLOAT, _INT8, _BFLOAT16 = 0, 1, 2  # and kinds of products
# How csrc/model.h counts ways of pooling; what means divide their sums by is the caller's.
_POOLING = {"cls": 0, "max": 1, "mean": 2, "mean_sqrt_len_tokens": 2, "weightedmean": 3, "lasttoken": 4}
_NO_ROW = 2  # bertie_forward's answer to ids that a table does not have
_WIDE = 3  # and to texts with rows wider than the limits, which are in its result all the same
_MOST_LOOKED_UP = 160 << 20  # bytes for the first product's answers, by word
_BASE = 85_000_000  # parameters of BERT-base's layers: 4,096 tokens of it are a second in int8 on two cores
_TIMES = 2.0  # a row this many times as wide as any of the calibration has lost one of its eight bits
# (layer, part) → what each input channel is divided by before it is rounded: present means int8, absent float32.
Smoothing = Mapping[Key, Tensor]


def padded(size: int) -> int:
    return -(-size // 16) * 16


class CpuRunner(Runner):
    """All layers in the model's own dtype, float32 or bfloat16, or in int8 where `smoothing` says so.

    In bfloat16 the numbers that a product multiplies are rounded (bfloat16.py says how); sums, softmax, LayerNorm and
    what is added up from layer to layer are float32.
    """

    def __init__(
        self,
        model: BertModel,
        smoothing: Smoothing | None = None,
        *,
        bfloat16: bool | None = None,
        threads: int | None = None,
    ) -> None:
        self._library = library = self.check(model)
        config = model.config
        self.device = torch.device("cpu")
        self.dtype = torch.bfloat16 if model.dtype == torch.bfloat16 else torch.float32
        self._bfloat16 = self.dtype == torch.bfloat16 if bfloat16 is None else bfloat16
        self.smoothing = dict(smoothing or {})
        self.threads = check_threads(threads)
        # It cuts batches itself: enough for several pieces a thread, and more where a token is soon done.
        size = sum(parameter.numel() for parameter in model.encoder.parameters())
        self.token_budget = max(4096, min(8192, 4096 * _BASE // max(1, size)), 1024 * self._team)
        self.width = config.hidden_size
        self.num_layers = len(model.encoder.layer)
        self.num_int8 = len(self.smoothing)
        self.num_products = sum(map(len, map(products_of, model.encoder.layer)))
        self.report: Int8Report | None = None
        self._calibrated: Tensor | None = None  # [layers, parts]: the widest rows of the calibration
        self._warned, self._lock = False, threading.Lock()
        embeddings = model.embeddings
        norm = embeddings.LayerNorm
        # C reads these three where they are; everything else is copied into another layout.
        self._tables = [table.float().contiguous() for table in embedding_tables(embeddings)]
        self._padding = config.position_padding
        # Held until C has copied them: in bfloat16 these are copies of their own.
        norms = [_plain(x) if embeddings.project is None else torch.zeros(self.width) for x in (norm.weight, norm.bias)]
        head = config.attention_head_size
        self._handle = library.bertie_model_new(
            self.width,
            padded(self.width),
            padded(head),
            self.num_layers,
            head**-0.5,
            config.layer_norm_eps,
            _ACTIVATIONS[str(config.hidden_act)],
            *map(address, self._tables),
            *map(address, norms),
        )
        _check(self._handle is None)
        library.bertie_rows(self._handle, *map(len, self._tables))
        self._projects = embeddings.project is not None
        self._add_projection(embeddings)
        self._add_shared_bias(model, head)
        self._num_inputs: dict[Key, int] = {}  # of each product, padded
        self._moments: dict[Key, Tensor] = {}  # and their mean squares, while bfloat16 products are made ready
        if self._bfloat16:
            self._moments = CpuRunner(model, bfloat16=False, threads=threads).moments(random_rows(config))
        for number, layer in enumerate(model.encoder.layer):
            self._add_layer(number, layer, head)
        self._moments.clear()

    @staticmethod
    def check(model: BertModel) -> ctypes.CDLL:
        """The kernels, or `Refused` for what they do not do."""
        library = load_library()
        if library is None:
            raise Refused(
                "Bertie's CPU kernels were not built when it was installed.",
                "Install it again where a C++ compiler is found (`bertie doctor` shows the result).",
            )
        give_nodes(library)
        config = model.config
        if config.position_embedding_type != "absolute":
            raise Refused(f"The CPU engine has no {config.position_embedding_type} positions; the reference runs them.")
        if config.hidden_act not in _ACTIVATIONS:
            raise Refused(
                f"The CPU engine has no activation {config.hidden_act!r:.60}; the reference runs it.",
                f"It has {', '.join(_ACTIVATIONS)}.",
            )
        if config.embedding_width > config.hidden_size:
            raise Refused(
                f"The CPU engine has no embeddings wider ({config.embedding_width}) than the layers.", AS_IT_IS
            )
        norms = {"embeddings": model.embeddings.LayerNorm}
        for number, layer in enumerate(model.encoder.layer):
            norms[f"encoder.layer.{number}.attention.output"] = layer.attention.output.LayerNorm
            norms[f"encoder.layer.{number}.output"] = layer.output.LayerNorm
            if layer.intermediate.intermediate_act_fn is not activation(config.hidden_act):
                raise Refused(f"Layer {number} has another activation than config.hidden_act, {config.hidden_act!r}.")
        for name, norm in norms.items():
            if norm.eps != config.layer_norm_eps:
                raise Refused(f"{name}.LayerNorm has eps={norm.eps}; config.layer_norm_eps is {config.layer_norm_eps}.")
        return library

    @classmethod
    def of(cls, model: BertModel, options: Options) -> CpuRunner:
        if options.dtype != "int8":
            exact = unrounded(model, options.exact) if options.exact else model
            made = cls(exact, bfloat16=options.dtype == "bfloat16", threads=options.threads)
            made.dtype = model.dtype  # of the states
            return made
        from bertie.engine.cpu.calibrate import int8_runner

        assert options.calibration is not None
        return int8_runner(
            model, options.calibration, options.unusual, accuracy=options.accuracy, threads=options.threads
        )

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._library.bertie_model_free(self._handle)

    def __reduce__(self) -> NoReturn:
        # A copy would hold, and free, the same memory.
        raise InputError(
            "A runner of the CPU engine cannot be copied or pickled: its memory is not Python's.",
            "Copy or pickle the compiled model instead. The copy makes a runner of its own when it is first used.",
        )

    def _add_projection(self, embeddings: BertEmbeddings) -> None:
        """Embeddings that are narrower than the layers have a norm of that width and a product after it."""
        if embeddings.project is None:
            return
        norm = embeddings.LayerNorm
        weight, bias = _rectangle(embeddings.project.weight, embeddings.project.bias)
        arrays = [weight, bias, _plain(norm.weight), _plain(norm.bias)]
        rows, columns = weight.shape
        width = len(norm.weight)
        _check(self._library.bertie_projection(self._handle, width, columns, rows, *map(address, arrays), self._team))

    def _add_shared_bias(self, model: BertModel, head: int) -> None:
        """A number for a head and a distance, in all layers the same."""
        table = model.encoder.relative_attention_bias
        if table is None:
            return
        longest = model.config.max_input_length
        by_distance = _plain(bias_by_distance(table, longest - 1) * head**0.5)  # added before scores are scaled
        _check(self._library.bertie_bias(self._handle, len(by_distance), longest, address(by_distance)))

    def _add_layer(self, number: int, layer: BertLayer, head: int) -> None:
        norms = [layer.attention.output.LayerNorm, layer.output.LayerNorm]
        arrays = [_plain(t) for norm in norms for t in (norm.weight, norm.bias)]
        heads = torch.tensor(layer.attention.self.heads, dtype=torch.int32)
        _check(self._library.bertie_layer(self._handle, number, len(heads), *map(address, [heads, *arrays])))
        for part, weight, bias in layer_weights(layer, head):
            self._set(number, part, weight, bias, self.smoothing.get((number, part)), head)

    def set_product(self, model: BertModel, key: Key, smooth: Tensor | None) -> None:
        """Make one product int8 (with this smoothing) or float32 (None), after the fact."""
        number, wanted = key
        head = model.config.attention_head_size
        for part, weight, bias in layer_weights(model.encoder.layer[number], head):
            if part == wanted:
                self._set(number, part, weight, bias, smooth, head)

    def _set(self, number: int, part: str, weight: Tensor, bias: Tensor, smooth: Tensor | None, head: int) -> None:
        kind = _INT8 if smooth is not None else _BFLOAT16 if self._bfloat16 else _FLOAT
        which, (rows, columns) = PRODUCTS.index(part), weight.shape
        self._num_inputs[number, part] = columns
        if (number, part) == (0, "qkv") and kind != _FLOAT and self._looks_up(rows):
            arrays = map(address, (weight, bias))
            _check(self._library.bertie_lookup(self._handle, kind, columns, rows, *arrays, self._team))
            return
        inverse = None
        if smooth is not None:
            inverse = 1 / smooth
            if part == "out":  # its input lies in padded heads
                inverse = F.pad(inverse.view(-1, head), (0, padded(head) - head), value=1.0).flatten()
            inverse = F.pad(inverse, (0, weight.shape[1] - len(inverse)), value=1.0).contiguous()
        moments, exact = self._moments.get((number, part)), None
        if moments is not None:
            exact = exact_inputs(part, weight, moments)
            moments = moments if exact is None else moments.index_fill(0, exact.long(), 0)
        arrays = map(address, (weight, bias, inverse, moments, exact))
        num_exact = 0 if exact is None else len(exact)
        status = self._library.bertie_linear(
            self._handle, number, which, kind, columns, rows, *arrays, num_exact, self._team
        )
        _check(status)

    def _looks_up(self, rows: int) -> bool:
        """Whether the first product, of this many rows, is looked up by word (csrc/lookup.h)."""
        return 0 < 2 * rows * len(self._tables[0]) <= _MOST_LOOKED_UP and not self._projects

    def moments(self, rows: Rows) -> dict[Key, Tensor]:
        """The mean square of every input of every product over these rows, in float32; `[K]`, padded as weights are."""
        assert not self._bfloat16
        ids, packing = packed(rows)
        positions = None if self._padding is None else packing.positions(ids, self._padding).long().contiguous()
        sums = torch.zeros(self.num_layers, len(PRODUCTS), max(self._num_inputs.values(), default=1))
        status = self._library.bertie_squares(
            self._handle,
            address(ids),
            address(positions),
            address(packing.cu_seqlens),
            packing.num_texts,
            address(sums),
            sums.shape[-1],
        )
        self._checked(status, ids, None, positions, packing)
        means = sums / len(ids)
        return {
            (number, part): means[number, PRODUCTS.index(part), :count].contiguous()
            for (number, part), count in self._num_inputs.items()
        }

    def __call__(
        self, ids: Tensor, type_ids: Tensor | None, positions: Tensor | None, packing: Packing, *, all_states: bool
    ) -> list[Tensor]:
        tokens = ids.shape[0]
        ids = ids.long().contiguous()
        if positions is None and self._padding is not None:
            positions = packing.positions(ids, self._padding)
        type_ids, positions = (None if x is None else x.long().contiguous() for x in (type_ids, positions))
        out = torch.empty(tokens, self.width, dtype=self.dtype)
        states = torch.empty(self.num_layers + 1, tokens, self.width, dtype=self.dtype) if all_states else None
        status = self._library.bertie_forward(
            self._handle,
            address(ids),
            address(type_ids),
            address(positions),
            address(packing.cu_seqlens),
            packing.num_texts,
            address(out),
            address(states),
            self.dtype == torch.bfloat16,
            self._team,
        )
        self._checked(status, ids, type_ids, positions, packing)
        return [out] if states is None else list(states)

    def _checked(
        self, status: int, ids: Tensor, type_ids: Tensor | None, positions: Tensor | None, packing: Packing
    ) -> None:
        if status == _NO_ROW:
            self._refuse(ids, type_ids, positions, packing)
        if status == _WIDE:
            self._warn()
        else:
            _check(status)

    def last_state(self, ids: Tensor, lengths: Sequence[int]) -> Tensor:
        return self(ids, None, None, self._packing(lengths), all_states=False)[-1]

    def pooled(self, ids: Tensor, rows: PooledRows, modes: Sequence[str]) -> Tensor:
        packing = self._packing(rows.lengths.tolist())
        ids = ids.long().contiguous()
        positions = None if self._padding is None else packing.positions(ids, self._padding).long().contiguous()
        vectors = torch.empty(packing.num_texts, len(modes), self.width)
        columns = [column.contiguous() for column in (rows.starts, rows.counts, rows.positions)]
        chosen = torch.tensor([_POOLING[mode] for mode in modes], dtype=torch.int32)
        status = self._library.bertie_pooled(
            self._handle,
            address(ids),
            address(positions),
            address(packing.cu_seqlens),
            packing.num_texts,
            *map(address, columns),
            address(chosen),
            len(modes),
            address(vectors),
            self._team,
        )
        self._checked(status, ids, None, positions, packing)
        return vectors

    def _packing(self, lengths: Sequence[int]) -> Packing:
        longest = len(self._tables[1]) - (0 if self._padding is None else self._padding + 1)
        if max(lengths) > longest:  # said of the text; the library would speak of a position
            fits_positions(max(lengths), 0, longest)
        return Packing(tuple(lengths))

    def _refuse(self, ids: Tensor, type_ids: Tensor | None, positions: Tensor | None, packing: Packing) -> None:
        """Say what the tables do not have: they may be others than those of the model that checked its input."""
        given = (ids, packing.position_ids if positions is None else positions, type_ids)
        names = ("input_ids", "position_ids", "token_type_ids")
        limits = ("vocab_size", "max_position_embeddings", "type_vocab_size")
        for name, values, table, limit in zip(names, given, self._tables, limits, strict=True):
            if values is not None:
                ids_below(name, values, len(table), limit)

    @property
    def widest(self) -> Tensor:
        """How wide the widest row was that each product rounded, `[layers, parts]`: 0 where nothing was rounded."""
        return self._outside()[1]

    @property
    def calibrated(self) -> Tensor:
        """What was given to `set_calibrated`; zeros before."""
        return torch.zeros(self.num_layers, len(PRODUCTS)) if self._calibrated is None else self._calibrated

    def set_calibrated(self, widest: Tensor) -> None:
        """What `widest` was after the texts of the calibration: texts far beyond that are counted, and said once."""
        self._calibrated = widest = widest.float().reshape(self.num_layers, len(PRODUCTS)).contiguous()
        limits = torch.where(widest > 0, widest * _TIMES, torch.inf)
        self._library.bertie_limits(self._handle, address(limits))

    @property
    def outside(self) -> Outside | None:
        if self._calibrated is None:
            return None
        texts, widest = self._outside()
        times = torch.where(self._calibrated > 0, widest / self._calibrated, 0.0)
        layer, part = divmod(int(times.argmax()), len(PRODUCTS))
        return Outside(texts, float(times.max()), f"layer {layer} {PRODUCTS[part]}")

    def _outside(self) -> tuple[int, Tensor]:
        widest = torch.empty(self.num_layers, len(PRODUCTS))
        return int(self._library.bertie_outside(self._handle, address(widest))), widest

    def _warn(self) -> None:
        with self._lock:
            if self._warned:
                return
            self._warned = True
        found = self.outside
        assert found is not None
        warnings.warn(
            f"{found.texts} of the texts read so far {'is' if found.texts == 1 else 'are'} unlike those that int8 was "
            f"fitted on: values are up to {found.times:.1f} times as wide as any seen there (in {found.product}), so "
            "int8 may cost them more than was measured. If such texts are usual, compile with calibration=texts of "
            "that kind, or use dtype='float32'. This warning appears once; `runner.outside` keeps count.",
            CalibrationWarning,
            stacklevel=2,
        )

    @property
    def _team(self) -> int:
        return min(self.threads or torch.get_num_threads(), usable_cores())

    def describe(self) -> str:
        name = self._library.bertie_instruction_set().decode()
        if self._bfloat16:
            how = bfloat16_instructions() or "rounded numbers, multiplied as float32"
            return f"C++ bfloat16 ({name}; {how})"
        if not self.num_int8:
            return f"C++ float32 ({name})"
        kept = self.num_products - self.num_int8
        return f"C++ int8 ({name})" + (f", {kept} of {self.num_products} products in float32" if kept else "")


def usable_cores() -> int:
    """Of the machine, of the affinity mask (sched(7)), of the quota: a team of more members only waits for itself.

    Looked up at every call: a mask may be changed from outside.
    """
    # Darwin has no masks
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, own_quota() or cores)


def layer_weights(layer: BertLayer, head: int) -> list[tuple[str, Tensor, Tensor]]:
    """(part, weight `[N, K]`, bias `[N]`) of the four products, padded to multiples of 16."""
    attention = layer.attention.self
    heads = len(attention.heads)
    extra = padded(head) - head
    rows, biases = [], []
    for linear in (attention.query, attention.key, attention.value):
        split = F.pad(linear.weight.detach().float().view(heads, head, linear.in_features), (0, 0, 0, extra))
        rows.append(split.flatten(0, 1))
        biases.append(F.pad(linear.bias.detach().float().view(heads, head), (0, extra)).flatten())
    dense = layer.attention.output.dense
    columns = dense.weight.detach().float().view(dense.out_features, heads, head)
    out = F.pad(columns, (0, extra)).flatten(1)
    up, down = layer.intermediate.dense, layer.output.dense
    return [
        ("qkv", *_rectangle(torch.cat(rows), torch.cat(biases))),
        ("out", *_rectangle(out, dense.bias)),
        ("up", *_rectangle(up.weight, up.bias)),
        ("down", *_rectangle(down.weight, down.bias)),
    ]


def _rectangle(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    rows, columns = weight.shape
    more = padded(rows) - rows
    wide = F.pad(weight.detach().float(), (0, padded(columns) - columns, 0, more)).contiguous()
    return wide, F.pad(bias.detach().float(), (0, more)).contiguous()


def address(tensor: Tensor | None) -> int | None:
    """Where a contiguous tensor's numbers lie, for C."""
    if tensor is None:
        return None
    assert tensor.is_contiguous()
    assert tensor.device == torch.device("cpu")
    return tensor.data_ptr()


def _plain(parameter: Tensor) -> Tensor:
    return parameter.detach().float().contiguous()


def _check(status: int | bool) -> None:
    if status:
        raise MemoryError("the CPU engine could not allocate its buffers")
