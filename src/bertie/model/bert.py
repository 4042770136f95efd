"""BERT in one sitting: embeddings, attention, feed-forward, encoder, pooler, and the model they make.

Devlin et al. 2018, "BERT: Pre-training of Deep Bidirectional Transformers" (https://arxiv.org/abs/1810.04805), with
what grew around it: relative positions, decoder mode with cross-attention, head masks, packed batches.

A text becomes a row of token ids. Each id is looked up as a vector of `hidden` numbers; a vector for its position and
one for its segment are added. Then every layer does two things: *attention* lets each token gather from all others,
and a *feed-forward* network transforms each token by itself. Both add their result to what came in and normalise the
sum. After 12 layers (in the base size) each token's vector says what that token means in this text; the first one, at
[CLS], is trained to stand for all of it, through the *pooler*.

Classes and parameters carry the hub's names, so that checkpoints load with no renaming and three implementations can
be read side by side. Shapes in the comments:

    B batch    S length    D hidden    N heads    H head width = D/N    Q, K queries and keys    T tokens, packed

The same code runs padded `[B, S, D]` and packed `[T, D]` batches: Linear, LayerNorm and GELU act on the last axis
alone. Masks of any shape, head masks, packing and maps reach attention as an `AttentionPlan`; ops/attention.py has the
seam, and inputs.py the reading and checking of what callers pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from bertie.config import BertConfig
from bertie.errors import ConfigError
from bertie.model import inputs
from bertie.model.activations import activation
from bertie.model.cache import KeyValueCache, LayerCache
from bertie.model.hub import parts as hub_parts
from bertie.model.hub.parts import run_attention, run_encoder, run_layer, takes_hub_arguments
from bertie.model.inputs import WantedMaps
from bertie.model.outputs import Answers, Attentions, BertEncoderOutput, BertModelOutput, wants_dict
from bertie.model.pretrained import BertPreTrainedModel
from bertie.model.surgery import kept_features
from bertie.ops.attention import AttentionPlan, Maps, attention, choose_backend, with_shared_bias
from bertie.ops.packing import Packing
from bertie.ops.relative import RelativePositions, shared_bias_table

PLAIN = AttentionPlan()


class BertEmbeddings(hub_parts.EmbeddingNames):
    """Token + position + segment vectors, normalised."""

    position_ids: Tensor
    token_type_ids: Tensor

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        width, positions = config.embedding_width, config.max_position_embeddings  # the width is D, but in ELECTRA
        self.word_embeddings = nn.Embedding(config.vocab_size, width, padding_idx=config.pad_token_id)
        self.position_embeddings = nn.Embedding(positions, width, padding_idx=config.position_padding)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, width) if config.has_segments else None
        self.LayerNorm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.project = None if width == config.hidden_size else nn.Linear(width, config.hidden_size)
        # Relative positions enter in attention; the table above then exists (checkpoints have it) but is not used.
        self.position_embedding_type = config.position_embedding_type
        self.make_default_ids()

    def make_default_ids(self) -> None:
        """Positions 0, 1, 2, … and segment 0, as buffers so that they move with the model; never saved."""
        weight = self.position_embeddings.weight
        device = None if weight.is_meta else weight.device  # weights built empty are filled later, these are not
        positions = torch.arange(len(weight), device=device)[None]
        self.register_buffer("position_ids", positions, persistent=False)
        self.register_buffer("token_type_ids", torch.zeros_like(positions), persistent=False)

    def forward(
        self,
        input_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        past_key_values_length: int = 0,
    ) -> Tensor:
        """`[B, S]` ids, or `[T]` packed with their position_ids → `[B, S, D]` or `[T, D]`."""
        if inputs_embeds is None:
            inputs_embeds = self.word_embeddings(inputs.one_of_ids_or_embeds(input_ids, None))
        length = inputs_embeds.shape[-2]
        if position_ids is None:
            position_ids = inputs.positions(self, input_ids, length, past_key_values_length)
        embeddings = inputs_embeds
        if self.token_type_embeddings is not None:
            if token_type_ids is None:
                token_type_ids = torch.zeros_like(position_ids)
            embeddings = embeddings + self.token_type_embeddings(token_type_ids)
        if self.absolute:
            embeddings = embeddings + self.position_embeddings(position_ids)
        normalised: Tensor = self.dropout(self.LayerNorm(embeddings))
        return normalised if self.project is None else self.project(normalised)


class BertSelfAttention(hub_parts.SelfAttentionNames):
    """Each token asks (query) and answers (key, value), in N heads side by side."""

    def __init__(
        self, config: BertConfig, position_embedding_type: str | None = None, layer_idx: int | None = None
    ) -> None:
        super().__init__()
        self.layer_idx, self.is_decoder = layer_idx, config.is_decoder
        self.heads = list(range(config.num_attention_heads))  # original numbers of the heads that are left
        self.attention_head_size = config.attention_head_size
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = nn.Dropout(config.attention_probs_dropout_prob)
        self.position_embedding_type = position_embedding_type or config.position_embedding_type
        if self.position_embedding_type != "absolute":
            num_distances = 2 * config.max_position_embeddings - 1
            self.distance_embedding = nn.Embedding(num_distances, config.attention_head_size)
        self.set_backend("auto")

    def set_backend(self, name: str) -> None:
        """Choose the attention kernel: auto, eager or sdpa."""
        self.kernel = choose_backend(
            name, position_embedding_type=self.position_embedding_type, attention_dropout=self.dropout.p
        )

    @takes_hub_arguments(hub_parts.read_attention)
    def forward(
        self,
        hidden_states: Tensor,
        plan: AttentionPlan = PLAIN,
        *,
        encoder_hidden_states: Tensor | None = None,
        cache: LayerCache | None = None,
    ) -> tuple[Tensor, Maps | None]:
        q = self.split_heads(self.query(hidden_states))
        if encoder_hidden_states is None:
            k, v = self.split_heads(self.key(hidden_states)), self.split_heads(self.value(hidden_states))
            if cache is not None:
                k, v = cache.append(k, v)
        elif cache is not None and cache.cross is not None:
            k, v = cache.cross
        else:
            k = self.split_heads(self.key(encoder_hidden_states))
            v = self.split_heads(self.value(encoder_hidden_states))
            if cache is not None:
                cache.cross = (k, v)
        relative = self.relative_positions() or plan.shared
        context, maps = attention(q, k, v, plan, relative=relative, dropout=self.dropout_now(), kernel=self.kernel)
        return self.join_heads(context), maps

    def split_heads(self, x: Tensor) -> Tensor:
        """`[B, S, N·H]` → `[B, N, S, H]`; packed `[T, N·H]` → `[T, N, H]`."""
        by_head = (len(self.heads), self.attention_head_size)
        x = x.view(x.shape[:-1] + by_head)
        return x.transpose(1, 2) if x.dim() == 4 else x

    def join_heads(self, context: Tensor) -> Tensor:
        """`[batch, heads, length, size]` → `[batch, length, heads × size]`."""
        return (context.transpose(1, 2) if context.dim() == 4 else context).flatten(-2)

    def relative_positions(self) -> RelativePositions | None:
        """The distance table of relative positions; None for absolute ones."""
        if self.position_embedding_type == "absolute":
            return None
        return RelativePositions(
            self.distance_embedding.weight, with_keys=self.position_embedding_type == "relative_key_query"
        )


class BertSelfOutput(nn.Module):
    """What attention gathered, mixed over the heads, added to what came in."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, hidden_states: Tensor, input_tensor: Tensor) -> Tensor:
        normalised: Tensor = self.LayerNorm(self.dropout(self.dense(hidden_states)) + input_tensor)
        return normalised


