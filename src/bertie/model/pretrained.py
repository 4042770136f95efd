"""`BertPreTrainedModel`: what every model of the family can do as a whole.

Initialise, tie, resize, prune, checkpoint gradients. The classes themselves are in bert.py and heads.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bertie.arguments import whole_number
from bertie.config import BertConfig, from_the_start, read_pruned_heads
from bertie.config.checks import plain_int
from bertie.config.relatives import RelativeConfig
from bertie.errors import ConfigError, InputError
from bertie.model import inputs
from bertie.model.empty import begin, end, is_building
from bertie.model.from_pretrained import PretrainedIO
from bertie.model.surgery import resized_distances, resized_positions, resized_rows
from bertie.ops.attention import as_bias

if TYPE_CHECKING:
    from bertie.model.bert import BertModel


class BertPreTrainedModel(PretrainedIO):
    """Base of `BertModel` and of the classes with heads, which hold it as `self.bert`.

    A head of your own is a subclass that ends its `__init__` with `self.post_init()`:

        class Tagger(BertPreTrainedModel):
            def __init__(self, config):
                super().__init__(config)
                self.bert = BertModel(config, add_pooling_layer=False)
                self.lstm = nn.LSTM(config.hidden_size, 64, bidirectional=True, batch_first=True)
                self.classifier = nn.Linear(128, config.num_labels)
                self.post_init()
    """

    def __init__(self, config: BertConfig, *inputs: object, **kwargs: object) -> None:
        super().__init__()
        # A subclass of the user's may name a configuration of its own and still take BERT's.
        wanted = self.config_class if issubclass(self.config_class, RelativeConfig) else BertConfig
        if not isinstance(config, wanted):
            name = wanted.__name__
            raise InputError(
                f"{type(self).__name__} was given a configuration of type {type(config).__name__}.",
                f"Pass a bertie.{name}: {name}.from_dict(config.to_dict()) makes one from another library's.",
            )
        config.validate()
        begin(self)
        self.config = config
        self.name_or_path = config.name_or_path
        self._check_inputs = True
        self._said_no_cache = False

    @classmethod
    def _from_config(cls, config: BertConfig, **options: Any) -> Self:
        """A new model with fresh weights; `dtype` and `attn_implementation` as in `from_pretrained`."""
        dtype = options.pop("dtype", None) or options.pop("torch_dtype", None)
        attention = options.pop("attn_implementation", None)
        if attention is not None:
            config = config.replace(attn_implementation=attention)
        model = cls(config, **options)
        return model if dtype is None else model.to(vars(torch)[dtype] if isinstance(dtype, str) else dtype)

    @property
    def base_model(self) -> BertModel:
        """The BertModel inside (or this model itself)."""
        inside: BertModel | None = getattr(self, self.base_model_prefix, None)
        return self if inside is None else inside  # type: ignore[return-value]  # then this is a BertModel

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """The type of the parameters."""
        return next(self.parameters()).dtype

    # -- checks and kernels ------------------------------------------------------------------------------------------

    @property
    def check_inputs(self) -> bool:
        """Whether values (ids, labels, mask entries) are looked at before they are used. Never while tracing."""
        return inputs.checks_values(self.base_model)

    @check_inputs.setter
    def check_inputs(self, on: bool) -> None:
        self.base_model._check_inputs = on

    def set_attention_backend(self, name: str) -> None:
        """Choose the attention kernel of every layer: "auto", "eager" or "sdpa"."""
        for module in self.modules():
            set_backend = getattr(module, "set_backend", None)
            if callable(set_backend):
                set_backend(name)
        self.config._attn_implementation = "sdpa" if name == "auto" else name

    # -- weights -----------------------------------------------------------------------------------------------------

    def post_init(self) -> None:
        """The last line of a constructor: `init_weights`, and what the configuration says about running."""
        self.init_weights()

    def init_weights(self) -> None:
        """Fresh weights for everything except models inside, which have made their own; then tie.

        A model that is about to be filled from a checkpoint is not initialised here: loading does it for what the
        checkpoint lacks.
        """
        if not is_building():
            _initialise(self, self._init_weights)
        self.tie_weights()
        end(self)
        self._follow_config()

    def _init_weights(self, module: nn.Module) -> None:
        """How one layer starts; a subclass may say it for layers of its own."""
        std = self.config.initializer_range
        match module:
            case nn.Linear():
                nn.init.normal_(module.weight, std=std)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            case nn.Embedding():
                nn.init.normal_(module.weight, std=std)
                if module.padding_idx is not None:
                    with torch.no_grad():
                        module.weight[module.padding_idx].zero_()
            case nn.LayerNorm(elementwise_affine=True):
                nn.init.ones_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def _follow_config(self) -> None:
        wanted = self.config._attn_implementation
        if wanted in (None, "sdpa"):
            self.config._attn_implementation = "sdpa"  # what every layer has from the start
        else:
            self.set_attention_backend(wanted)
        if getattr(self.config, "gradient_checkpointing", False):
            self.gradient_checkpointing_enable()

    def get_input_embeddings(self) -> nn.Embedding:
        """The word embeddings, `[vocab, hidden]`."""
        return self.base_model.embeddings.word_embeddings

    def set_input_embeddings(self, embeddings: nn.Embedding) -> None:
        """Exchange the word embeddings. A tied head follows if the size is the same; otherwise it keeps its own."""
        old, new = (getattr(table, "weight", None) for table in (self.get_input_embeddings(), embeddings))
        same_size = old is not None and new is not None and old.shape == new.shape
        self.base_model.embeddings.word_embeddings = embeddings
        if same_size:
            self.tie_weights()

    def get_output_embeddings(self) -> nn.Linear | None:
        """The decoder of a language-model head; None for other models."""
        return None

    def get_position_embeddings(self) -> nn.Embedding:
        """The position embeddings, `[positions, hidden]`."""
        return self.base_model.embeddings.position_embeddings

    def set_output_embeddings(self, decoder: nn.Linear) -> None:
        """Replace the output layer of a model that predicts words."""
        raise ConfigError(f"{type(self).__name__} has no output embeddings.", "Only language-model heads have them.")

    def tie_weights(self) -> None:
        """Let a language-model head share the word embeddings' matrix (unless `tie_word_embeddings` is off)."""
        decoder = self.get_output_embeddings()
        if decoder is not None and self.config.tie_word_embeddings:
            self._tie_or_clone_weights(decoder, self.get_input_embeddings())
        for module in self.modules():
            if (tie := getattr(type(module), "_tie_weights", None)) is not None:
                tie(module)  # a head of somebody's own

    def _tie_or_clone_weights(self, output_embeddings: nn.Linear, input_embeddings: nn.Embedding) -> None:
        output_embeddings.weight = input_embeddings.weight
        output_embeddings.out_features = output_embeddings.weight.shape[0]

    def num_parameters(self, only_trainable: bool = False, exclude_embeddings: bool = False) -> int:
        """How many numbers the model holds; tied ones count once."""
        return num_parameters(self, only_trainable, exclude_embeddings)

    # -- sizes -------------------------------------------------------------------------------------------------------

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        """Make room for another vocabulary. A tied or separate decoder and its bias follow; returns the embeddings.

        New rows start near the mean of the old ones, or, without `mean_resizing`, like those of a new model.
        """
        old = self.get_input_embeddings()
        num_tokens = old.num_embeddings if new_num_tokens is None else new_num_tokens
        whole_number("new_num_tokens", plain_int(num_tokens))
        if pad_to_multiple_of is not None:
            whole_number("pad_to_multiple_of", plain_int(pad_to_multiple_of))
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
        num_old = old.num_embeddings
        if not mean_resizing:
            nn.init.normal_(embeddings.weight.data[num_old:], std=self.config.initializer_range)
        decoder = self.get_output_embeddings()
        if decoder is not None:
            bias = decoder.bias
            if bias is not None:
                bias = nn.Parameter(resized_rows(bias[:, None], num_tokens)[:, 0].contiguous())
            weight = embeddings.weight
            if not self.config.tie_word_embeddings:
                weight = nn.Parameter(resized_rows(decoder.weight, num_tokens))
                if not mean_resizing:
                    nn.init.normal_(weight.data[num_old:], std=self.config.initializer_range)
            if bias is not None and not mean_resizing:
                bias.data[num_old:] = 0
            new_decoder = nn.Linear(old.embedding_dim, num_tokens, bias=bias is not None, device="meta")
            new_decoder.weight, new_decoder.bias = weight, bias
            self.set_output_embeddings(new_decoder)
        self.config.vocab_size = self.vocab_size = num_tokens
        self.set_input_embeddings(embeddings)
        self.tie_weights()
        return embeddings

    def resize_position_embeddings(self, num_positions: int, *, how: str = "interpolate") -> None:
        """Let the model read longer (or only shorter) texts.

        `how` says where new positions come from: "interpolate" stretches the old table over the new length, "repeat"
        uses it again from the start (for relative positions: treats all farther distances as the farthest known).
        Either way, fine-tuning on long texts afterwards pays.
        """
        whole_number("num_positions", plain_int(num_positions))
        if how not in ("interpolate", "repeat"):
            raise InputError("{how:is} it must be 'interpolate' or 'repeat'.", how=how)
        embeddings = self.base_model.embeddings
        old = embeddings.position_embeddings
        unused = 0 if old.padding_idx is None else old.padding_idx + 1  # rows that no token has, in some relatives
        if num_positions <= unused:
            raise InputError(f"{{num_positions:is}} the first {unused} are padding's.", num_positions=num_positions)
        used = resized_positions(old.weight[unused:], num_positions - unused, how=how)
        table = torch.cat([old.weight.detach()[:unused], used])
        embeddings.position_embeddings = _embedding(table, like=old)
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
        asked = from_the_start(read_pruned_heads(heads_to_prune, "heads_to_prune"), self.config.num_hidden_layers)
        merged = {
            layer: sorted({*self.config.pruned_heads.get(layer, []), *asked.get(layer, [])})
            for layer in sorted({*self.config.pruned_heads, *asked})
        }
        self.config.replace(pruned_heads=merged)  # refuses layers and heads that are not there, before anything changes
        for layer, heads in asked.items():
            self.base_model.encoder.layer[layer].attention.prune_heads(heads)
        self.config.pruned_heads = {layer: heads for layer, heads in merged.items() if heads}

    # -- memory ------------------------------------------------------------------------------------------------------

    def gradient_checkpointing_enable(
        self,
        gradient_checkpointing_kwargs: Mapping[str, object] | None = None,
        every_n_layers: int = 1,
        offload: bool = False,
    ) -> None:
        """While training, keep only each layer's input and compute the rest again on the way back.

        The keyword arguments are those of `torch.utils.checkpoint.checkpoint`. transformers 5's Trainer gives the last
        two, which have no other values here.
        """
        if every_n_layers != 1 or offload:
            raise ConfigError(
                f"gradient_checkpointing_enable was given every_n_layers={every_n_layers}, offload={offload}.",
                "Here every layer is computed again, and inputs of layers stay on their device: leave both out.",
            )
        self._set_checkpointing({"use_reentrant": False, **(gradient_checkpointing_kwargs or {})})
        if getattr(self, "_hf_peft_config_loaded", False):
            self.enable_input_require_grads()

    def gradient_checkpointing_disable(self) -> None:
        """Keep all states for the backward pass again."""
        self._set_checkpointing(None)
        if getattr(self, "_hf_peft_config_loaded", False):
            self.disable_input_require_grads()

    def _set_checkpointing(self, options: dict[str, Any] | None) -> None:
        theirs: dict[str, object] = {"gradient_checkpointing": options is not None}
        if options is not None:
            theirs["_gradient_checkpointing_func"] = functools.partial(checkpoint, **options)
        for module in self.modules():
            if hasattr(module, "checkpointing"):
                vars(module)["checkpointing"] = options
            elif hasattr(module, "gradient_checkpointing"):  # somebody's own encoder, written for the hub's library
                for name, value in theirs.items():
                    setattr(module, name, value)

    @property
    def is_gradient_checkpointing(self) -> bool:
        """Whether layers are computed again in the backward pass."""
        return any(
            getattr(module, "checkpointing", None) is not None or getattr(module, "gradient_checkpointing", False)
            for module in self.modules()
        )

    # -- the hub's mask methods, for code that calls them ------------------------------------------------------------

    def invert_attention_mask(self, encoder_attention_mask: Tensor) -> Tensor:
        """1/0 keep/drop, `[B, K]` or `[B, Q, K]` → 0/lowest number, ready to be added to scores."""
        mask = encoder_attention_mask
        if mask.dim() not in (2, 3):
            raise InputError(f"encoder_attention_mask has shape {list(mask.shape)}; it must have 2 or 3 dimensions.")
        mask = mask[:, None, None, :] if mask.dim() == 2 else mask[:, None]
        return as_bias(mask, self.dtype, torch.finfo(self.dtype).min)

    def get_extended_attention_mask(
        self, attention_mask: Tensor, input_shape: Sequence[int], dtype: torch.dtype | None = None
    ) -> Tensor:
        """Like `invert_attention_mask`, with causality added for a decoder's 2-D mask."""
        if attention_mask.dim() not in (2, 3):
            raise InputError(
                f"attention_mask has shape {list(attention_mask.shape)}; it must be [batch, keys] or "
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
            raise InputError(f"head_mask has shape {list(head_mask.shape)}; it must be [heads] or [layers, heads].")
        per_layer = head_mask.expand(num_hidden_layers, -1) if head_mask.dim() == 1 else head_mask
        expanded = per_layer[:, None, :, None, None].to(self.dtype)
        return expanded.unsqueeze(-1) if is_attention_chunked else expanded


def num_parameters(module: nn.Module, only_trainable: bool, exclude_embeddings: bool) -> int:
    left_out: set[int] = set()
    if exclude_embeddings:
        left_out = {id(m.weight) for m in module.modules() if isinstance(m, nn.Embedding)}
    counted = (p for p in module.parameters() if id(p) not in left_out and (p.requires_grad or not only_trainable))
    return sum(parameter.numel() for parameter in counted)


def _initialise(module: nn.Module, rule: Callable[[nn.Module], None]) -> None:
    """Children first, then the module; a model inside has initialised itself."""
    for child in module.children():
        if not isinstance(child, BertPreTrainedModel):
            _initialise(child, rule)
    if not any(parameter.is_meta for parameter in module.parameters(recurse=False)):  # built empty by another library
        rule(module)


def _embedding(weight: Tensor, *, like: nn.Embedding) -> nn.Embedding:
    """An Embedding around this weight, with the pad row and the trainability of another."""
    embedding = nn.Embedding(weight.shape[0], weight.shape[1], padding_idx=like.padding_idx, device="meta")
    embedding.weight = nn.Parameter(weight, requires_grad=like.weight.requires_grad)
    return embedding
