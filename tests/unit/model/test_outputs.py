"""Outputs: attributes, keys, indices, unpacking, tuples; caches and decoders as users meet them."""

from __future__ import annotations

import pytest
import torch
from torch.utils import _pytree as pytree

import bertie
from unit.model.plain import some_ids, tiny


def test_an_output_reads_four_ways() -> None:
    model = tiny("BertForSequenceClassification")
    ids, labels = some_ids(2, 4), torch.tensor([0, 1])
    out = model(ids, labels=labels, output_hidden_states=True)
    assert out.keys() == ["loss", "logits", "hidden_states"]
    assert out["logits"] is out.logits
    assert out[1] is out.logits
    assert out[:2] == (out.loss, out.logits)
    loss, logits, states = out
    assert loss is out.loss
    assert logits is out.logits
    assert len(states) == 3
    assert len(out) == 3
    assert "logits" in out
    assert "attentions" not in out
    assert out.get("attentions") is None
    assert dict(out)["loss"] is out.loss
    with pytest.raises(KeyError, match="attentions"):
        out["attentions"]
    plain = model(ids, labels=labels, output_hidden_states=True, return_dict=False)
    assert isinstance(plain, tuple)
    assert torch.equal(plain[1], logits)


def test_config_can_ask_for_states_maps_and_tuples() -> None:
    model = tiny(output_hidden_states=True, output_attentions=True, return_dict=False)
    hidden, pooled, states, maps = model(some_ids(2, 4))
    assert hidden.shape == (2, 4, 24)
    assert pooled.shape == (2, 24)
    assert len(states) == 3
    assert torch.equal(states[-1], hidden)
    assert len(maps) == 2
    assert maps[0].shape == (2, 3, 4, 4)


def test_outputs_are_pytrees() -> None:
    out = tiny()(some_ids(2, 4), output_hidden_states=True)
    leaves, spec = pytree.tree_flatten(out)
    assert len(leaves) == 5
    again = pytree.tree_unflatten(leaves, spec)
    assert again.pooler_output is out.pooler_output


def test_the_cache_reads_like_the_legacy_tuple() -> None:
    model = tiny("BertLMHeadModel", is_decoder=True)
    cache = model(some_ids(2, 4)).past_key_values
    assert isinstance(cache, bertie.KeyValueCache)
    assert cache.length == cache.get_seq_length() == 4
    assert cache[0][0].shape == (2, 3, 4, 8)
    assert len(cache) == 2
    assert len(list(cache)) == 2


def test_model_compiles_and_exports_shapes() -> None:
    model = tiny()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    ids = some_ids(2, 6)
    assert torch.allclose(compiled(ids).last_hidden_state, model(ids).last_hidden_state, atol=1e-6)


def test_any_bert_becomes_a_decoder() -> None:
    encoder, other = tiny(), tiny(hidden_size=48, intermediate_size=20)
    pair = bertie.BertEncoderDecoder.from_encoder_decoder(
        encoder, other, decoder_start_token_id=1, pad_token_id=0, eos_token_id=5
    )
    assert pair.decoder.config.add_cross_attention
    assert not other.config.add_cross_attention
    same = pair.decoder.bert.encoder.layer[0].attention.self.query.weight
    assert torch.equal(same, other.encoder.layer[0].attention.self.query.weight)
    out = pair(some_ids(2, 5), labels=some_ids(2, 3))
    assert out.logits.shape == (2, 3, 61)
    assert pair.generate(some_ids(2, 5), max_length=8).shape[0] == 2
    with pytest.raises(bertie.BertieError, match="two vocabularies"):
        pair.resize_token_embeddings(5)


def test_sampling_follows_its_generator() -> None:
    model = tiny("BertLMHeadModel", is_decoder=True)
    prompts = some_ids(3, 4)

    def draw(seed: int) -> list[list[int]]:
        options = {"do_sample": True, "max_length": 15, "num_return_sequences": 2}
        return model.generate(prompts, generator=torch.Generator().manual_seed(seed), **options).tolist()

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)
    assert len(draw(1)) == 6
    assert not model.training
