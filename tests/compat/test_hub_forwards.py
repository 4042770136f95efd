"""Calls written for transformers give transformers' answers: whole models by position, and their parts."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import bertie
from compat.hub_cases import CLASSES, HEADS, inputs, labels, settings
from parity.oracle import check_same, check_same_gradients, pair


def parameters(cls: type) -> list[inspect.Parameter]:
    return list(inspect.signature(cls.forward).parameters.values())  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", CLASSES)
def test_the_hubs_arguments_come_first_and_in_its_order(name: str) -> None:
    theirs = [p for p in parameters(getattr(transformers, name)) if p.kind is not p.VAR_KEYWORD]
    ours = parameters(getattr(bertie, name))
    assert [p.name for p in ours[: len(theirs)]] == [p.name for p in theirs]
    assert [p.default for p in ours[: len(theirs)]] == [p.default for p in theirs]
    kinds = [[p.kind for p in parameters(getattr(library, name))] for library in (transformers, bertie)]
    assert len({inspect.Parameter.VAR_KEYWORD in found for found in kinds}) == 1


def test_the_encoder_decoders_arguments_are_the_hubs() -> None:
    theirs = [p.name for p in parameters(transformers.EncoderDecoderModel)[:-1]]
    ours = [p.name for p in parameters(bertie.BertEncoderDecoder)]
    assert ours[: len(theirs)] == theirs
    assert parameters(bertie.BertEncoderDecoder)[-1].kind is inspect.Parameter.VAR_KEYWORD


@pytest.mark.parametrize("name", CLASSES)
def test_the_trainer_finds_the_labels(name: str) -> None:
    find_labels = transformers.utils.find_labels
    assert find_labels(getattr(bertie, name)) == find_labels(getattr(transformers, name))


@pytest.mark.parametrize("name", CLASSES)
def test_a_call_by_position_with_everything(name: str) -> None:
    theirs, ours = pair(name, **settings(name))
    given = inputs(name, 3, 7)
    positions = torch.arange(7).expand_as(given["input_ids"])
    head_mask = torch.tensor([[1.0, 0.0, 1.0], [1.0, 1.0, 0.5]])
    found = labels(name, 3, 7)
    arguments: dict[str, Any] = given | {"position_ids": positions, "head_mask": head_mask} | found
    arguments |= {"output_attentions": True, "output_hidden_states": True, "return_dict": False}
    names = [p.name for p in parameters(getattr(transformers, name))[1:] if p.kind is not p.VAR_KEYWORD]
    by_position = [arguments.get(argument) for argument in names]
    their_answer, our_answer = theirs(*by_position), ours(*by_position)
    assert isinstance(our_answer, tuple)
    check_same(their_answer, our_answer)
    if found:
        check_same_gradients(theirs, ours, their_answer[0], our_answer[0])


@pytest.mark.parametrize("name", HEADS)
def test_embeddings_in_place_of_ids(name: str) -> None:
    theirs, ours = pair(name, **settings(name))
    given = inputs(name, 2, 5) | labels(name, 2, 5)
    given["inputs_embeds"] = ours.get_input_embeddings()(given.pop("input_ids")).detach()
    check_same(theirs(**given), ours(**given))


def test_the_older_name_of_the_next_sentence_label() -> None:
    theirs, ours = pair("BertForNextSentencePrediction")
    given = inputs("BertForNextSentencePrediction", 2, 5)
    losses = []
    for model in (theirs, ours):
        with pytest.warns(FutureWarning, match="next_sentence_label"):
            losses.append(model(**given, next_sentence_label=torch.tensor([0, 1])).loss)
    check_same(losses[0], losses[1])
    with pytest.raises(TypeError, match="unexpected keyword argument 'lables'"):
        ours(**given, lables=torch.tensor([0, 1]))


@pytest.mark.parametrize("count", [5, torch.tensor(11)])
def test_a_loss_over_part_of_a_batch(count: Any) -> None:
    theirs, ours = pair("BertLMHeadModel", is_decoder=True)
    given = inputs("BertLMHeadModel", 2, 5) | labels("BertLMHeadModel", 2, 5)
    check_same(theirs(**given, num_items_in_batch=count).loss, ours(**given, num_items_in_batch=count).loss)


def test_torchscripts_configuration_asks_for_tuples() -> None:
    _, ours = pair("BertForSequenceClassification")
    given = inputs("BertForSequenceClassification", 2, 5)
    ours.config.torchscript = True
    assert isinstance(ours(**given), tuple)
    assert isinstance(ours(**given, return_dict=True), dict)


# -- parts of the model ----------------------------------------------------------------------------------------------

STATES = torch.randn(2, 5, 24, generator=torch.Generator().manual_seed(3))
ADDITIVE = torch.zeros(2, 1, 1, 5)
ADDITIVE[1, ..., 3:] = torch.finfo(torch.float32).min
BOOLEAN = ADDITIVE == 0
ENCODED = torch.randn(2, 4, 24, generator=torch.Generator().manual_seed(4))
HEADS_KEPT = torch.tensor([1.0, 0.0, 0.5]).view(1, 3, 1, 1)


def parts(kind: str, attention: str = "eager") -> list[tuple[Any, Any]]:
    config = {"decoder": {"is_decoder": True, "add_cross_attention": True}}.get(kind, {"position_embedding_type": kind})
    theirs, ours = pair("BertModel", attention=attention, **config)
    layers = theirs.encoder.layer[1], ours.encoder.layer[1]
    attentions = layers[0].attention, layers[1].attention
    return [layers, attentions, (attentions[0].self, attentions[1].self), (theirs.encoder, ours.encoder)]


@pytest.mark.parametrize("kind", ["absolute", "relative_key", "relative_key_query"])
def test_layers_and_attentions_take_masks_by_position(kind: str) -> None:
    for theirs, ours in parts(kind)[:3]:
        wanted = theirs(STATES, ADDITIVE, HEADS_KEPT, output_attentions=True)
        got = ours(STATES, ADDITIVE, HEADS_KEPT, output_attentions=True)
        assert isinstance(got, tuple)
        check_same(tuple(wanted), got)
        check_same(theirs(STATES)[0], ours(STATES)[0])
        assert ours(hidden_states=STATES, attention_mask=None)[1] is None


def test_a_boolean_mask_says_keep() -> None:
    for theirs, ours in parts("absolute")[:3]:
        check_same(theirs(STATES, ADDITIVE)[0], ours(STATES, attention_mask=BOOLEAN)[0])


def test_the_encoder_by_itself() -> None:
    theirs, ours = parts("absolute")[3]
    head_masks = [None, HEADS_KEPT[0]]
    options = {"output_attentions": True, "output_hidden_states": True}
    check_same(theirs(STATES, ADDITIVE, **options), ours(STATES, ADDITIVE, **options))
    check_same(
        theirs(STATES, ADDITIVE, head_masks, return_dict=False, **options),
        ours(STATES, ADDITIVE, head_masks, return_dict=False, **options),
    )


def test_decoder_layers_attend_to_an_encoder_and_keep_a_cache() -> None:
    encoder_mask = torch.zeros(2, 1, 1, 4)
    encoder_mask[0, ..., 2:] = torch.finfo(torch.float32).min
    every = parts("decoder", attention="sdpa")
    theirs, ours = every[0]
    options: dict[str, Any] = {"encoder_hidden_states": ENCODED, "encoder_attention_mask": encoder_mask}
    check_same(theirs(STATES, **options)[0], ours(STATES, **options)[0])
    assert len(ours(STATES, **options, output_attentions=True)) == 3
    their_encoder, our_encoder = every[3]
    wanted, got = their_encoder(STATES, **options, use_cache=True), our_encoder(STATES, **options, use_cache=True)
    check_same(wanted.last_hidden_state, got.last_hidden_state)
    assert isinstance(got.past_key_values, bertie.KeyValueCache)
    step = STATES[:, :1] + 1
    everything = torch.zeros(2, 1, 1, 6)
    wanted = their_encoder(step, everything, **options, past_key_values=wanted.past_key_values, use_cache=True)
    got = our_encoder(step, everything, **options, past_key_values=got.past_key_values, use_cache=True)
    check_same(wanted.last_hidden_state, got.last_hidden_state)
    assert got.past_key_values.length == 6


def test_small_parts_are_called_as_on_the_hub() -> None:
    theirs, ours = pair("BertForPreTraining")
    ids = torch.tensor([[4, 5, 6]])
    check_same(theirs.bert.embeddings(ids, ids % 2), ours.bert.embeddings(ids, ids % 2))
    check_same(
        theirs.bert.embeddings(input_ids=ids, past_key_values_length=2),
        ours.bert.embeddings(input_ids=ids, past_key_values_length=2),
    )
    check_same(theirs.bert.pooler(STATES), ours.bert.pooler(STATES))
    check_same(theirs.cls(STATES, STATES[:, 0]), ours.cls(STATES, STATES[:, 0]))
    layers = theirs.bert.encoder.layer[0], ours.bert.encoder.layer[0]
    check_same(layers[0].feed_forward_chunk(STATES), layers[1].feed_forward_chunk(STATES))
    assert layers[0].attention.self.num_attention_heads == layers[1].attention.self.num_attention_heads


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        ({"attention_mask": torch.ones(2, 5)}, "get_extended_attention_mask"),
        ({"attention_mask": torch.ones(2, 1, 1, 5, dtype=torch.long)}, "added to the scores"),
        ({"head_mask": torch.ones(2)}, "3 heads"),
        ({"encoder_hidden_states": ENCODED}, "no cross-attention"),
        ({"past_key_values": ()}, "KeyValueCache"),
    ],
)
def test_mistakes_in_calling_a_layer_are_named(mistake: dict[str, Tensor], words: str) -> None:
    layer = bertie.BertModel(bertie.BertConfig.preset("tiny", vocab_size=9, num_attention_heads=3, hidden_size=24))
    with pytest.raises(bertie.BertieError, match=words):
        layer.encoder.layer[0](STATES, **mistake)


def test_a_layer_alone_has_no_number_and_no_cache() -> None:
    config = bertie.BertConfig.preset("tiny", vocab_size=9, is_decoder=True)
    with pytest.raises(bertie.BertieError, match="does not know its number"):
        bertie.BertLayer(config)(torch.randn(1, 2, 128), past_key_values=bertie.KeyValueCache(2))
