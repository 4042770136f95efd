"""Every mistake gets a typed error with the numbers in it, before a kernel sees it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import bertie
from bertie.errors import BertieError, ConfigError, InputError
from unit.model.plain import TINY, some_ids, tiny

IDS = torch.ones(2, 5, dtype=torch.long)
STATES = torch.zeros(2, 4, 24)
CROSS = {"is_decoder": True, "add_cross_attention": True}

# what is wrong, class, config, inputs, what the message must say
MISTAKES: list[tuple[str, str, dict[str, Any], dict[str, Any], str]] = [
    ("both", "BertModel", {}, {"input_ids": IDS, "inputs_embeds": torch.zeros(2, 5, 24)}, "Both input_ids and inputs"),
    ("neither", "BertModel", {}, {}, "Neither input_ids nor inputs_embeds"),
    ("id too high", "BertModel", {}, {"input_ids": IDS.index_fill(1, torch.tensor([3]), 61)}, "61 at [0, 3]; it must be 0 to 60"),
    ("id negative", "BertModel", {}, {"input_ids": IDS - 2}, "holds -1 at [0, 0]"),
    ("float ids", "BertModel", {}, {"input_ids": IDS.float()}, "dtype torch.float32"),
    ("one dimension", "BertModel", {}, {"input_ids": IDS[0]}, "shape [5]; it must be [batch, length]"),
    ("no tokens", "BertModel", {}, {"input_ids": IDS[:, :0]}, "shape [2, 0]"),
    ("too long", "BertModel", {}, {"input_ids": torch.ones(1, 21).long()}, "21 tokens long; the model has 20 positions"),
    ("embeds width", "BertModel", {}, {"inputs_embeds": torch.zeros(2, 5, 25)}, "shape [2, 5, 25]; its last size must be config.hidden_size (24)"),
    ("type too high", "BertModel", {}, {"input_ids": IDS, "token_type_ids": IDS + 1}, "token_type_ids holds 2"),
    ("type shape", "BertModel", {}, {"input_ids": IDS, "token_type_ids": IDS[:, :3]}, "token_type_ids has shape [2, 3]; it must be [2, 5]"),
    ("position too high", "BertModel", {}, {"input_ids": IDS, "position_ids": IDS * 20}, "position_ids holds 20 at [0, 0]; it must be 0 to 19"),
    ("position shape", "BertModel", {}, {"input_ids": IDS, "position_ids": IDS[:, :2]}, "position_ids has shape [2, 2]"),
    ("mask length", "BertModel", {}, {"input_ids": IDS, "attention_mask": torch.ones(2, 6)}, "attention_mask has shape [2, 6]; with a batch of 2, 5 queries and 5 keys it must be [2, 5]"),
    ("mask rank", "BertModel", {}, {"input_ids": IDS, "attention_mask": torch.ones(5)}, "attention_mask has shape [5]"),
    ("mask heads", "BertModel", {}, {"input_ids": IDS, "attention_mask": torch.ones(2, 2, 5, 5)}, "attention_mask has shape [2, 2, 5, 5]"),
    ("additive mask", "BertModel", {}, {"input_ids": IDS, "attention_mask": torch.full((2, 5), -1e4)}, "from -10000 to -10000; its values must be 1 (keep) or 0 (drop)"),
    ("head mask", "BertModel", {}, {"input_ids": IDS, "head_mask": torch.ones(4)}, "head_mask has shape [4]; it must be [3]"),
    ("head mask layers", "BertModel", {}, {"input_ids": IDS, "head_mask": torch.ones(3, 3)}, "head_mask has shape [3, 3]; it must be [3] (the same in every layer) or [2, 3]"),
    ("cross on encoder", "BertModel", {}, {"input_ids": IDS, "encoder_hidden_states": STATES}, "this model has no cross-attention"),
    ("cross on plain decoder", "BertModel", {"is_decoder": True}, {"input_ids": IDS, "encoder_hidden_states": STATES}, "this model has no cross-attention"),
    ("cross width", "BertModel", CROSS, {"input_ids": IDS, "encoder_hidden_states": STATES[..., :3]}, "encoder_hidden_states has shape [2, 4, 3]; it must be [2, length, 24]"),
    ("cross batch", "BertModel", CROSS, {"input_ids": IDS, "encoder_hidden_states": STATES[:1]}, "encoder_hidden_states has shape [1, 4, 24]"),
    ("cross mask", "BertModel", CROSS, {"input_ids": IDS, "encoder_hidden_states": STATES, "encoder_attention_mask": torch.ones(2, 5)}, "encoder_attention_mask has shape [2, 5]"),
    ("cache of fewer layers", "BertModel", {}, {"input_ids": IDS, "past_key_values": [[torch.ones(2, 3, 1, 8)] * 2]}, "holds 1 layers; the model has 2"),
    ("cache of another model", "BertModel", {"is_decoder": True}, {"input_ids": IDS, "past_key_values": bertie.KeyValueCache(3)}, "holds 3 layers; the model has 2"),
    ("legacy of a wrong shape", "BertModel", {"is_decoder": True}, {"input_ids": IDS, "past_key_values": [[torch.zeros(2)] * 3] * 2}, "past_key_values[0] holds [[2], [2], [2]]"),
    ("maps layer", "BertModel", {}, {"input_ids": IDS, "output_attentions": [(2, 0)]}, "layer 2, head 0, which is not there"),
    ("maps head", "BertModel", {"pruned_heads": {1: [2]}}, {"input_ids": IDS, "output_attentions": [(1, 2)]}, "layer 1, head 2, which is pruned"),
    ("packed rectangle", "BertModel", {}, {"input_ids": IDS, "cu_seqlens": torch.tensor([0, 5])}, "not [tokens]"),
    ("packed ends", "BertModel", {}, {"input_ids": IDS[0], "cu_seqlens": torch.tensor([0, 4])}, "from 0 to 4"),
    ("packed empty text", "BertModel", {}, {"input_ids": IDS[0], "cu_seqlens": torch.tensor([0, 2, 2, 5])}, "shortest text of 0 tokens"),
    ("packed mask", "BertModel", {}, {"input_ids": IDS[0], "attention_mask": IDS[0], "cu_seqlens": torch.tensor([0, 5])}, "attention_mask was given with a packed batch"),
    ("packed cache", "BertModel", {"is_decoder": True}, {"input_ids": IDS[0], "use_cache": True, "cu_seqlens": torch.tensor([0, 5])}, "cannot use a cache"),
    ("packed ends kind", "BertModel", {}, {"input_ids": IDS[0], "cu_seqlens": torch.tensor([0.0, 5.0])}, "dtype torch.float32"),
    ("mlm label", "BertForMaskedLM", {}, {"input_ids": IDS, "labels": IDS * 61}, "labels holds 61 at [0, 0]; it must be 0 to 60 or -100"),
    ("mlm label shape", "BertForMaskedLM", {}, {"input_ids": IDS, "labels": IDS[:, :2]}, "labels has shape [2, 2]; it must be [2, 5]"),
    ("sparse without labels", "BertForMaskedLM", {}, {"input_ids": IDS, "sparse_logits": True}, "sparse_logits was asked for without"),
    ("positions shape", "BertForMaskedLM", {}, {"input_ids": IDS, "masked_positions": torch.zeros(3, 1).long()}, "positions of shape [3, 1]"),
    ("nsp label", "BertForNextSentencePrediction", {}, {"input_ids": IDS, "labels": torch.tensor([0, 2])}, "labels holds 2 at [1]; it must be 0 to 1"),
    ("class label", "BertForSequenceClassification", {"num_labels": 3}, {"input_ids": IDS, "labels": torch.tensor([0, 3])}, "labels holds 3 at [1]; it must be 0 to 2"),
    ("negative class", "BertForSequenceClassification", {"num_labels": 3}, {"input_ids": IDS, "labels": torch.tensor([0, -1])}, "labels holds -1 at [1]"),
    ("class count", "BertForSequenceClassification", {"num_labels": 3}, {"input_ids": IDS, "labels": torch.tensor([0])}, "labels has shape [1]; it must be [2]"),
    ("multi-label shape", "BertForSequenceClassification", {"num_labels": 3}, {"input_ids": IDS, "labels": torch.ones(2)}, "labels has shape [2]; with several labels per text it must be [2, 3]"),
    ("regression shape", "BertForSequenceClassification", {"num_labels": 1}, {"input_ids": IDS, "labels": torch.ones(3)}, "for regression it must be [2, 1]"),
    ("class weights", "BertForSequenceClassification", {"num_labels": 3}, {"input_ids": IDS, "labels": torch.tensor([0, 1]), "class_weights": torch.ones(2)}, "class_weights has shape [2]; it must be [3]"),
    ("tag", "BertForTokenClassification", {"num_labels": 3}, {"input_ids": IDS, "labels": IDS * 3}, "labels holds 3 at [0, 0]"),
    ("float tag", "BertForTokenClassification", {"num_labels": 3}, {"input_ids": IDS, "labels": IDS.float()}, "class labels are whole numbers"),
    ("choices", "BertForMultipleChoice", {}, {"input_ids": IDS}, "takes [batch, choices, length"),
    ("packed choices", "BertForMultipleChoice", {}, {"input_ids": IDS[0], "cu_seqlens": torch.tensor([0, 2, 5])}, "num_choices is None; the packed batch has 2 texts"),
    ("choice label", "BertForMultipleChoice", {}, {"input_ids": IDS[:, None], "labels": torch.tensor([0, 1])}, "labels holds 1 at [1]; it must be 0 to 0"),
    ("answer count", "BertForQuestionAnswering", {}, {"input_ids": IDS, "start_positions": torch.tensor([0]), "end_positions": torch.tensor([0])}, "1 answer positions for 2 texts"),
    ("ids as a list", "BertModel", {}, {"input_ids": [[1, 2]]}, "input_ids is of type list; it must be a tensor: torch.tensor(input_ids)"),
    ("small ids", "BertModel", {}, {"input_ids": IDS.to(torch.int16)}, "input_ids has dtype torch.int16; it must hold whole numbers, torch.long"),
    ("float types", "BertModel", {}, {"input_ids": IDS, "token_type_ids": IDS.float()}, "token_type_ids has dtype torch.float32"),
    ("bool positions", "BertModel", {}, {"input_ids": IDS, "position_ids": IDS.bool()}, "position_ids has dtype torch.bool"),
    ("mask as a list", "BertModel", {}, {"input_ids": IDS, "attention_mask": [[1] * 5] * 2}, "attention_mask is of type list"),
    ("half a mask", "BertModel", {}, {"input_ids": IDS, "attention_mask": torch.full((2, 5), 0.5)}, "from 0.5 to 0.5; its values must be 1 (keep) or 0 (drop)"),
    ("head mask as a list", "BertModel", {}, {"input_ids": IDS, "head_mask": [1, 1, 1]}, "head_mask is of type list"),
    ("ends as a list", "BertModel", {}, {"input_ids": IDS[0], "cu_seqlens": [0, 5]}, "cu_seqlens is of type list"),
    ("embeds dtype", "BertModel", {}, {"inputs_embeds": torch.zeros(2, 5, 24, dtype=torch.float64)}, "inputs_embeds has dtype torch.float64; the model is in torch.float32"),
    ("encoder dtype", "BertModel", CROSS, {"input_ids": IDS, "encoder_hidden_states": STATES.double()}, "encoder_hidden_states has dtype torch.float64"),
    ("maps that are a number", "BertModel", {}, {"input_ids": IDS, "output_attentions": 1}, "output_attentions is 1; it must be True, False or pairs"),
    ("maps without heads", "BertModel", {}, {"input_ids": IDS, "output_attentions": [(0,)]}, "output_attentions is [(0,)]"),
    ("cache that is none", "BertModel", {"is_decoder": True}, {"input_ids": IDS, "past_key_values": [1, 2]}, "past_key_values is of type list; it must be what a model returned"),
    ("cache of another batch", "BertModel", {"is_decoder": True}, {"input_ids": IDS, "past_key_values": [[torch.zeros(1, 3, 4, 8)] * 2] * 2}, "keys of shape [1, 3, 4, 8] and values of [1, 3, 4, 8]; the batch has 2 texts"),
    ("cache of other heads", "BertModel", {"is_decoder": True}, {"input_ids": IDS, "past_key_values": [[torch.zeros(2, 4, 4, 8)] * 2] * 2}, "4 positions of 4 heads; the layer has 3 heads"),
    ("cache of uneven layers", "BertModel", {"is_decoder": True}, {"input_ids": IDS, "past_key_values": [[torch.zeros(2, 3, n, 8)] * 2 for n in (4, 5)]}, "past_key_values[1] holds 5 positions of 3 heads"),
    ("flat positions", "BertForMaskedLM", {}, {"input_ids": IDS, "masked_positions": torch.tensor([1, 0])}, "positions of shape [2] do not fit"),
    ("far positions", "BertForMaskedLM", {}, {"input_ids": IDS, "masked_positions": torch.tensor([[1], [5]])}, "masked_positions holds 5 at [1, 0]; it must be 0 to 4"),
    ("negative positions", "BertForMaskedLM", {}, {"input_ids": IDS, "masked_positions": torch.tensor([[1], [-1]])}, "masked_positions holds -1"),
    ("labels as a list", "BertForMaskedLM", {}, {"input_ids": IDS, "labels": IDS.tolist()}, "labels is of type list"),
    ("class labels as a list", "BertForSequenceClassification", {}, {"input_ids": IDS, "labels": [0, 1]}, "labels is of type list"),
    ("tags turned round", "BertForTokenClassification", {}, {"input_ids": IDS, "labels": IDS.T}, "labels has shape [5, 2]; it must be [2, 5]"),
    ("tag weights", "BertForTokenClassification", {}, {"input_ids": IDS, "labels": IDS, "class_weights": torch.ones(3)}, "class_weights has shape [3]; it must be [2]"),
    ("tag smoothing", "BertForTokenClassification", {}, {"input_ids": IDS, "labels": IDS, "smoothing": 1.5}, "smoothing is 1.5; it must be a share, 0 to 1"),
    ("no choices", "BertForMultipleChoice", {}, {"input_ids": IDS[0], "cu_seqlens": torch.tensor([0, 2, 5]), "num_choices": 0}, "num_choices is 0"),
    ("float answers", "BertForQuestionAnswering", {}, {"input_ids": IDS, "start_positions": torch.ones(2), "end_positions": torch.ones(2)}, "Answer positions have dtype torch.float32"),
    ("next label shape", "BertLMHeadModel", {"is_decoder": True}, {"input_ids": IDS, "labels": IDS[:, :2]}, "labels has shape [2, 2]"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "config", "inputs", "message"), [m[1:] for m in MISTAKES], ids=[m[0] for m in MISTAKES]
)
def test_mistake_is_named(name: str, config: dict[str, Any], inputs: dict[str, Any], message: str) -> None:
    model = tiny(name, **config)
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        model(**inputs)
    assert isinstance(caught.value, ValueError)
    assert "\n" not in caught.value.cause


def test_checks_of_values_can_be_turned_off_and_shapes_stay_checked() -> None:
    model = tiny("BertForMaskedLM")
    model.check_inputs = False
    assert not model.bert.check_inputs
    model(some_ids(2, 5), torch.ones(2, 5))
    with pytest.raises(InputError):
        model(some_ids(2, 5), torch.ones(2, 6))


def test_a_cached_text_may_not_outgrow_the_positions() -> None:
    model = tiny("BertLMHeadModel", is_decoder=True)
    past = model(some_ids(1, 18), use_cache=True).past_key_values
    with pytest.raises(InputError, match="3 tokens long after 18 cached ones; the model has 20 positions"):
        model(some_ids(1, 3), past_key_values=past)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_length": 3}, "max_length is 3; the prompt has 5"),
        ({"max_length": 30}, "30 tokens in all; the model has 20 positions"),
        ({"num_beams": 0}, "num_beams is 0"),
        ({"temperature": 0.0, "do_sample": True}, "temperature is 0.0"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"top_k": -1}, "top_k is -1"),
        ({"num_beams": 2, "do_sample": True, "num_return_sequences": 3}, "3 texts of each prompt were asked for"),
        ({"early_stopping": "sometimes"}, "early_stopping is 'sometimes'; it must be True, False or 'never'"),
        ({"bad_words_ids": [5]}, "bad_words_ids holds 5; it must hold lists of ids"),
        ({"penalty_alpha": 0.6}, "penalty_alpha was given: Contrastive search is not done here"),
        ({"typical_p": 0.0}, "typical_p is 0.0; it must be a probability above 0"),
        ({"num_return_sequences": 3}, "3 texts of each prompt were asked for, and the beams are 1"),
        ({"attention_mask": torch.tensor([[1, 1, 1, 1, 0]] * 2)}, "Pad prompts on the left"),
        ({"attention_mask": torch.ones(2, 4)}, "attention_mask has shape [2, 4]"),
        ({"attention_mask": [[1] * 5] * 2}, "attention_mask is of type list; it must be a tensor"),
        ({"token_type_ids": [[0] * 5] * 2}, "token_type_ids is of type list; it must be a tensor"),
        ({"token_type_ids": torch.zeros(2, 4).long()}, "token_type_ids has shape [2, 4]; it must be [2, 5]"),
        ({"position_ids": torch.zeros(2, 6).long()}, "position_ids has shape [2, 6]; it must be [2, 5]"),
        ({"head_mask": torch.ones(3, 3), "num_beams": 2}, "head_mask has shape [3, 3]; it must be [3]"),
        ({"max_length": 10.5}, "max_length is 10.5; it must be a whole number of at least 1"),
        ({"max_new_tokens": -1}, "max_new_tokens is -1; it must be a whole number of at least 1"),
        ({"min_length": "a"}, "min_length is 'a'; it must be a whole number of at least 0"),
        ({"min_new_tokens": 1.5}, "min_new_tokens is 1.5; it must be a whole number of at least 0"),
        ({"num_return_sequences": -1}, "num_return_sequences is -1; it must be a whole number of at least 1"),
        ({"num_beams": 2.0}, "num_beams is 2.0; it must be a whole number of at least 1"),
        ({"num_beams": True}, "num_beams is True; it must be a whole number of at least 1"),
        ({"top_k": 2.5}, "top_k is 2.5; it must be a whole number of at least 0"),
        ({"temperature": "a"}, "temperature is 'a'; it must be a finite number above 0"),
        ({"temperature": float("inf")}, "temperature is inf; it must be a finite number above 0"),
        ({"length_penalty": "a"}, "length_penalty is 'a'; it must be a finite number"),
        ({"top_p": "a"}, "top_p is 'a'; it must be a probability above 0"),
        ({"pad_token_id": "[PAD]"}, "pad_token_id is '[PAD]'; it must be an id"),
        (
            {"eos_token_id": 999, "min_length": 8},
            "eos_token_id is 999; it must be an id from 0 to 60 (vocab_size is 61)",
        ),
        ({"eos_token_id": [5, -1]}, "eos_token_id is [5, -1]; it must be an id from 0 to 60"),
        ({"eos_token_id": "[SEP]"}, "eos_token_id is '[SEP]'; it must be an id from 0 to 60"),
        ({"eos_token_id": 3.5}, "eos_token_id is 3.5; it must be an id from 0 to 60"),
    ],
    ids=str,
)
def test_generation_mistakes(options: dict[str, Any], message: str) -> None:
    model = tiny("BertLMHeadModel", is_decoder=True)
    with pytest.raises(InputError, match=re.escape(message)):
        model.generate(IDS, **({"max_length": 10} | options))


@pytest.mark.parametrize("kind", ["BertLMHeadModel", "BertEncoderDecoder"])
@pytest.mark.parametrize("prompts", [None, IDS.tolist(), IDS.numpy(), "text"], ids=["None", "list", "ndarray", "str"])
def test_prompts_that_are_no_tensor_are_refused(kind: str, prompts: Any) -> None:
    model = tiny("BertLMHeadModel", is_decoder=True) if kind == "BertLMHeadModel" else joined()
    message = f"input_ids is of type {type(prompts).__name__}; it must be a tensor: torch.tensor"
    with pytest.raises(InputError, match=re.escape(message)):
        model.generate(prompts, max_length=10)


@pytest.mark.parametrize("length", [20, 40])
def test_a_prompt_longer_than_the_positions_is_told_so(length: int) -> None:
    model = tiny("BertLMHeadModel", is_decoder=True)
    for options in ({}, {"max_length": 50}, {"max_new_tokens": 3}):
        with pytest.raises(InputError, match=f"prompt is {length} tokens long; the model has 20 positions"):
            model.generate(some_ids(1, length), **options)


def joined() -> Any:
    return bertie.BertEncoderDecoder.from_encoder_decoder(tiny(), tiny(), decoder_start_token_id=1, pad_token_id=0)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"input_ids": IDS, "labels": IDS[0]}, "labels has shape [5]; it must be [batch, length]"),
        (
            {"encoder_outputs": STATES, "labels": IDS},
            "encoder_outputs is of type Tensor and holds no last hidden states",
        ),
        ({"encoder_outputs": (), "labels": IDS}, "encoder_outputs is of type tuple and holds no last hidden states"),
        (
            {"encoder_outputs": (None,), "labels": IDS},
            "encoder_outputs is of type tuple and holds no last hidden states",
        ),
    ],
)
def test_encoder_decoder_mistakes(inputs: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        joined()(**inputs)


def test_prompts_of_an_encoder_decoder_are_tensors_too() -> None:
    with pytest.raises(InputError, match="decoder_input_ids is of type list"):
        joined().generate(IDS, decoder_input_ids=[[1], [1]])
    with pytest.raises(InputError, match=re.escape("The input has shape []")):
        joined().generate(torch.tensor(3))


@pytest.mark.parametrize("join", [bertie.BertEncoderDecoder, bertie.BertEncoderDecoder.from_encoder_decoder])
def test_an_encoder_decoder_is_made_of_two_models(join: Any) -> None:
    decoder = tiny("BertLMHeadModel", **CROSS)
    with pytest.raises(
        InputError, match=r"encoder is of type BertForMaskedLM; it must be a BertModel\.\n.*model\.bert"
    ):
        join(tiny("BertForMaskedLM"), decoder)
    with pytest.raises(InputError, match=r"encoder is of type str; it must be a BertModel\.\n.*from_pretrained"):
        join("bert-base-uncased", decoder)
    with pytest.raises(InputError, match="decoder is of type str; it must be a Bert"):
        join(tiny(), "bert-base-uncased")


def test_a_refused_pair_leaves_the_decoder_as_it_was() -> None:
    decoder = tiny("BertLMHeadModel", **CROSS)
    with pytest.raises(InputError):
        bertie.BertEncoderDecoder.from_encoder_decoder("bert-base-uncased", decoder, decoder_start_token_id=1)
    assert decoder.config.decoder_start_token_id is None


def test_generation_needs_a_decoder_and_a_start() -> None:
    with pytest.raises(InputError, match="needs a decoder"):
        tiny("BertLMHeadModel").generate(IDS)
    pair = bertie.BertEncoderDecoder.from_encoder_decoder(tiny(), tiny())
    with pytest.raises(ConfigError, match="decoder_start_token_id"):
        pair.generate(IDS)
    with pytest.raises(ConfigError, match="decoder_start_token_id"):
        pair(IDS, labels=IDS)
    with pytest.raises(InputError, match="Neither decoder_input_ids nor labels"):
        pair(IDS)
    with pytest.raises(ConfigError, match="both must be true"):
        bertie.BertEncoderDecoder(tiny(), tiny("BertLMHeadModel", is_decoder=True))


def test_an_unknown_backend_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="'flashy'"):
        tiny().set_attention_backend("flashy")


def test_every_error_is_a_bertie_error() -> None:
    assert issubclass(InputError, BertieError)
    with pytest.raises(BertieError):
        bertie.BertModel(bertie.BertConfig.from_dict(TINY))(IDS * 1000)


@pytest.mark.parametrize("size", ["5", 3.5, 0, True])
def test_sizes_are_whole_numbers(size: Any) -> None:
    model = tiny("BertForMaskedLM")
    with pytest.raises(InputError, match="it must be a whole number of at least 1"):
        model.resize_token_embeddings(size)
    with pytest.raises(InputError, match="it must be a whole number of at least 1"):
        model.resize_position_embeddings(size)


def test_embeddings_of_another_size_leave_a_tied_head_as_it_was() -> None:
    model = tiny("BertForMaskedLM")
    model.set_input_embeddings(torch.nn.Embedding(70, 24))
    assert model(IDS).logits.shape[-1] == 61


@pytest.mark.parametrize("heads", [{0: 1}, [0], None, {0: ["a"]}])
def test_heads_to_prune_that_are_none(heads: Any) -> None:
    model = tiny()
    with pytest.raises(ConfigError, match="heads_to_prune is"):
        model.prune_heads(heads)
    assert not model.config.pruned_heads


def test_a_config_names_at_least_one_label() -> None:
    with pytest.raises(ConfigError, match="id2label is empty"):
        bertie.BertConfig(id2label={})


@pytest.mark.parametrize("source", [None, 3])
def test_a_model_is_named_by_a_string_or_a_path(source: Any) -> None:
    with pytest.raises(InputError, match="A model was named by"):
        bertie.BertModel.from_pretrained(source)


def test_a_device_that_is_not_there(tmp_path: Path) -> None:
    tiny().save_pretrained(tmp_path)
    with pytest.raises(InputError, match="There is no device 'nope'"):
        bertie.BertModel.from_pretrained(tmp_path, device="nope")