class BertAttention(hub_parts.AttentionNames):
    """Attention and its output projection; heads can be pruned away from it."""

    def __init__(
        self, config: BertConfig, position_embedding_type: str | None = None, layer_idx: int | None = None
    ) -> None:
        super().__init__()
        self.self = BertSelfAttention(config, position_embedding_type, layer_idx)
        self.output = BertSelfOutput(config)

    @takes_hub_arguments(hub_parts.read_attention)
    def forward(
        self,
        hidden_states: Tensor,
        plan: AttentionPlan = PLAIN,
        *,
        encoder_hidden_states: Tensor | None = None,
        cache: LayerCache | None = None,
    ) -> tuple[Tensor, Maps | None]:
        context, maps = run_attention(
            self.self, hidden_states, plan, encoder_hidden_states=encoder_hidden_states, cache=cache
        )
        return self.output(context, hidden_states), maps

    def prune_heads(self, heads: Sequence[int]) -> None:
        """Remove heads, by their original numbers; those already removed are skipped."""
        kept = [slot for slot, head in enumerate(self.self.heads) if head not in set(heads)]
        width = self.self.attention_head_size
        columns = torch.cat([torch.arange(slot * width, (slot + 1) * width) for slot in kept] or [torch.arange(0)])
        for name in ("query", "key", "value"):
            setattr(self.self, name, kept_features(getattr(self.self, name), columns, dim=0))
        self.output.dense = kept_features(self.output.dense, columns, dim=1)
        self.self.heads = [self.self.heads[slot] for slot in kept]


