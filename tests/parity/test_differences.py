"""Where transformers 4.57.6 is wrong or refuses and Bertie is not: each difference, shown on both sides.

What is right is settled elsewhere against the plain formula (tests/unit/model/test_ours.py). Three more are beside the
feature they belong to: relative positions with a cache, one pretraining label alone, answer positions below 0.
"""

from __future__ import annotations

import pytest
import torch

from bertie.errors import InputError
from parity.oracle import TINY, check_same, difference, ids, pair


def test_four_dimensional_masks() -> None:
    theirs, ours = pair("BertModel")
    mask = torch.ones(2, 1, 5, 5).tril()
    with pytest.raises(ValueError, match="Wrong shape"):
        theirs(ids(2, 5), attention_mask=mask)
    check_same(theirs(ids(2, 5), attention_mask=mask[:, 0]), ours(ids(2, 5), attention_mask=mask))


def test_rows_masked_whole_in_half_precision() -> None:
    theirs, ours = pair("BertModel", num_hidden_layers=1)
    for model in (theirs, ours):
        model.half()
        with torch.no_grad():
            attention = model.encoder.layer[0].attention.self
            attention.query.weight.mul_(50)
            attention.key.weight.mul_(50)
            attention.query.bias.fill_(20)
            attention.key.bias.fill_(-20)  # every score far below 0: with the lowest number added, -inf
    mask = torch.zeros(1, 5)
    assert torch.isnan(theirs(ids(1, 5), attention_mask=mask)[0]).any()
    assert torch.isfinite(ours(ids(1, 5), attention_mask=mask)[0]).all()


def test_chunks_that_do_not_divide_the_length() -> None:
    theirs, ours = pair("BertModel", chunk_size_feed_forward=3)
    with pytest.raises(ValueError, match="multiple of the chunk size"):
        theirs(ids(2, 7))
    for layer in theirs.encoder.layer:
        layer.chunk_size_feed_forward = 0
    check_same(theirs(ids(2, 7)), ours(ids(2, 7)))


def test_problem_type_is_written_into_their_config_only() -> None:
    theirs, ours = pair("BertForSequenceClassification", num_labels=3)
    for model in (theirs, ours):
        model(ids(2, 5), labels=torch.tensor([0, 1]))
    assert theirs.config.problem_type == "single_label_classification"
    assert ours.config.problem_type is None


def test_head_masks_after_pruning_keep_the_original_numbers() -> None:
    theirs, ours = pair("BertModel", num_hidden_layers=1)
    theirs.prune_heads({0: [0]})
    ours.prune_heads({0: [0]})
    mask = torch.tensor([1.0, 0.2, 0.7])
    with pytest.raises(RuntimeError, match="size of tensor"):
        theirs(ids(2, 5), head_mask=mask)
    check_same(theirs(ids(2, 5), head_mask=mask[1:]), ours(ids(2, 5), head_mask=mask))


def test_encoder_states_given_to_an_encoder() -> None:
    theirs, ours = pair("BertModel")
    states = torch.randn(2, 4, TINY["hidden_size"])
    check_same(theirs(ids(2, 5)), theirs(ids(2, 5), encoder_hidden_states=states))  # as if they were not there
    with pytest.raises(InputError, match="no cross-attention"):
        ours(ids(2, 5), encoder_hidden_states=states)


def test_finished_beams_are_filled_with_padding_also_when_its_id_is_0() -> None:
    theirs, ours = pair("BertLMHeadModel", is_decoder=True, initializer_range=0.6)
    options = {"num_beams": 3, "max_length": 15, "eos_token_id": [5, 9, 40, 41, 42, 43], "pad_token_id": 0}
    prompts = torch.randint(3, TINY["vocab_size"], (40, 4))  # so many that some end early
    wanted = theirs.generate(prompts, **options, do_sample=False)
    got = ours.generate(prompts, **options)
    ends = torch.isin(got[:, 4:], torch.tensor(options["eos_token_id"])).long().cumsum(1)
    after = torch.cat([torch.zeros(len(prompts), 5, dtype=torch.bool), ends[:, :-1] > 0], dim=1)
    assert after.any()
    assert torch.equal(wanted[~after], got[~after])
    assert (got[after] == 0).all()
    assert (wanted[after] == 5).all()


def test_padding_is_no_used_word_for_the_repetition_penalty() -> None:
    theirs, ours = pair("BertLMHeadModel", is_decoder=True)
    for model in (theirs, ours):
        with torch.no_grad():
            model.cls.predictions.bias.zero_()
            model.cls.predictions.bias[7] = 30.0  # the padding id is also the likeliest word
    prompt = torch.tensor([[7, 7, 20]])
    mask = torch.tensor([[0, 0, 1]])
    options = {"max_new_tokens": 1, "repetition_penalty": 50.0, "pad_token_id": 7}
    assert ours.generate(prompt, mask, **options)[0, -1] == 7
    assert theirs.generate(prompt, attention_mask=mask, **options, do_sample=False)[0, -1] != 7


def test_asking_for_maps_moves_their_answer_but_not_ours() -> None:
    theirs, ours = pair("BertModel", attention="sdpa", hidden_size=96, intermediate_size=200)
    tokens = ids(3, 17)
    with torch.no_grad():
        assert torch.equal(ours(tokens)[0], ours(tokens, output_attentions=True)[0])
    assert 0 < difference(theirs(tokens)[0], theirs(tokens, output_attentions=True)[0]) < 1e-4
