"""`FastBert`: a `BertModel` whose layers run somewhere faster.

It takes every call that `BertModel` takes. A packed batch, or a padded one with a mask of texts, goes to the runner; a
call that asks for more (attention maps, head masks, caches, cross-attention, 3-D masks) goes to the reference, whose
weights it shares. Nothing here trains.

The weights belong to the model it was made from as well, and may change. A runner is made again when they did; while
the engine has none for what they have become (adapters in place of a Linear, say), the reference answers.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter, is_
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertie.engine.runner import Means, PooledRows, ReferenceRunner, Runner
from bertie.errors import InputError
from bertie.model import BertModel, KeyValueCache, inputs
from bertie.model.inputs import WantedMaps
from bertie.model.outputs import BertModelOutput, wants_dict
from bertie.ops.packing import Packing

logger = logging.getLogger("bertie.engine")
_SAMPLE = 64  # bytes of a tensor that are compared: one cache line
_version = attrgetter("_version")


class FastBert(BertModel):
    """A BertModel that shares its weights with the one it was made of, and answers through what `make` makes of it.

    `make` is called again when the weights are no longer those that the runner was made from.
    """

    def __init__(self, model: BertModel, make: Callable[[BertModel], Runner]) -> None:
        _share(model, self)
        self._said_reference = False
        self._make, self._lock = make, threading.Lock()
        source = self._source()  # before the runner: what changes while it is made is noticed
        self._made: tuple[Source, Runner] | None = (source, make(model))

    @property
    def runner(self) -> Runner:
        """What answers now."""
        made = self._made
        if made is None or not made[0].is_current():
            made = self._make_again()
        source, runner = made
        return ReferenceRunner(self._plain()) if source.is_watched() else runner

    def _make_again(self) -> tuple[Source, Runner]:
        with self._lock, torch.inference_mode(False):
            before = self._made
            if before is not None and before[0].is_current():
                return before  # another thread was here first
            source = self._source()
            if before is not None:
                logger.info(
                    "The weights changed since they were compiled (%s): compiling again.", before[0].difference(source)
                )
            plain = self._plain()
            runner: Runner
            try:
                runner = self._make(plain)
            except InputError as refusal:
                logger.warning("The model changed, and the reference answers from now on: %s", refusal.cause)
                runner = ReferenceRunner(plain)
            self._made = source, runner
            return self._made

    def _plain(self) -> BertModel:
        """The reference with the same modules."""
        model = BertModel.__new__(BertModel)
        _share(self, model)
        return model

    def _source(self) -> Source:
        return Source(embeddings=self.embeddings, encoder=self.encoder)

    def __getstate__(self) -> dict[str, object]:
        """A runner's memory is not Python's, so copies and pickles go without it and make their own when first used."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_made", "_lock")}

    def __setstate__(self, state: dict[str, object]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]  # nn.Module's has no types
        self._made, self._lock = None, threading.Lock()

    def train(self, mode: bool = True) -> FastBert:
        if mode:
            raise InputError("A compiled model cannot be trained.", "Train the model it was compiled from.")
        super().train(False)
        return self

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        head_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        past_key_values: KeyValueCache | Sequence[Sequence[Tensor | None]] | None = None,
        use_cache: bool | None = None,
        output_attentions: WantedMaps | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        cache_position: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> BertModelOutput | tuple[Any, ...]:
        if self.encoder.training:
            raise InputError(
                "The model this one was compiled from is in training mode, and they share their dropout.",
                "Call model.eval() before you use the compiled one.",
            )
        special = (head_mask, inputs_embeds, encoder_hidden_states, encoder_attention_mask, past_key_values)
        config = self.config
        if (
            any(given is not None for given in special)
            or inputs.wanted_maps(self, output_attentions)
            or config.is_decoder
            or not _marks_texts(input_ids, attention_mask, cu_seqlens)
            or (self.encoder.relative_attention_bias is not None and _has_holes(attention_mask))
        ):
            if not self._said_reference:
                logger.info("Head masks, maps and masks between tokens: the reference answers, in %s", self.dtype)
                self._said_reference = True
            return super().forward(
                input_ids, attention_mask, token_type_ids, position_ids, head_mask, inputs_embeds,
                encoder_hidden_states, encoder_attention_mask, past_key_values, use_cache, output_attentions,
                output_hidden_states, return_dict, cu_seqlens=cu_seqlens,
            )  # fmt: skip
        assert input_ids is not None
        if not config.has_segments:
            token_type_ids = None
        packing = inputs.read_packing(input_ids, None, cu_seqlens)
        inputs.check(self, input_ids, token_type_ids, position_ids, None, packing, 0)
        all_states = config.output_hidden_states if output_hidden_states is None else output_hidden_states
        with torch.no_grad():
            if packing is not None:
                states = self.runner(input_ids, token_type_ids, position_ids, packing, all_states=all_states)
            else:
                states = self._padded(input_ids, attention_mask, token_type_ids, position_ids, all_states)
            pooled = None if self.pooler is None else self.pooler(states[-1], packing)
        if wants_dict(config, return_dict):
            return BertModelOutput(states[-1], pooled, tuple(states) if all_states else None)
        pooler = (pooled,) if config.has_pooler else ()
        return (states[-1], *pooler, tuple(states)) if all_states else (states[-1], *pooler)

    def last_state(self, ids: Tensor, lengths: Sequence[int]) -> Tensor:
        """`[tokens, hidden]` of rows end to end in the host's memory, all of segment 0; nobody waits for a GPU's."""
        runner = self.runner
        if runner.device.type == "cuda":
            self._check(ids.numpy(), lengths)
        return runner.last_state(ids, lengths)

    def vectors(self, ids: NDArray[np.int64], means: Means) -> Callable[[], Tensor] | None:
        """As `Runner.vectors`."""
        runner = self.runner
        if runner.device.type == "cuda":
            self._check(ids, means.lengths)
        return runner.vectors(ids, means)

    def _check(self, ids: NDArray[np.int64], lengths: Sequence[int]) -> None:
        """Refuse ids and lengths that the model does not have: a GPU's kernels do not look at them, a CPU's do."""
        if len(ids) and int(ids.view(np.uint64).max()) >= self.config.vocab_size:  # as is a negative one
            inputs.ids_below("input_ids", torch.from_numpy(ids), self.config.vocab_size, "vocab_size")
        inputs.fits_positions(max(lengths), 0, self.config.max_input_length)

    def pooled(self, ids: Tensor, rows: PooledRows, modes: Sequence[str]) -> Tensor | None:
        """As `Runner.pooled`."""
        return self.runner.pooled(ids, rows, modes)

    def _padded(
        self,
        ids: Tensor,  # [B, S]
        mask: Tensor | None,
        type_ids: Tensor | None,
        position_ids: Tensor | None,
        all_states: bool,
    ) -> list[Tensor]:
        """Hidden tokens are left out, the rest keep their positions; where a token was left out the state is 0."""
        keep = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
        if position_ids is None:
            position_ids = inputs.positions(self.embeddings, ids, ids.shape[1])
        positions = position_ids.expand_as(ids)[keep]
        packing = Packing.of(keep.sum(1).tolist(), device=ids.device)
        types = None if type_ids is None else type_ids.expand_as(ids)[keep]
        found = []
        for state in self.runner(ids[keep], types, positions, packing, all_states=all_states):
            whole = state.new_zeros(*ids.shape, state.shape[-1])
            whole[keep] = state
            found.append(whole)
        return found