class BertIntermediate(nn.Module):
    """The wide half of the feed-forward network."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.intermediate_size)
        self.intermediate_act_fn = activation(config.hidden_act)

    def forward(self, hidden_states: Tensor) -> Tensor:
        return self.intermediate_act_fn(self.dense(hidden_states))


class BertOutput(nn.Module):
    """The narrow half, added to what came in."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.intermediate_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, hidden_states: Tensor, input_tensor: Tensor) -> Tensor:
        normalised: Tensor = self.LayerNorm(self.dropout(self.dense(hidden_states)) + input_tensor)
        return normalised


class BertLayer(hub_parts.LayerNames):
    """One layer: attention, in a decoder also attention to the encoder's states, then feed-forward."""

    def __init__(self, config: BertConfig, layer_idx: int | None = None) -> None:
        super().__init__()
        self.attention = BertAttention(config, layer_idx=layer_idx)
        if config.add_cross_attention:
            self.crossattention = BertAttention(config, "absolute", layer_idx)
        self.intermediate = BertIntermediate(config)
        self.output = BertOutput(config)
        self.chunk_size_feed_forward = config.chunk_size_feed_forward

    @takes_hub_arguments(hub_parts.read_layer)
    def forward(
        self,
        hidden_states: Tensor,
        plan: AttentionPlan = PLAIN,
        *,
        encoder_hidden_states: Tensor | None = None,
        cross_plan: AttentionPlan = PLAIN,
        cache: LayerCache | None = None,
    ) -> tuple[Tensor, Maps | None, Maps | None]:
        """New hidden states, the self-attention maps and the cross-attention maps."""
        hidden_states, maps = run_attention(self.attention, hidden_states, plan, cache=cache)
        cross_maps = None
        if encoder_hidden_states is not None:
            hidden_states, cross_maps = run_attention(
                self.crossattention, hidden_states, cross_plan, encoder_hidden_states=encoder_hidden_states, cache=cache
            )
        fed = apply_chunking_to_forward(self.feed_forward_chunk, self.chunk_size_feed_forward, -2, hidden_states)
        return fed, maps, cross_maps

    def feed_forward_chunk(self, hidden_states: Tensor) -> Tensor:
        """The feed-forward network on some of the tokens."""
        fed: Tensor = self.output(self.intermediate(hidden_states), hidden_states)
        return fed

    def keep_neurons(self, neurons: Tensor) -> None:
        """Remove all neurons of the feed-forward network but these."""
        self.intermediate.dense = kept_features(self.intermediate.dense, neurons, dim=0)
        self.output.dense = kept_features(self.output.dense, neurons, dim=1)


