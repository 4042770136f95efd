"""Parts of the encoder replaced by subclasses with the hub's forward: the same class, swapped into both libraries."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from two_libraries import IDS, MASK, SIZES, base, library, transformers  # noqa: F401

import bertie
from bertie.errors import InputError


def _parts(library: Any) -> Any:
    return library if library is bertie else library.models.bert.modeling_bert


def _sharper(library: Any) -> Any:
    """Attention with scores times two, written as transformers 4.57 writes its own."""

    class Sharper(_parts(library).BertSelfAttention):  # type: ignore[misc]
        def forward(
            self,
            hidden_states: Tensor,
            attention_mask: Tensor | None = None,
            head_mask: Tensor | None = None,
            encoder_hidden_states: Tensor | None = None,
            past_key_values: Any = None,
            output_attentions: bool | None = False,
            cache_position: Tensor | None = None,
        ) -> tuple[Tensor, ...]:
            batch, length, _ = hidden_states.shape
            shape = (batch, -1, self.num_attention_heads, self.attention_head_size)
            read = hidden_states if encoder_hidden_states is None else encoder_hidden_states
            query = self.query(hidden_states).view(shape).transpose(1, 2)
            key, value = self.key(read).view(shape).transpose(1, 2), self.value(read).view(shape).transpose(1, 2)
            if past_key_values is not None and encoder_hidden_states is None:
                past = getattr(past_key_values, "self_attention_cache", past_key_values)
                key, value = past.update(key, value, self.layer_idx, {"cache_position": cache_position})
            scores = 2 * query @ key.transpose(-1, -2) / math.sqrt(self.attention_head_size)
            if attention_mask is not None:
                scores = scores + attention_mask
            maps = self.dropout(scores.softmax(-1))
            if head_mask is not None:
                maps = maps * head_mask
            context = (maps @ value).transpose(1, 2).reshape(batch, length, self.all_head_size)
            return (context, maps) if output_attentions else (context,)

    return Sharper


def _with(library: Any, folder: Path, name: str = "BertModel", **settings: Any) -> Any:
    model = getattr(library, name).from_pretrained(folder, attn_implementation="eager", **settings).eval()
    encoder = getattr(model, "bert", model).encoder
    for number, layer in enumerate(encoder.layer):
        sharper = _sharper(library)(model.config, layer_idx=number)
        sharper.load_state_dict(layer.attention.self.state_dict())
        layer.attention.self = sharper.eval()
    return model


def _close(first: Any, second: Any) -> bool:
    return torch.allclose(first, second, atol=1e-5)


def test_attention_of_ones_own(base: Path, transformers: Any) -> None:
    ours, theirs, plain = _with(bertie, base), _with(transformers, base), bertie.BertModel.from_pretrained(base)
    head_mask = torch.tensor([1.0, 0.0, 0.5])
    for given in ({}, {"attention_mask": MASK}, {"attention_mask": MASK, "head_mask": head_mask}):
        found = [m(IDS, output_attentions=True, output_hidden_states=True, **given) for m in (ours, theirs)]
        assert _close(found[0].last_hidden_state, found[1].last_hidden_state)
        assert not _close(found[0].last_hidden_state, plain(IDS, **given).last_hidden_state)
        assert all(_close(*maps) for maps in zip(*(one.attentions for one in found), strict=True))
    assert ours(IDS).attentions is None


def test_attention_of_ones_own_in_a_decoder_with_a_cache(tmp_path: Path, transformers: Any) -> None:
    torch.manual_seed(4)
    config = bertie.BertConfig(**SIZES, is_decoder=True, bos_token_id=1, eos_token_id=2)
    bertie.BertLMHeadModel(config).save_pretrained(tmp_path)
    found = []
    for one in (bertie, transformers):
        model = _with(one, tmp_path, "BertLMHeadModel")
        whole = model(IDS, attention_mask=MASK.flip(1)).logits
        begun = model(IDS[:, :5], use_cache=True)
        rest = model(IDS[:, 5:], past_key_values=begun.past_key_values, use_cache=True)
        found.append(torch.cat([whole, begun.logits, rest.logits], dim=1))
    seen = MASK.flip(1).bool()
    assert _close(found[0][:, :8][seen], found[1][:, :8][seen])
    assert _close(found[0][:, 8:], found[1][:, 8:])


@pytest.mark.parametrize("maps", [False, True])
def test_a_layer_and_an_encoder_of_ones_own(maps: bool, base: Path, transformers: Any) -> None:
    found = []
    for one in (bertie, transformers):
        parts = _parts(one)

        class Halved(parts.BertLayer):  # type: ignore[misc,name-defined]
            def forward(
                self, hidden_states: Tensor, attention_mask: Any = None, head_mask: Any = None, *rest: Any, **named: Any
            ) -> Any:
                answer = super().forward(hidden_states, attention_mask, head_mask, *rest, **named)
                return (answer[0] / 2, *answer[1:])

        class Named(parts.BertLayer):  # type: ignore[misc,name-defined]
            def forward(
                self,
                hidden_states: Tensor,
                attention_mask: Any = None,
                head_mask: Any = None,
                encoder_hidden_states: Any = None,
                encoder_attention_mask: Any = None,
                past_key_values: Any = None,
                output_attentions: Any = False,
                cache_position: Any = None,
            ) -> Any:
                attended = self.attention(hidden_states, attention_mask, output_attentions=output_attentions)
                fed = self.output(self.intermediate(attended[0]), attended[0])
                return (fed * 3, attended[1]) if output_attentions else (fed * 3,)

        class Reversed(parts.BertEncoder):  # type: ignore[misc,name-defined]
            def forward(
                self,
                hidden_states: Tensor,
                attention_mask: Any = None,
                output_attentions: Any = False,
                **named: Any,
            ) -> Any:
                kept = []
                for layer in list(self.layer)[::-1]:
                    answer = layer(hidden_states, attention_mask, output_attentions=output_attentions)
                    hidden_states = answer[0]
                    kept.append(answer[1] if output_attentions else None)
                output = transformers.modeling_outputs.BaseModelOutputWithPastAndCrossAttentions
                return output(last_hidden_state=hidden_states, attentions=tuple(kept) if output_attentions else None)

        model = one.BertModel.from_pretrained(base, attn_implementation="eager").eval()
        for number, kind in enumerate((Halved, Named)):
            layer = kind(model.config)
            layer.load_state_dict(model.encoder.layer[number].state_dict())
            model.encoder.layer[number] = layer.eval()
        found.append([model(IDS, attention_mask=MASK, output_attentions=maps)])
        encoder = Reversed(model.config).eval()
        encoder.layer = model.encoder.layer
        model.encoder = encoder
        found[-1].append(model(IDS, attention_mask=MASK, output_attentions=maps))
    for ours, theirs in zip(*found, strict=True):
        assert _close(ours.last_hidden_state, theirs.last_hidden_state)
        assert _close(ours.pooler_output, theirs.pooler_output)
        if maps:
            assert all(_close(*pair) for pair in zip(ours.attentions, theirs.attentions, strict=True))


def test_a_packed_batch_is_refused_by_name(base: Path) -> None:
    model = _with(bertie, base)
    with pytest.raises(InputError, match="Sharper has the hub's forward, which cannot be asked for a packed batch"):
        model(IDS[0], cu_seqlens=torch.tensor([0, 3, 8], dtype=torch.int32))
