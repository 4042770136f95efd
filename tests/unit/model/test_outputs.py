"""Outputs: attributes, keys, indices, tuples; caches and decoders as users meet them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import bertie
from unit.model.plain import some_ids, tiny


def test_an_output_reads_four_ways() -> None:
    model = tiny("BertForSequenceClassification")
    ids, labels = some_ids(2, 4), torch.tensor([0, 1])
    out = model(ids, labels=labels, output_hidden_states=True)
    assert list(out) == list(out.keys()) == ["loss", "logits", "hidden_states"]
    assert out["logits"] is out.logits
    assert out[1] is out.logits
    assert out[:2] == (out.loss, out.logits)
    loss, logits, states = out.to_tuple()
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


def joined() -> Any:
    return bertie.BertEncoderDecoder.from_encoder_decoder(
        tiny(), tiny(hidden_size=48), decoder_start_token_id=1, pad_token_id=0
    )


@pytest.mark.parametrize("make", [lambda: tiny("BertLMHeadModel", is_decoder=True), joined], ids=["decoder", "joined"])
def test_generation_does_not_ask_how_outputs_come(make: Any) -> None:
    model, prompts = make(), some_ids(2, 5)
    wanted = model.generate(prompts, max_length=10)
    assert torch.equal(model.generate(prompts, max_length=10, return_dict=False), wanted)
    model.config.return_dict = False
    assert torch.equal(model.generate(prompts, max_length=10), wanted)


@pytest.mark.parametrize("shape", [(3,), (2, 3)])
@pytest.mark.parametrize("options", [{"num_beams": 2}, {"do_sample": True, "num_return_sequences": 2, "top_k": 1}])
def test_a_head_mask_is_not_repeated_with_the_prompts(shape: tuple[int, ...], options: dict[str, Any]) -> None:
    model, prompts = tiny("BertLMHeadModel", is_decoder=True), some_ids(2, 5)
    plain = model.generate(prompts, max_length=10, **options)
    assert torch.equal(model.generate(prompts, head_mask=torch.ones(shape), max_length=10, **options), plain)


def test_encoder_states_are_repeated_with_the_prompts() -> None:
    model = tiny("BertLMHeadModel", is_decoder=True, add_cross_attention=True)
    prompts, states = some_ids(2, 5), torch.randn(2, 4, 24)
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    both = model.generate(
        prompts, encoder_hidden_states=states, encoder_attention_mask=mask, num_beams=3, max_length=10
    )
    for row, length in enumerate((4, 2)):
        alone = {"encoder_hidden_states": states[row : row + 1, :length], "num_beams": 3, "max_length": 10}
        assert torch.equal(both[row : row + 1], model.generate(prompts[row : row + 1], **alone))


def test_generation_leaves_every_module_in_its_mode() -> None:
    model = tiny("BertLMHeadModel", is_decoder=True).train()
    model.bert.embeddings.eval()
    modes = [module.training for module in model.modules()]
    model.generate(some_ids(2, 5), max_length=8)
    assert [module.training for module in model.modules()] == modes
    with pytest.raises(bertie.BertieError):
        model.generate(some_ids(2, 5), max_length=3)
    assert [module.training for module in model.modules()] == modes


def test_ends_may_be_given_as_one_several_or_a_tensor() -> None:
    model, prompts = tiny("BertLMHeadModel", is_decoder=True, eos_token_id=9), some_ids(2, 5)
    wanted = model.generate(prompts, max_length=12, min_length=8)
    for ends in (9, [9], {9}, torch.tensor(9), torch.tensor([9])):
        assert torch.equal(model.generate(prompts, max_length=12, min_length=8, eos_token_id=ends), wanted)
    with torch.no_grad():
        model.cls.predictions.bias[9] = 50.0
    assert model.generate(prompts, max_length=12).shape == (2, 6)
    assert model.generate(prompts, max_length=12, eos_token_id=[]).shape == (2, 12)


def test_an_encoder_decoder_answers_as_one_model() -> None:
    model = joined()
    assert model.get_input_embeddings() is model.encoder.get_input_embeddings()
    assert model.get_output_embeddings() is model.decoder.get_output_embeddings()
    between = sum(p.numel() for p in model.enc_to_dec_proj.parameters())
    for options in ({}, {"exclude_embeddings": True}):
        parts = model.encoder.num_parameters(**options) + model.decoder.num_parameters(**options)
        assert model.num_parameters(**options) == parts + between
    model.encoder.requires_grad_(False)
    assert model.num_parameters(only_trainable=True) == model.decoder.num_parameters() + between
    assert (model.device, model.dtype) == (torch.device("cpu"), torch.float32)
    assert model.to("meta", torch.bfloat16).device == torch.device("meta")
    assert model.dtype == torch.bfloat16


def test_an_encoder_decoder_ties_and_checkpoints_both() -> None:
    model = joined()
    head = model.get_output_embeddings()
    head.weight = torch.nn.Parameter(head.weight.detach().clone())
    model.tie_weights()
    assert head.weight is model.decoder.get_input_embeddings().weight
    model.gradient_checkpointing_enable({"preserve_rng_state": False})
    for side in (model.encoder, model.decoder.bert):
        assert side.encoder.checkpointing == {"use_reentrant": False, "preserve_rng_state": False}
    model.gradient_checkpointing_disable()
    assert not model.encoder.is_gradient_checkpointing
    assert not model.decoder.is_gradient_checkpointing


def test_encoder_outputs_may_be_a_tuple() -> None:
    model, ids, labels = joined(), some_ids(2, 5), some_ids(2, 3)
    wanted = model(ids, labels=labels)
    for encoded in (model.encode(ids), model.encoder(ids, return_dict=False), (model.encode(ids)[0],)):
        assert torch.equal(model(encoder_outputs=encoded, labels=labels).logits, wanted.logits)