class BertEncoder(hub_parts.EncoderNames):
    """The layers, one after the other. What callers want to see on the way is collected here and nowhere else."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        layers = [BertLayer(config, layer_idx=number) for number in range(config.num_hidden_layers)]
        self.layer: Sequence[BertLayer] = nn.ModuleList(layers)  # type: ignore[assignment]
        self.relative_attention_bias = shared_bias_table(config.position_buckets, config.num_attention_heads)
        self.checkpointing: dict[str, Any] | None = None  # arguments of torch's checkpoint, when it is on

    @takes_hub_arguments(hub_parts.read_encoder)
    def forward(
        self,
        hidden_states: Tensor,
        plan: AttentionPlan = PLAIN,
        *,
        head_masks: Tensor | None = None,  # [layers, N]
        encoder_hidden_states: Tensor | None = None,
        cross_plan: AttentionPlan = PLAIN,
        cache: KeyValueCache | None = None,
        output_hidden_states: bool = False,
        output_attentions: WantedMaps = False,
    ) -> BertEncoderOutput:
        plan = with_shared_bias(plan, self.relative_attention_bias, hidden_states)
        states = [hidden_states]
        all_maps: list[Maps | None] = []
        all_cross_maps: list[Maps | None] = []
        for number, layer in enumerate(self.layer):
            heads = hub_parts.heads_of(layer, self.config)
            cross = PLAIN
            if encoder_hidden_states is not None:
                cross_heads = hub_parts.heads_of(layer, self.config, "crossattention")
                cross = _layer_plan(cross_plan, number, cross_heads, head_masks, output_attentions)
            hidden_states, maps, cross_maps = run_layer(
                layer,
                hidden_states,
                _layer_plan(plan, number, heads, head_masks, output_attentions),
                encoder_hidden_states=encoder_hidden_states,
                cross_plan=cross,
                cache=None if cache is None else cache.layers[number],
                checkpointing=self.checkpointing if self.training else None,
            )
            if output_hidden_states:
                states.append(hidden_states)
            all_maps.append(maps)
            all_cross_maps.append(cross_maps)
        return BertEncoderOutput(
            last_hidden_state=hidden_states,
            past_key_values=None if cache is None else cache.given,
            hidden_states=tuple(states) if output_hidden_states else None,
            attentions=_collected(all_maps, output_attentions),
            cross_attentions=None if encoder_hidden_states is None else _collected(all_cross_maps, output_attentions),
        )


def _layer_plan(
    plan: AttentionPlan, number: int, heads: Sequence[int], head_masks: Tensor | None, wanted: WantedMaps
) -> AttentionPlan:
    """One layer's share of the plan: its head mask and maps, without the heads that were pruned."""
    bias = plan.bias
    head_mask = None if head_masks is None else head_masks[number, heads]
    if bias is not None and bias.shape[1] > 1:
        bias = bias[:, heads]
    maps = wanted if isinstance(wanted, bool) else tuple(heads.index(h) for layer, h in wanted if layer == number)
    shared = plan.shared and plan.shared.of_heads(heads)
    return replace(plan, bias=bias, head_mask=head_mask, maps=maps if maps != () else False, shared=shared)


def _collected(all_maps: list[Maps | None], wanted: WantedMaps) -> Attentions | None:
    """All layers' maps as a tuple, or `{(layer, head): map}` for the pairs that were asked for."""
    if isinstance(wanted, bool):
        return tuple(all_maps) if wanted else None
    by_pair: dict[tuple[int, int], Maps] = {}
    for number, maps in enumerate(all_maps):
        pairs = [pair for pair in wanted if pair[0] == number]
        for slot, pair in enumerate(pairs):
            assert maps is not None  # the layer's plan asked for these
            by_pair[pair] = maps[slot]
    return by_pair


