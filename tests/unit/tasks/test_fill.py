"""fill: candidates, joint fillings by their formula, targets of several pieces, long texts, mistakes explained."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from bertie.errors import CheckpointError, InputError
from bertie.running.open import OpenModel
from bertie.tasks.fill import Candidate, Filled, MaskFiller, fill
from bertie.text import BertTokenizer
from tiny_models import MAX_LENGTH, random_batches, saved, tiny, tokenizer

LONG = "the dog and the fox " * 20 + "[MASK] sleeps" + " on the lazy dog" * 20
MASKED = [
    "[MASK]",
    "The quick brown [MASK] jumps over the lazy dog.",
    "the [MASK] of [MASK]",
    "[MASK] [MASK] [MASK]!",
    "漢字 [MASK] 😀",
    LONG,
    LONG + " [MASK]",
]


@pytest.fixture(scope="module")
def loaded() -> OpenModel:
    return OpenModel(tiny("BertForMaskedLM"), tokenizer())


def log_probs(loaded: OpenModel, tokens: Sequence[int], place: int) -> torch.Tensor:
    """Of every token of the vocabulary at a place of [CLS] tokens [SEP]: the plain way."""
    ids = [tokenizer().cls_token_id, *tokens, tokenizer().sep_token_id]
    with torch.no_grad():
        return loaded.model(torch.tensor([ids])).logits[0, place + 1].double().log_softmax(-1)


def flat(answer: Filled) -> list[float]:
    scores = [one.score for mask in answer.masks for one in mask] + [one.score for one in answer.fillings]
    return [math.log(score) for score in scores]


def test_one_text_a_list_and_a_stream_are_answered_alike(loaded: OpenModel) -> None:
    many = fill(MASKED, model=loaded, top_k=3)
    assert [type(answer) for answer in many] == [Filled] * len(MASKED)
    stream = fill(iter(MASKED), model=loaded, top_k=3)
    assert isinstance(stream, Iterator)
    assert list(stream) == many
    one = fill(MASKED[1], model=loaded, top_k=3)
    assert one.candidates == one.masks[0]
    assert len(one.candidates) == len(one.fillings) == 3
    assert one.text == one.candidates[0].text
    assert isinstance(one.candidates[0], Candidate)
    assert one.candidates[0].id == one.candidates[0].ids[0]


def test_a_text_gets_the_same_alone_and_in_random_batches(loaded: OpenModel) -> None:
    alone = [fill(text, model=loaded, top_k=2, targets=["dog", "frogs", "fox"]) for text in MASKED]
    for batch in random_batches(MASKED, count=8):
        found = fill([MASKED[i] for i in batch], model=loaded, top_k=2, targets=["dog", "frogs", "fox"])
        for index, answer in zip(batch, found, strict=True):
            assert flat(answer) == pytest.approx(flat(alone[index]), abs=1e-4)
            assert [one.tokens for one in answer.fillings] == [one.tokens for one in alone[index].fillings]


def test_candidates_are_the_softmax_at_their_mask(loaded: OpenModel) -> None:
    answer = fill("the [MASK] of [MASK]", model=loaded, top_k=4)
    tokens = tokenizer().encode("the [MASK] of [MASK]", add_special_tokens=False)
    for mask, place in zip(answer.masks, (1, 3), strict=True):
        best = log_probs(loaded, tokens, place).exp().topk(4)
        assert [one.id for one in mask] == best.indices.tolist()
        assert [one.score for one in mask] == pytest.approx(best.values.tolist(), abs=1e-6)
        assert all(one.text.count("[MASK]") == 1 for one in mask)


def test_beams_find_the_best_filling_of_all(loaded: OpenModel) -> None:
    """With as many beams as tokens the search is complete: it must equal trying everything."""
    vocabulary = len(tokenizer())
    text = "the [MASK] of [MASK]"
    tokens = tokenizer().encode(text, add_special_tokens=False)
    first = log_probs(loaded, tokens, 1)
    both = torch.stack([first[i] + log_probs(loaded, [*tokens[:1], i, *tokens[2:]], 3) for i in range(vocabulary)])
    best = both.flatten().topk(5)
    answer = fill(text, model=loaded, top_k=5, num_beams=vocabulary)
    assert [math.log(one.score) for one in answer.fillings] == pytest.approx(best.values.tolist(), abs=1e-4)
    top = divmod(int(best.indices[0]), vocabulary)
    assert answer.fillings[0].tokens == tuple(tokenizer().decode([i]) for i in top)
    assert answer.text == tokenizer().decode([tokens[0], top[0], tokens[2], top[1]])
    few = fill(text, model=loaded, top_k=5)
    assert few.fillings[0].score <= answer.fillings[0].score * (1 + 1e-5)
    assert fill(text, model=loaded, joint=False).fillings == ()


def test_targets_of_several_pieces_are_scored_by_all_of_them(loaded: OpenModel) -> None:
    words = ["dog", "frogs", "cats", "fox"]
    pieces = {word: tuple(tokenizer().encode(word, add_special_tokens=False)) for word in words}
    assert max(map(len, pieces.values())) > 2
    mask = tokenizer().mask_token_id

    def plain(before: list[int], after: list[int], word: str) -> float:
        ids, total = [mask] * len(pieces[word]), 0.0
        for number, piece in enumerate(pieces[word]):
            total += float(log_probs(loaded, [*before, *ids, *after], len(before) + number)[piece])
            ids[number] = piece
        return total

    the, of = tokenizer().encode("the of", add_special_tokens=False)
    answer = fill("the [MASK] of", model=loaded, targets=words, top_k=9)
    wanted = {word: plain([the], [of], word) for word in words}
    assert {one.token: math.log(one.score) for one in answer.candidates} == pytest.approx(wanted, abs=1e-4)
    assert [one.token for one in answer.candidates] == sorted(words, key=lambda word: -wanted[word])
    assert {one.token: one.ids for one in answer.candidates} == pieces
    joint = fill("the [MASK] of [MASK]", model=loaded, targets=words, top_k=16, num_beams=16)
    pairs = {
        (a, b): plain([the], [of, mask], a) + plain([the, *pieces[a], of], [], b)
        for a, b in itertools.product(words, words)
    }
    assert {one.tokens: math.log(one.score) for one in joint.fillings} == pytest.approx(pairs, abs=1e-3)


def test_targets_are_looked_up_as_they_are_then_tokenized(loaded: OpenModel) -> None:
    (piece,) = fill("[MASK]", model=loaded, targets="##s").candidates
    assert piece.id == tokenizer().convert_tokens_to_ids("##s")
    (lowered,) = fill("[MASK]", model=loaded, targets=["Dog", "dog"]).candidates
    assert lowered.token == "dog"


def test_a_long_text_is_read_around_its_mask(loaded: OpenModel) -> None:
    tokens = tokenizer().encode(LONG, add_special_tokens=False)
    place = tokens.index(tokenizer().mask_token_id)
    room = MAX_LENGTH - 2
    start = place - (room - 1) // 2
    best = log_probs(loaded, tokens[start : start + room], place - start).exp().topk(3)
    answer = fill(LONG, model=loaded, top_k=3)
    assert [one.score for one in answer.candidates] == pytest.approx(best.values.tolist(), abs=1e-6)
    assert answer.candidates[0].text.startswith("the dog and the fox the dog")
    assert answer.candidates[0].text.endswith("on the lazy dog")
    for at_the_edge in ("[MASK]" + " the dog" * 60, "the dog " * 60 + "[MASK]"):
        assert len(fill(at_the_edge, model=loaded, targets=["fox", "frogs"]).candidates) == 2


def test_a_filling_may_hold_the_mask_token_itself(loaded: OpenModel) -> None:
    """A model can predict [MASK]; the next mask to fill is still the next one."""
    answer = fill("[MASK] the [MASK]", model=loaded, targets=["[MASK]", "dog"], top_k=4)
    assert sorted(one.tokens for one in answer.fillings) == sorted(itertools.product(("[MASK]", "dog"), repeat=2))


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        ("no mask here", {}, r"The text has no \[MASK\]: 'no mask here'.\nWrite \[MASK\] where"),
        (["a [MASK]", "b"], {}, r"Text 1 has no \[MASK\]"),
        (3, {}, "The text is int 3; it must be a string"),
        (["[MASK]", ("a", "b")], {}, "Text 1 is tuple"),
        ("[MASK]", {"top_k": 0}, "top_k is 0"),
        ("[MASK]", {"num_beams": -1}, "num_beams is -1"),
        ("[MASK]", {"targets": []}, "targets is empty"),
        ("[MASK]", {"targets": ["dog", 4]}, "Target 1 is int 4"),
        ("[MASK]", {"targets": ["dog", "  "]}, "Target 1 .'  '. is empty"),
        ("[MASK]", {"targets": ["ж"]}, "Target 0 .'ж'. has characters that this vocabulary cannot spell"),
        ("[MASK] " * 60, {"targets": ["x" * 60]}, "A target of 60 word pieces does not fit the model's 48 tokens"),
    ],
)
def test_mistakes_are_explained(loaded: OpenModel, texts: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        fill(texts, model=loaded, **options)


def test_the_tokenizers_own_mask_token_is_used(tmp_path: Path) -> None:
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "<mask>", "dog", "cat"]
    other = BertTokenizer(vocabulary, mask_token="<mask>", model_max_length=MAX_LENGTH)
    filler = MaskFiller(tiny("BertForMaskedLM", vocab_size=7), tokenizer=other)
    assert len(filler("dog <mask>").masks) == 1
    with pytest.raises(InputError, match="has no <mask>"):
        filler("dog [MASK]")
    without = BertTokenizer(vocabulary, model_max_length=MAX_LENGTH)
    with pytest.raises(InputError, match="this tokenizer has none in its vocabulary"):
        MaskFiller(tiny("BertForMaskedLM", vocab_size=7), tokenizer=without)
    with pytest.raises(CheckpointError, match="fill needs a masked-word head"):
        fill("[MASK]", model=saved(tmp_path, "BertModel"))


@pytest.mark.parametrize("count", [3, 40, 300])
def test_masks_with_the_same_window_share_a_row(loaded: OpenModel, count: int) -> None:
    """Masks near either end of a long text have the same window, and all masks of a short one; each is as if alone."""
    text = "[MASK] " * count
    task = MaskFiller(loaded, top_k=2, joint=False)
    rows: list[int] = []
    run = task.run

    def counted(batch: Any) -> Any:
        rows.extend(len(query.row) for query in batch)
        return run(batch)

    task.run = counted  # type: ignore[method-assign]
    answer = task(text)
    room = MAX_LENGTH - 2
    assert len(rows) == max(1, count - room + 1)
    assert task.plan(text).work == sum(rows) + count
    assert (task.plan(text).candidates, task.plan(text).fillings) == (2 * count, 0)
    mask = tokenizer().mask_token_id
    for place in (0, count // 2, count - 1):
        start = 0 if count <= room else min(max(0, place - (room - 1) // 2), count - room)
        best = log_probs(loaded, [mask] * min(room, count), place - start).topk(2)
        assert [one.id for one in answer.masks[place]] == best.indices.tolist()


def test_the_rest_of_a_text_is_decoded_once_for_all_candidates() -> None:
    class Counted(BertTokenizer):
        decoded = 0

        def _decode_raw(self, ids: list[int], skip_special_tokens: bool) -> str:
            Counted.decoded += len(ids)
            return super()._decode_raw(ids, skip_special_tokens)

    plain = tokenizer()
    counted = Counted.__new__(Counted)
    counted.__dict__.update(plain.__dict__)
    ids = plain.encode("the quick fox [MASK] 's dog . [MASK] the dog ! " * 9, add_special_tokens=False)
    variants = [[number] for number in range(len(plain))] + [[5, 6, 7], []]
    for place in range(0, len(ids), 5):
        for skip in (False, True):
            Counted.decoded = 0
            found = counted.decode_variants(ids, place, variants, skip_special_tokens=skip)
            whole = [[*ids[:place], *variant, *ids[place + 1 :]] for variant in variants]
            assert found == [plain.decode(one, skip_special_tokens=skip) for one in whole]
            assert place == 0 or Counted.decoded < 2 * len(ids) + 4 * len(variants)
