"""The packed layout: many texts end to end in one `[tokens, …]` tensor, with no padding between them.

`Packing` says where each text lies. Everything that acts on the last axis (Linear, LayerNorm, GELU) needs no more
than the tensor itself; only positions, pooling and attention ask a `Packing`.

Attention over a packed batch without a kernel of its own is done in *groups*: texts of similar length are gathered
into one padded rectangle each, so a batch of 1- and 512-token texts never becomes a 512-wide rectangle of padding.

A layout is made of numbers, which only a call that computes an answer has. TorchScript, export, fx and compilation run
a model once on an example and keep the operations; nothing may then depend on the example: not on its values (a mask of
ones is not every mask), and in a recording not on its sizes either. `records_sizes` and `values_are_known` tell.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise

import numpy as np
import torch
from torch import Tensor
from torch.fx import _symbolic_trace

from bertie.errors import InputError

# A group holds texts down to this fraction of its longest one: at most a quarter of its rows are padding.
_SHORTEST_IN_GROUP = 0.75
_ALWAYS_TOGETHER = 16  # texts this short cost less as padding than as one more kernel launch


def records_sizes() -> bool:
    """Whether tensors may later have other sizes than the example's: `torch.jit.trace`, `torch.export`, ONNX, fx."""
    if torch.compiler.is_compiling():
        return torch.compiler.is_exporting()
    if _symbolic_trace.is_fx_symbolic_tracing():
        return True
    return torch._C._is_tracing()  # what torch.jit.is_tracing(), which has no types, calls; ONNX's old exporter traces


def values_are_known() -> bool:
    """Whether tensors hold the values of this very call, rather than stand for those of calls to come."""
    return not (
        torch.compiler.is_compiling()
        or records_sizes()
        or torch._C._len_torch_dispatch_stack() > 0  # fake tensors, make_fx
        or torch._C._functorch.peek_interpreter_stack() is not None  # vmap
    )


@dataclass(frozen=True)
class Group:
    """Texts that share one rectangle `[texts, length]`."""

    tokens: Tensor  # [texts, length] where in the packed tensor each cell comes from; padding repeats the first token
    keep: Tensor | None  # [texts, length] bool, or None where the rectangle has no padding
    real: Tensor | None  # [real tokens] which cells of the flat rectangle are kept: `keep` without a GPU waiting for it
    texts: tuple[int, ...]
    lengths: tuple[int, ...]