def _share(model: BertModel, made: BertModel) -> None:
    """Make `made` of the modules of `model`, in eval mode: nothing is built or initialised."""
    nn.Module.__init__(made)
    made.config, made.training = model.config, False
    made._check_inputs, made._said_no_cache = model._check_inputs, model._said_no_cache
    made.embeddings, made.encoder, made.pooler = model.embeddings, model.encoder, model.pooler


def _marks_texts(ids: Tensor | None, mask: Tensor | None, cu_seqlens: Tensor | None) -> bool:
    """Whether a batch says plainly which tokens are whose: packed, or padded with a mask that hides no text whole."""
    if ids is None:
        return False
    if mask is None:
        return True
    if cu_seqlens is not None or ids.dim() != 2 or mask.shape != ids.shape:
        return False
    kept = mask.bool()
    return bool(((mask == 0) | (mask == 1)).all()) and bool(kept.any(1).all())


def _has_holes(mask: Tensor | None) -> bool:
    """Whether tokens inside a text are hidden: left out, those around them would be nearer to each other."""
    return mask is not None and bool((mask.bool().long().diff(dim=1).abs().sum(1) + mask[:, 0].bool() > 2).any())


class Source:
    """The modules and parameters below some roots, as they are now, to notice when they are no longer so.

    A runner holds copies of most weights: after the model was trained, resized, pruned, converted or taken apart, it
    would put new embeddings through old layers. So a source remembers which modules and tensors there are, where each
    tensor's numbers lie (`weight.data = …`, `model.to(…)`) and how often it was written to (`_version`: optimizers,
    `load_state_dict`, `p.mul_()` under `no_grad`).

    `weight.data.mul_()` and writing through numpy leave none of these signs. On a CPU some numbers from the middle of
    every tensor are compared as well, which notices what changes a tensor as a whole, and may miss what changes a part.

    This is asked before every answer, so whatever runs once per tensor is a loop in C: 25 µs for a hundred tensors.
    """

    def __init__(self, **roots: nn.Module) -> None:
        modules = [module for root in roots.values() for module in root.modules()]
        self._dicts: list[Mapping[str, object]] = [
            d for module in modules for d in (module._modules, module._parameters) if d
        ]
        self._parts = self._current_parts()
        self._hooks = [hooks for module in modules for hooks in (module._forward_hooks, module._forward_pre_hooks)]
        named = {
            f"{prefix}.{name}": parameter
            for prefix, root in roots.items()
            for name, parameter in root.named_parameters()
        }
        self._tensors = list(named.values())
        self._counted = [x for x in self._tensors if not x.is_inference()]  # those have no version
        self._addresses = list(map(Tensor.data_ptr, self._tensors))
        self._versions = list(map(_version, self._counted))
        self._kept = [x.detach() for x in self._tensors]  # the samples' memory, also when the tensors move
        samples = [_sample(x) for x in self._kept]
        self._samples = [sample for sample in samples if sample is not None]
        self._sampled = b"".join(self._samples)
        self._named = {
            name: (id(x), address, None if x.is_inference() else x._version, x.shape, sample and bytes(sample))
            for (name, x), address, sample in zip(named.items(), self._addresses, samples, strict=True)
        }

    def is_current(self) -> bool:
        """Whether everything is still as it was."""
        parts = self._current_parts()
        return (
            len(parts) == len(self._parts)
            and all(map(is_, parts, self._parts))
            and list(map(Tensor.data_ptr, self._tensors)) == self._addresses
            and list(map(_version, self._counted)) == self._versions
            and b"".join(self._samples) == self._sampled
        )

    def is_watched(self) -> bool:
        """Whether there are hooks on these modules, which a runner would not call."""
        return any(self._hooks)

    def difference(self, later: Source) -> str:
        """What is not as it was, by the name of its first tensor."""
        before, after = self._named, later._named
        changed = [name for name in {**before, **after} if before.get(name) != after.get(name)]
        if not changed:
            return "its modules"
        return changed[0] if len(changed) == 1 else f"{changed[0]} and {len(changed) - 1} more"

    def _current_parts(self) -> list[object]:
        """All values of the modules' dictionaries: `chain(map(dict.values, …))`, in half the time."""
        return gc.get_referents(*self._dicts)


def _sample(x: Tensor) -> ctypes.Array[ctypes.c_char] | None:
    """The middle of a tensor's memory as it is whenever one looks; None where that is not to be had."""
    size = x.numel() * x.element_size()
    if x.device.type != "cpu" or not size or not x.is_contiguous():
        return None
    length = min(size, _SAMPLE)
    return (ctypes.c_char * length).from_address(x.data_ptr() + (size - length) // 2)
