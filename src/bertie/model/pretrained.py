"""`BertPreTrainedModel`: what every model of the family can do as a whole.

Initialise, tie, resize, prune, checkpoint gradients. The classes themselves are in bert.py and heads.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from bertie.config import BertConfig, read_pruned_heads
from bertie.errors import ConfigError, InputError
from bertie.model import checks
from bertie.model.kin import Kin
from bertie.model.loading import PretrainedIO
from bertie.model.masks import as_bias
from bertie.model.surgery import resized_distances, resized_positions, resized_rows
from bertie.ops.tracing import values_are_known

if TYPE_CHECKING:
    from bertie.model.bert import BertModel


class BertPreTrainedModel(PretrainedIO, Kin):
    """Base of `BertModel` and of the classes with heads, which hold it as `self.bert`."""

    base_model_prefix = "bert"

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        config.validate()
        self.config = config
        self._check_inputs = True
        self._said_no_cache = False

    @property
    def base_model(self) -> BertModel:
        """The BertModel inside (or this model itself)."""
        inside: BertModel | None = getattr(self, self.base_model_prefix, None)
        return self if inside is None else inside  # type: ignore[return-value]

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    # -- checks and kernels ------------------------------------------------------------------------------------------

    @property
    def check_inputs(self) -> bool:
        """Whether values (ids, labels, mask entries) are looked at before they are used. Never while tracing."""
        return self.base_model._check_inputs and values_are_known()

    @check_inputs.setter
    def check_inputs(self, on: bool) -> None:
        self.base_model._check_inputs = on

    def set_attention_backend(self, name: str) -> None:
        """Choose the attention kernel of every layer: "auto", "eager" or "sdpa"."""
        for module in self.modules():
            set_backend = getattr(module, "set_backend", None)
            if callable(set_backend):
                set_backend(name)

    # -- weights -----------------------------------------------------------------------------------------------------

    def init_weights(self) -> None:
        """Fresh weights for everything except a BertModel inside, which has made its own; then tie."""
        for name, child in self.named_children():
            # A model made without memory, to be filled from a checkpoint, has nothing to initialise.
            if name != self.base_model_prefix and not any(p.is_meta for p in child.parameters()):
                child.apply(self._init_module)
        self.tie_weights()

    def _init_module(self, module: nn.Module) -> None:
        std = self.config.initializer_range
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=std)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=std)
            if module.padding_idx is not None:
                with torch.no_grad():
                    module.weight[module.padding_idx].zero_()
        elif isinstance(module, nn.LayerNorm):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)

    def get_input_embeddings(self) -> nn.Embedding:
        return self.base_model.embeddings.word_embeddings

    def set_input_embeddings(self, embeddings: nn.Embedding) -> None:
        decoder = self.get_output_embeddings()
        if decoder is not None and self.config.tie_word_embeddings and len(embeddings.weight) != self.config.vocab_size:
            raise InputError(
                f"The embeddings hold {len(embeddings.weight)} tokens; the head they are tied to has "
                f"{self.config.vocab_size}.",
                f"Make room first: model.resize_token_embeddings({len(embeddings.weight)}).",
            )
        self.base_model.embeddings.word_embeddings = embeddings
        self.tie_weights()

    def get_output_embeddings(self) -> nn.Linear | None:
        """The decoder of a language-model head; None for other models."""
        return None

    def set_output_embeddings(self, decoder: nn.Linear) -> None:
        raise ConfigError(f"{type(self).__name__} has no output embeddings.", "Only language-model heads have them.")

    def tie_weights(self) -> None:
        """Let a language-model head share the word embeddings' matrix (unless `tie_word_embeddings` is off)."""
        decoder = self.get_output_embeddings()
        if decoder is not None and self.config.tie_word_embeddings:
            decoder.weight = self.get_input_embeddings().weight
            decoder.out_features = decoder.weight.shape[0]

    def num_parameters(self, *, only_trainable: bool = False, exclude_embeddings: bool = False) -> int:
        """How many numbers the model holds; tied ones count once."""
        left_out: set[int] = set()
        if exclude_embeddings:
            left_out = {id(m.weight) for m in self.modules() if isinstance(m, nn.Embedding)}
        return sum(
            p.numel() for p in self.parameters() if id(p) not in left_out and (p.requires_grad or not only_trainable)
        )

    # -- sizes -------------------------------------------------------------------------------------------------------

    def resize_token_embeddings(
        self, num_tokens: int | None = None, pad_to_multiple_of: int | None = None
    ) -> nn.Embedding:
        """Make room for another vocabulary. A tied or separate decoder and its bias follow; returns the embeddings."""
        old = self.get_input_embeddings()
        num_tokens = old.num_embeddings if num_tokens is None else num_tokens
        checks.whole_number("num_tokens", num_tokens)
        if pad_to_multiple_of is not None:
            checks.whole_number("pad_to_multiple_of", pad_to_multiple_of)
            num_tokens = -(-num_tokens // pad_to_multiple_of) * pad_to_multiple_of
        pad = self.config.pad_token_id
        if pad is not None and num_tokens <= pad:
            raise InputError(
                f"resize_token_embeddings was asked for {num_tokens} tokens; there must be more than the padding id "
                f"({pad})."
            )
        if num_tokens == old.num_embeddings:
            return old
        embeddings = _embedding(resized_rows(old.weight, num_tokens), like=old)
        decoder = self.get_output_embeddings()
        if decoder is not None:
            bias = decoder.bias
            if bias is not None:
                bias = nn.Parameter(resized_rows(bias[:, None], num_tokens)[:, 0].contiguous())
            weight = embeddings.weight
            if not self.config.tie_word_embeddings:
                weight = nn.Parameter(resized_rows(decoder.weight, num_tokens))
            new_decoder = nn.Linear(old.embedding_dim, num_tokens, bias=bias is not None, device="meta")
            new_decoder.weight, new_decoder.bias = weight, bias
            self.set_output_embeddings(new_decoder)
        self.config.vocab_size = num_tokens
        self.set_input_embeddings(embeddings)
        return embeddings

    def resize_position_embeddings(self, num_positions: int, *, how: str = "interpolate") -> None:
        """Let the model read longer (or only shorter) texts.

        `how` says where new positions come from: "interpolate" stretches the old table over the new length, "repeat"
        uses it again from the start (for relative positions: treats all farther distances as the farthest known).
        Either way, fine-tuning on long texts afterwards pays.
        """
        checks.whole_number("num_positions", num_positions)
        if how not in ("interpolate", "repeat"):
            raise InputError(f"how is {how!r}.", "It takes 'interpolate' or 'repeat'.")
        embeddings = self.base_model.embeddings
        old = embeddings.position_embeddings
        embeddings.position_embeddings = _embedding(resized_positions(old.weight, num_positions, how=how), like=old)
        embeddings.make_default_ids()
        for module in self.modules():
            distances = getattr(module, "distance_embedding", None)
            if isinstance(distances, nn.Embedding):
                table = resized_distances(distances.weight, num_positions, how=how)
                module.distance_embedding = _embedding(table, like=distances)
        self.config.max_position_embeddings = num_positions

    def prune_heads(self, heads_to_prune: Mapping[int, Sequence[int]]) -> None:
        """Remove attention heads, `{layer: [heads]}`, for good.

        Heads keep their original numbers however often this is called; `config.pruned_heads` remembers what is gone, so
        a model made from the config has the same shape.
        """
        asked = read_pruned_heads(heads_to_prune, "heads_to_prune")
        merged = {
            layer: sorted({*self.config.pruned_heads.get(layer, []), *asked.get(layer, [])})
            for layer in sorted({*self.config.pruned_heads, *asked})
        }
        self.config.replace(pruned_heads=merged)  # refuses layers and heads that are not there, before anything changes
        for layer, heads in asked.items():
            self.base_model.encoder.layer[layer].attention.prune_heads(heads)
        self.config.pruned_heads = {layer: heads for layer, heads in merged.items() if heads}

    # -- memory ------------------------------------------------------------------------------------------------------

    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs: Mapping[str, Any] | None = None) -> None:
        """While training, keep only each layer's input and compute the rest again on the way back.

        The keyword arguments are those of `torch.utils.checkpoint.checkpoint`.
        """
        self.base_model.encoder.checkpointing = {"use_reentrant": False, **(gradient_checkpointing_kwargs or {})}

    def gradient_checkpointing_disable(self) -> None:
        self.base_model.encoder.checkpointing = None

    @property
    def is_gradient_checkpointing(self) -> bool:
        return self.base_model.encoder.checkpointing is not None

    # -- the hub's mask methods, for code that calls them ------------------------------------------------------------

    def invert_attention_mask(self, encoder_attention_mask: Tensor) -> Tensor:
        """1/0 keep/drop, `[B, K]` or `[B, Q, K]` → 0/lowest number, ready to be added to scores."""
        mask = encoder_attention_mask
        if mask.dim() not in (2, 3):
            raise InputError(f"encoder_attention_mask has shape {list(mask.shape)}; it takes 2 or 3 dimensions.")
        mask = mask[:, None, None, :] if mask.dim() == 2 else mask[:, None]
        return as_bias(mask, self.dtype, torch.finfo(self.dtype).min)

    def get_extended_attention_mask(
        self, attention_mask: Tensor, input_shape: Sequence[int], dtype: torch.dtype | None = None
    ) -> Tensor:
        """Like `invert_attention_mask`, with causality added for a decoder's 2-D mask."""
        if attention_mask.dim() not in (2, 3):
            raise InputError(
                f"attention_mask has shape {list(attention_mask.shape)}; it takes [batch, keys] or "
                "[batch, queries, keys]."
            )
        keep = attention_mask[:, None] if attention_mask.dim() == 3 else attention_mask[:, None, None, :]
        if attention_mask.dim() == 2 and self.config.is_decoder:
            num_queries, num_keys = input_shape[1], attention_mask.shape[1]
            seen = torch.ones(num_queries, num_keys, dtype=torch.bool, device=keep.device)
            keep = (keep != 0) & seen.tril(num_keys - num_queries)
        dtype = dtype or self.dtype
        return as_bias(keep, dtype, torch.finfo(dtype).min)

    def get_head_mask(
        self, head_mask: Tensor | None, num_hidden_layers: int, is_attention_chunked: bool = False
    ) -> Tensor | list[None]:
        """`[heads]` or `[layers, heads]` → `[layers, 1, heads, 1, 1]`; a list of None when there is none."""
        if head_mask is None:
            return [None] * num_hidden_layers
        if head_mask.dim() not in (1, 2):
            raise InputError(f"head_mask has shape {list(head_mask.shape)}; it takes [heads] or [layers, heads].")
        per_layer = head_mask.expand(num_hidden_layers, -1) if head_mask.dim() == 1 else head_mask
        expanded = per_layer[:, None, :, None, None].to(self.dtype)
        return expanded.unsqueeze(-1) if is_attention_chunked else expanded


def _embedding(weight: Tensor, *, like: nn.Embedding) -> nn.Embedding:
    """An Embedding around this weight, with the pad row and the trainability of another."""
    embedding = nn.Embedding(weight.shape[0], weight.shape[1], padding_idx=like.padding_idx, device="meta")
    embedding.weight = nn.Parameter(weight, requires_grad=like.weight.requires_grad)
    return embedding