@dataclass(frozen=True)
class Packing:
    """Where each text of a packed batch lies.

    >>> Packing.of([3, 1]).cu_seqlens.tolist()
    [0, 3, 4]
    """

    lengths: tuple[int, ...]
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @classmethod
    def of(cls, lengths: list[int] | tuple[int, ...], *, device: torch.device | str = "cpu") -> Packing:
        return cls(tuple(lengths), torch.device(device))

    @classmethod
    def from_cu_seqlens(cls, cu_seqlens: Tensor, *, num_tokens: int, device: torch.device) -> Packing:
        """Read cumulative lengths `[0, n₁, n₁+n₂, …, tokens]`, refusing any that do not describe `num_tokens`."""
        if not isinstance(cu_seqlens, Tensor):
            raise InputError(f"cu_seqlens is of type {type(cu_seqlens).__name__}; it must be a tensor.")
        if cu_seqlens.dim() != 1 or cu_seqlens.is_floating_point() or len(cu_seqlens) < 2:
            raise InputError(
                f"cu_seqlens has shape {list(cu_seqlens.shape)} and dtype {cu_seqlens.dtype}; "
                "it must hold whole numbers [0, n1, n1+n2, …], one more than there are texts."
            )
        ends = cu_seqlens.tolist()
        lengths = tuple(b - a for a, b in pairwise(ends))
        if ends[0] != 0 or ends[-1] != num_tokens or min(lengths) < 1:
            raise InputError(
                f"cu_seqlens goes from {ends[0]} to {ends[-1]} with a shortest text of {min(lengths)} tokens, "
                f"over {num_tokens} packed tokens.",
                "It must start at 0, rise at every step and end at the number of packed tokens.",
            )
        return cls(lengths, device)

    @property
    def num_texts(self) -> int:
        return len(self.lengths)

    @property
    def num_tokens(self) -> int:
        return sum(self.lengths)

    @cached_property
    def max_length(self) -> int:
        return max(self.lengths)

    @cached_property
    def starts(self) -> list[int]:
        return [0, *accumulate(self.lengths)][:-1]

    @cached_property
    def cu_seqlens(self) -> Tensor:
        return self._there(torch.tensor([0, *accumulate(self.lengths)], dtype=torch.int32))

    @cached_property
    def first_tokens(self) -> Tensor:
        """`[texts]`: where each text's first token ([CLS]) is."""
        return self._there(torch.tensor(self.starts))

    @cached_property
    def position_ids(self) -> Tensor:
        """`[tokens]`: positions that start again at 0 with every text."""
        positions = np.arange(self.num_tokens) - np.repeat(self.starts, self.lengths)
        return self._there(torch.from_numpy(positions))

    def positions(self, ids: Tensor | None, padding: int | None) -> Tensor:
        """Rows of a position table: `position_ids`, or where the table has a row for padding, those after it.

        Ids that are padding have that row, and only what is no padding is counted.
        """
        if padding is None:
            return self.position_ids
        if ids is None:
            return self.position_ids + (padding + 1)
        real = (ids != padding).long()
        counted = real.cumsum(0)
        before = (counted - real)[self.first_tokens]  # what the texts before had
        return (counted - before[self.text_ids]) * real + padding

    @cached_property
    def text_ids(self) -> Tensor:
        """`[tokens]`: which text each token belongs to."""
        return self._there(torch.from_numpy(np.repeat(np.arange(self.num_texts), self.lengths)))

    @cached_property
    def is_rectangle(self) -> bool:
        """All texts equally long: the packed tensor is a padded one without padding, only viewed differently."""
        return len(set(self.lengths)) == 1

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        order = sorted(range(self.num_texts), key=lambda text: -self.lengths[text])
        members: list[list[int]] = []
        for text in order:
            longest = self.lengths[members[-1][0]] if members else 0
            length = self.lengths[text]
            if members and (length >= _SHORTEST_IN_GROUP * longest or longest <= _ALWAYS_TOGETHER):
                members[-1].append(text)
            else:
                members.append([text])
        return tuple(self._group(texts) for texts in members)

    def _group(self, texts: list[int]) -> Group:
        lengths = torch.tensor([self.lengths[text] for text in texts])
        starts = torch.tensor([self.starts[text] for text in texts])
        column = torch.arange(int(lengths[0]))
        keep = column < lengths[:, None]
        tokens = torch.where(keep, starts[:, None] + column, starts[:, None])
        whole = bool(keep.all())
        return Group(
            tokens=self._there(tokens),
            keep=None if whole else self._there(keep),
            real=None if whole else self._there(keep.flatten().nonzero().flatten()),
            texts=tuple(texts),
            lengths=tuple(lengths.tolist()),
        )

    @cached_property
    def ungroup(self) -> Tensor:
        """`[tokens]`: for every packed token, its row among all groups' real rows laid end to end."""
        kept = [torch.arange(n) + self.starts[i] for g in self.groups for i, n in zip(g.texts, g.lengths, strict=True)]
        return self._there(torch.argsort(torch.cat(kept)))

    def _there(self, tensor: Tensor) -> Tensor:
        """On the device, without waiting for a GPU."""
        if self.device.type != "cuda":
            return tensor.to(self.device)
        return tensor.pin_memory().to(self.device, non_blocking=True)

    def pad(self, x: Tensor, value: float = 0.0) -> Tensor:
        """`[tokens, …]` → `[texts, longest, …]`, the rest filled with `value`."""
        rectangle = x.new_full((self.num_texts, self.max_length, *x.shape[1:]), value)
        rectangle[self.text_ids, self.position_ids] = x
        return rectangle