class BertPooler(nn.Module):
    """The first token's state, through one more layer: the vector that stands for the whole text."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = nn.Tanh()

    def forward(self, hidden_states: Tensor, packing: Packing | None = None) -> Tensor:
        first = hidden_states[:, 0] if packing is None else hidden_states[packing.first_tokens]
        pooled: Tensor = self.activation(self.dense(first))
        return pooled


class BertModel(Answers[BertModelOutput], BertPreTrainedModel):
    """BERT without a prediction head: ids in, hidden states out.

    Give `input_ids` as `[batch, length]` with an `attention_mask` for padding, or pack texts end to end as `[tokens]`
    and say where they end with `cu_seqlens` (`[0, n₁, n₁+n₂, …]`); the answers are the same.

    >>> model = BertModel(BertConfig.preset("tiny", vocab_size=100)).eval()
    >>> model(torch.tensor([[2, 45, 3]])).last_hidden_state.shape
    torch.Size([1, 3, 128])
    """

    def __init__(self, config: BertConfig, add_pooling_layer: bool = True) -> None:
        super().__init__(config)
        self.embeddings = BertEmbeddings(config)
        self.encoder = BertEncoder(config)
        self.pooler = BertPooler(config) if add_pooling_layer and config.has_pooler else None
        for layer, heads in config.pruned_heads.items():
            self.encoder.layer[layer].attention.prune_heads(heads)
        for layer, size in enumerate(config.intermediate_sizes or ()):
            self.encoder.layer[layer].keep_neurons(torch.arange(size))
        self.init_weights()

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
        cache_position: Tensor | None = None,  # the hub's; the cache itself says where the input begins
        cu_seqlens: Tensor | None = None,
    ) -> BertModelOutput | tuple[Any, ...]:
        """A `BertModelOutput`, or with `return_dict=False` the plain tuple."""
        config = self.config
        packing = inputs.read_packing(input_ids, inputs_embeds, cu_seqlens)
        given = input_ids if input_ids is not None else inputs_embeds
        batch = 1 if packing is not None or given is None else given.shape[0]
        cache = inputs.read_cache(self, past_key_values, use_cache, packing, batch)
        past = 0 if cache is None else cache.length
        inputs.check(self, input_ids, token_type_ids, position_ids, inputs_embeds, packing, past)

        if packing is not None and position_ids is None:
            position_ids = inputs.positions(self.embeddings, input_ids, packing.max_length, packing=packing)
        hidden_states = self.embeddings(input_ids, token_type_ids, position_ids, inputs_embeds, past)
        plan = inputs.self_plan(self, hidden_states, attention_mask, packing, past)
        cross_plan = inputs.cross_plan(self, hidden_states, encoder_hidden_states, encoder_attention_mask, packing)
        encoded = run_encoder(
            self.encoder,
            hidden_states,
            plan,
            head_masks=inputs.layer_head_masks(config, head_mask),
            encoder_hidden_states=encoder_hidden_states,
            cross_plan=cross_plan,
            cache=cache,
            output_hidden_states=config.output_hidden_states if output_hidden_states is None else output_hidden_states,
            output_attentions=inputs.wanted_maps(self, output_attentions),
        )
        pooled = None if self.pooler is None else self.pooler(encoded.last_hidden_state, packing)
        if wants_dict(config, return_dict):
            return BertModelOutput(pooler_output=pooled, **encoded)
        # The hub's tuple keeps the pooler's place even when there is no pooler, unless there never is one.
        return (encoded.last_hidden_state, *((pooled,) if config.has_pooler else ()), *encoded.to_tuple()[1:])


def apply_chunking_to_forward(forward: Any, chunk_size: int, chunk_dim: int, *inputs: Tensor) -> Tensor:
    """Apply `forward` to pieces of its inputs along `chunk_dim` and join the results; 0 means whole.

    The last piece may be shorter than `chunk_size`.
    """
    if chunk_size < 0:
        raise ConfigError("{chunk_size:is} it must be 0 (whole) or a length.", chunk_size=chunk_size)
    if chunk_size == 0 or inputs[0].shape[chunk_dim] <= chunk_size:
        whole: Tensor = forward(*inputs)
        return whole
    pieces = zip(*(torch.split(x, chunk_size, dim=chunk_dim) for x in inputs), strict=True)
    return torch.cat([forward(*piece) for piece in pieces], dim=chunk_dim)
