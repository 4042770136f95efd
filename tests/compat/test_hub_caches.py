"""transformers' cache objects as `past_key_values`: taken, filled and given back as transformers' own BERT does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from two_libraries import SIZES, library, transformers  # noqa: F401

import bertie
from bertie.errors import InputError

DECODER = {**SIZES, "is_decoder": True, "bos_token_id": 1, "eos_token_id": 2}
IDS = torch.arange(3, 17).reshape(2, 7)
STATES = torch.linspace(-1, 1, 2 * 5 * 24).reshape(2, 5, 24)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """A decoder without cross-attention and one with it."""
    found = {}
    for cross in (False, True):
        torch.manual_seed(2)
        found[cross] = tmp_path_factory.mktemp("decoder")
        config = bertie.BertConfig(**DECODER, add_cross_attention=cross)
        bertie.BertLMHeadModel(config).save_pretrained(found[cross])
    return found


def _two(folders: dict[bool, Path], transformers: Any, cross: bool = False) -> list[Any]:
    return [one.BertLMHeadModel.from_pretrained(folders[cross]).eval() for one in (bertie, transformers)]


@torch.no_grad()
def test_a_dynamic_cache_grows_in_place_and_comes_back(folders: dict[bool, Path], transformers: Any) -> None:
    caches = [transformers.DynamicCache(), transformers.DynamicCache()]
    models = _two(folders, transformers)
    for start, end in ((0, 4), (4, 5), (5, 7)):
        found = [
            model(IDS[:, start:end], past_key_values=cache, use_cache=True)
            for model, cache in zip(models, caches, strict=True)
        ]
        assert torch.allclose(found[0].logits, found[1].logits, atol=1e-5)
        assert found[0].past_key_values is caches[0]
        assert caches[0].get_seq_length() == caches[1].get_seq_length() == end
    for ours, theirs in zip(*(cache.layers for cache in caches), strict=True):
        assert torch.allclose(ours.keys, theirs.keys, atol=1e-5)
        assert torch.allclose(ours.values, theirs.values, atol=1e-5)


@torch.no_grad()
def test_an_encoder_decoder_cache_keeps_the_encoders_keys(folders: dict[bool, Path], transformers: Any) -> None:
    models = _two(folders, transformers, cross=True)
    caches = [
        transformers.EncoderDecoderCache(transformers.DynamicCache(), transformers.DynamicCache()) for _ in models
    ]
    for start, end in ((0, 4), (4, 7)):
        # After the first step the encoder's states are no longer looked at.
        states = STATES if start == 0 else STATES * 0
        found = [
            model(IDS[:, start:end], encoder_hidden_states=states, past_key_values=cache, use_cache=True)
            for model, cache in zip(models, caches, strict=True)
        ]
        assert torch.allclose(found[0].logits, found[1].logits, atol=1e-5)
        assert found[0].past_key_values is caches[0]
    assert caches[0].is_updated == caches[1].is_updated == {0: True, 1: True}
    assert caches[0].cross_attention_cache.get_seq_length() == 5
    for ours, theirs in zip(*(cache.to_legacy_cache() for cache in caches), strict=True):
        assert len(ours) == len(theirs) == 4
        assert all(torch.allclose(one, other, atol=1e-5) for one, other in zip(ours, theirs, strict=True))


@torch.no_grad()
def test_caches_pass_from_one_library_to_the_other(folders: dict[bool, Path], transformers: Any) -> None:
    ours, theirs = _two(folders, transformers)
    begun = [model(IDS[:, :4], use_cache=True).past_key_values for model in (ours, theirs)]
    whole = theirs(IDS).logits[:, 4:]
    to_ours = ours(IDS[:, 4:], past_key_values=begun[1], use_cache=True)
    assert torch.allclose(to_ours.logits, whole, atol=1e-5)
    assert to_ours.past_key_values is begun[1]
    legacy = begun[0].to_legacy_cache()
    to_theirs = theirs(IDS[:, 4:], past_key_values=transformers.DynamicCache.from_legacy_cache(legacy), use_cache=True)
    assert torch.allclose(to_theirs.logits, whole, atol=1e-5)
    tuples = ours(IDS[:, 4:], past_key_values=legacy, use_cache=True)
    assert torch.allclose(tuples.logits, whole, atol=1e-5)
    assert legacy[0][0].shape[-2] == 4  # tuples are never added to
    assert tuples.past_key_values.get_seq_length() == 7


@pytest.mark.parametrize("settings", [{}, {"num_beams": 3}], ids=["greedy", "beams"])
@torch.no_grad()
def test_generate_fills_the_cache_it_is_given(
    settings: dict[str, Any], folders: dict[bool, Path], transformers: Any
) -> None:
    found = []
    for model in _two(folders, transformers):
        cache = transformers.EncoderDecoderCache(transformers.DynamicCache(), transformers.DynamicCache())
        asked = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, **settings}
        found.append(model.generate(IDS, attention_mask=torch.ones_like(IDS), past_key_values=cache, **asked))
        assert cache.get_seq_length() == IDS.shape[1] + 5
    assert torch.equal(*found)
    model = _two(folders, transformers)[0]
    started = model(IDS[:, :5], use_cache=True).past_key_values
    asked = {"max_new_tokens": 6, "min_new_tokens": 6}
    assert torch.equal(model.generate(IDS, past_key_values=started, **asked), model.generate(IDS, **asked))
    with pytest.raises(InputError, match="holds 7 positions"):
        model.generate(IDS, past_key_values=model(IDS, use_cache=True).past_key_values, num_beams=2)


@torch.no_grad()
def test_an_encoder_reads_a_dynamic_cache_as_a_prefix_and_leaves_it(transformers: Any) -> None:
    torch.manual_seed(3)
    model = bertie.BertModel(bertie.BertConfig(**SIZES)).eval()
    prefix = [(torch.randn(2, 3, 4, 8), torch.randn(2, 3, 4, 8)) for _ in range(2)]
    cache = transformers.DynamicCache.from_legacy_cache(tuple(prefix))
    mask = torch.ones(2, 11, dtype=torch.long)
    wanted = model(IDS, attention_mask=mask, past_key_values=prefix).last_hidden_state
    assert torch.equal(model(IDS, attention_mask=mask, past_key_values=cache).last_hidden_state, wanted)
    assert cache.get_seq_length() == 4


@torch.no_grad()
def test_layers_and_attention_take_the_cache_too(folders: dict[bool, Path], transformers: Any) -> None:
    found = []
    for model in _two(folders, transformers):
        cache, states = transformers.DynamicCache(), STATES
        layer = model.bert.encoder.layer[0]
        first = layer(states[:, :3], past_key_values=cache)[0]
        second = layer(states[:, 3:4], past_key_values=cache)[0]
        assert cache.get_seq_length() == 4
        found.append(torch.cat([first, second], dim=1))
    assert torch.allclose(*found, atol=1e-5)


def test_caches_that_do_not_hold_all_positions_are_refused(folders: dict[bool, Path], transformers: Any) -> None:
    model, _ = _two(folders, transformers)
    config = transformers.BertConfig(**DECODER)
    with pytest.raises(InputError, match="StaticCache and gave 20 positions back"):
        model(IDS, past_key_values=transformers.StaticCache(config=config, max_cache_len=20), use_cache=True)
    short = transformers.DynamicCache.from_legacy_cache(((torch.zeros(2, 3, 4, 8),) * 2,))
    with pytest.raises(InputError, match="holds 1 layers; the model has 2"):
        model(IDS, past_key_values=short, use_cache=True)
