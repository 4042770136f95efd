"""generate: a prompt in a batch gets what it gets alone, seeds repeat, encoders are refused, mistakes explained."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from bertie.errors import CheckpointError, InputError
from bertie.running.open import OpenModel
from bertie.tasks.generate import Generated, generate
from tiny_models import MAX_LENGTH, SENTENCES, TEXTS, random_batches, saved, tiny, tokenizer

WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "beams": {"num_beams": 3},
    "penalty": {"repetition_penalty": 1.5, "min_new_tokens": 3},
    "sampled": {"do_sample": True, "seed": 5, "top_p": 0.9},
}


@pytest.fixture(scope="module")
def loaded() -> OpenModel:
    return OpenModel(tiny("BertLMHeadModel", is_decoder=True), tokenizer())


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_prompt_gets_the_same_alone_and_in_random_batches(loaded: OpenModel, way: dict[str, Any]) -> None:
    alone = [generate(text, model=loaded, max_new_tokens=6, **way) for text in TEXTS]
    assert all(isinstance(answer, Generated) for answer in alone)
    for batch in random_batches(TEXTS, count=6):
        found = generate([TEXTS[i] for i in batch], model=loaded, max_new_tokens=6, **way)
        assert found == [alone[i] for i in batch]
    stream = generate(iter(TEXTS), model=loaded, max_new_tokens=6, **way)
    assert isinstance(stream, Iterator)
    assert list(stream) == alone


def test_the_answer_is_what_the_model_writes(loaded: OpenModel) -> None:
    prompt = [tokenizer().cls_token_id, *tokenizer().encode(SENTENCES[0], add_special_tokens=False)]
    wanted = list(prompt)
    for _ in range(6):
        with torch.no_grad():
            following = int(loaded.model(torch.tensor([wanted])).logits[0, -1].argmax())
        if following == tokenizer().sep_token_id:
            break
        wanted.append(following)
    found = generate(SENTENCES[0], model=loaded, max_new_tokens=6)
    assert list(found.ids) == wanted[len(prompt) :]
    assert found.text == tokenizer().decode(list(found.ids), skip_special_tokens=True)
    assert found.prompt == SENTENCES[0]


def test_what_ends_a_text_is_not_part_of_it() -> None:
    model = tiny("BertLMHeadModel", is_decoder=True)
    with torch.no_grad():
        model.cls.predictions.bias[tokenizer().sep_token_id] = 50.0
    loaded = OpenModel(model, tokenizer())
    assert generate("the dog", model=loaded).ids == ()
    assert generate("the dog", model=loaded).text == ""
    found = generate(["the dog", "a"], model=loaded, min_new_tokens=4, max_new_tokens=9)
    assert [len(answer.ids) for answer in found] == [4, 4]


def test_a_long_prompt_loses_its_beginning(loaded: OpenModel) -> None:
    ids = tokenizer().encode(TEXTS[-1], add_special_tokens=False)
    kept = ids[-(MAX_LENGTH - 6 - 1) :]
    prompt = torch.tensor([[tokenizer().cls_token_id, *kept]])
    written = loaded.model.generate(prompt, max_new_tokens=6, eos_token_id=tokenizer().sep_token_id)
    found = generate(TEXTS[-1], model=loaded, max_new_tokens=6)
    assert list(found.ids) == written[0, prompt.shape[1] :].tolist()[: len(found.ids)]
    assert len(found.ids) > 0


def test_several_answers_to_a_prompt(loaded: OpenModel) -> None:
    found = generate(SENTENCES, model=loaded, num_beams=4, num_return_sequences=3, max_new_tokens=5)
    assert all(len(answer.alternatives) == 2 for answer in found)
    best = generate(SENTENCES, model=loaded, num_beams=4, max_new_tokens=5)
    assert [answer.ids for answer in found] == [answer.ids for answer in best]
    drawn = generate("the", model=loaded, do_sample=True, seed=1, num_return_sequences=4, top_k=0)
    assert len({drawn.ids, *(other.ids for other in drawn.alternatives)}) > 1


def test_seeds_repeat_and_differ(loaded: OpenModel) -> None:
    def draw(seed: int) -> Any:
        return generate(SENTENCES, model=loaded, do_sample=True, seed=seed, top_k=0, max_new_tokens=8)

    assert draw(1) == draw(1) == draw(1)
    assert draw(1) != draw(2)


def test_an_encoder_is_refused_unless_forced(tmp_path: Path) -> None:
    encoder = saved(tmp_path / "encoder", "BertForMaskedLM")
    with pytest.raises(InputError, match=r"was not trained as one \(config\.is_decoder is not true\)"):
        generate("a", model=encoder)
    assert isinstance(generate("a", model=encoder, force=True), Generated)
    decoder = saved(tmp_path / "decoder", "BertLMHeadModel", is_decoder=True)
    wanted = generate(SENTENCES, model=OpenModel(tiny("BertLMHeadModel", is_decoder=True), tokenizer()))
    assert generate(SENTENCES, model=decoder) == wanted
    with pytest.raises(InputError, match="a decoder; the model it was given"):
        generate("a", model=tiny("BertLMHeadModel"), tokenizer=tokenizer())
    with pytest.raises(CheckpointError, match="generate needs a language-model head"):
        generate("a", model=saved(tmp_path / "headless", "BertModel"), force=True)


@pytest.mark.parametrize(
    ("prompts", "options", "message"),
    [
        (4, {}, "The text is int 4"),
        (["a", None], {}, "Text 1 is None"),
        ("a", {"max_new_tokens": 0}, "max_new_tokens is 0"),
        ("a", {"max_new_tokens": 48}, "the model has room for 48 tokens, including the prompt.\nAsk for at most 47"),
        ("a", {"num_beams": 0}, "num_beams is 0"),
        ("a", {"seed": "x"}, "seed is 'x'"),
        ("a", {"seed": 2**64}, r"seed is 18446744073709551616; it must be a whole number from -2\^63 to 2\^64 - 1"),
        ("a", {"do_sample": True, "temperature": 0}, "temperature is 0"),
        ("a", {"num_return_sequences": 3}, "3 texts of each prompt were asked for, and the beams are 1"),
    ],
)
def test_mistakes_are_explained(loaded: OpenModel, prompts: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        generate(prompts, model=loaded, **options)
