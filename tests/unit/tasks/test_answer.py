"""answer: quotations are exact, scores are probabilities, batches do not matter, mistakes are explained."""

from __future__ import annotations

import dataclasses
import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from bertie.data.squad import read_squad
from bertie.errors import BertieError, CheckpointError, InputError
from bertie.tasks.answer import Answerer, AnswerResult, answer
from token_models import HARD_TEXTS, PROSE, answering, saved, small_model, small_tokenizer, tagging

MODEL = answering()
QUESTION = "Who wrote it?"


def check(result: AnswerResult, context: str, *, n_best: int = 1) -> None:
    assert len(result.candidates) <= n_best
    for found in result.candidates:
        assert context[found.start : found.end] == found.text
        assert found.text
        assert 0 <= found.score <= 1
        assert math.isfinite(found.logit)
    scores = [found.score for found in result.candidates]
    assert scores == sorted(scores, reverse=True)
    assert sum(scores) + result.no_answer_score <= 1 + 1e-9
    assert len({found.text for found in result.candidates}) == len(result.candidates)
    assert math.isfinite(result.no_answer_logit)
    assert result.best is None or result.best == result.candidates[0]


@pytest.mark.parametrize("context", [*HARD_TEXTS, PROSE, PROSE * 12], ids=lambda text: text[:12])
@pytest.mark.parametrize("no_answer", [True, False, None])
def test_quotations_are_exact_and_scores_are_probabilities(context: str, no_answer: bool | None) -> None:
    result = answer(QUESTION, context, model=MODEL, n_best=10, no_answer=no_answer, max_length=40, stride=12)
    check(result, context, n_best=10)
    assert result.question == QUESTION
    if no_answer is False:
        assert result.best is not None
        assert result.no_answer_score == 0.0


@pytest.mark.parametrize("context", ["", "   \t\n", "\u200b", "\x00"])
def test_a_context_without_tokens_has_no_answer(context: str) -> None:
    for no_answer in (True, False, None):
        result = answer(QUESTION, context, model=MODEL, no_answer=no_answer)
        assert (result.best, result.candidates) == (None, ())
        assert result.null_difference == math.inf
        assert result.no_answer_score == (0.0 if no_answer is False else 1.0)


def test_one_token_and_an_empty_question() -> None:
    only = answer(QUESTION, "Ada", model=MODEL, n_best=5, no_answer=False)
    assert (only.best.text, only.best.score) == ("Ada", 1.0)
    check(answer("", "Ada", model=MODEL), "Ada")
    check(answer("[CLS] [SEP]", "[SEP] [PAD] [MASK]", model=MODEL, n_best=9), "[SEP] [PAD] [MASK]", n_best=9)


def test_a_document_of_ten_thousand_tokens() -> None:
    context = (PROSE + " ") * 140
    assert len(small_tokenizer().encode(context)) > 10_000
    result = answer(QUESTION, context, model=MODEL, n_best=5)
    check(result, context, n_best=5)
    assert len(result.candidates) == 5


def test_the_threshold_is_compared_with_the_null_difference() -> None:
    result = answer(QUESTION, PROSE, model=MODEL)
    difference = result.null_difference
    assert difference == pytest.approx(result.no_answer_logit - result.candidates[0].logit)
    assert answer(QUESTION, PROSE, model=MODEL, threshold=difference).best is not None  # not *more* than it
    below = answer(QUESTION, PROSE, model=MODEL, threshold=difference - 1e-6)
    assert below.best is None
    assert below.candidates == result.candidates
    always = answer(QUESTION, PROSE, model=MODEL, threshold=math.inf)
    assert always.best is not None
    assert always.no_answer_score == 0.0
    assert answer(QUESTION, PROSE, model=MODEL, threshold=-math.inf).best is None
    # "no answer" may take its share of the scores without ever being the verdict
    shared = answer(QUESTION, PROSE, model=MODEL, threshold=math.inf, no_answer=True)
    assert shared.best is not None
    assert shared.no_answer_score > 0
    odds = shared.no_answer_score / shared.best.score
    assert math.log(odds) == pytest.approx(difference, abs=1e-4)


def test_scores_do_not_depend_on_how_many_answers_are_asked_for() -> None:
    one = answer(QUESTION, PROSE, model=MODEL, n_best=1)
    many = answer(QUESTION, PROSE, model=MODEL, n_best=50)
    assert one.candidates == many.candidates[:1]
    assert answer(QUESTION, PROSE, model=MODEL, max_answer_tokens=1, n_best=9).candidates != many.candidates[:9]


def test_shapes_and_order() -> None:
    contexts = [PROSE, "Ada", "", PROSE * 4, "Charles Babbage"]
    questions = [f"who {number}" for number in range(len(contexts))]
    pairs = list(zip(questions, contexts, strict=True))
    single = [answer(q, c, model=MODEL) for q, c in pairs]
    asked = [
        answer(questions, contexts, model=MODEL),
        answer(tuple(questions), tuple(contexts), model=MODEL),
        answer(pairs, model=MODEL),
        [answer(pair, model=MODEL) for pair in pairs],
        list(answer(iter(pairs), model=MODEL)),
        list(answer(iter(questions), contexts, model=MODEL)),
        list(answer(iter(questions), iter(contexts), model=MODEL)),
    ]
    for results in asked:
        assert isinstance(results, list)
        assert [result.question for result in results] == questions
        for result, alone in zip(results, single, strict=True):
            assert [f.text for f in result.candidates] == [f.text for f in alone.candidates]
    assert answer([], [], model=MODEL) == []
    assert answer([], model=MODEL) == []
    assert isinstance(answer(iter(pairs), model=MODEL), Iterator)


def test_a_stream_is_read_a_little_ahead_only() -> None:
    taken = 0

    def pairs() -> Iterator[tuple[str, str]]:
        nonlocal taken
        while True:
            taken += 1
            yield QUESTION, PROSE

    stream = answer(pairs(), model=MODEL)
    first = next(stream)
    assert first == next(stream)
    assert taken < 1000


def close(a: AnswerResult, b: AnswerResult) -> None:
    assert [(f.text, f.start) for f in a.candidates] == [(f.text, f.start) for f in b.candidates]
    for x, y in zip(a.candidates, b.candidates, strict=True):
        assert abs(x.score - y.score) <= 1e-5
        assert abs(x.logit - y.logit) <= 1e-5
    assert abs(a.no_answer_logit - b.no_answer_logit) <= 1e-5
    assert (a.best is None) == (b.best is None)


def test_an_answer_is_the_same_alone_and_in_any_batch() -> None:
    rng = random.Random(5)
    texts = [*HARD_TEXTS, PROSE, PROSE * 5, "", "Ada"]
    task = Answerer(MODEL, n_best=3)
    for _ in range(25):
        pairs = [(rng.choice(("who", "why and where")), rng.choice(texts)) for _ in range(rng.randint(1, 12))]
        if rng.random() < 0.5:
            budget = dataclasses.replace(MODEL, budget=rng.choice((1, 100, 5000)))
            results = Answerer(budget, n_best=3)(pairs)
        else:
            results = task(pairs)
        for (question, context), result in zip(pairs, results, strict=True):
            close(result, task(question, context))


def test_half_precision_is_finite() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        half = dataclasses.replace(MODEL, model=small_model("BertForQuestionAnswering").to(dtype))
        for context in ("", "Ada", PROSE * 3):
            check(answer(QUESTION, context, model=half, n_best=3), context, n_best=3)


def test_a_model_from_its_folder_gives_the_same(tmp_path: Path) -> None:
    folder = saved(tmp_path, MODEL.model)
    found = answer(QUESTION, PROSE, model=folder)
    close(found, answer(QUESTION, PROSE, model=MODEL))
    close(found, answer(QUESTION, PROSE, model=MODEL.model, tokenizer=small_tokenizer()))
    assert json.loads(json.dumps(dataclasses.asdict(found)))["question"] == QUESTION


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"question": 5, "context": "x"}, "the question, is int 5"),
    ({"question": "x", "context": b"bytes"}, "the context, is bytes"),
    ({"question": ["a", None], "context": ["x", "y"]}, "Text 1, the question, is None"),
    ({"question": ["a", "b"], "context": ["x"]}, "2 questions and 1 contexts"),
    ({"question": "a", "context": ["x", "y"]}, "one question and several"),
    ({"question": ["a", "b"], "context": "x"}, "one context and several"),
    ({"question": "a"}, "without a context"),
    ({"question": ["a", "b"]}, "Text 0 is str 'a'; it must be a pair"),
    ({"question": [("a", "b", "c")]}, "Text 0 is .* a pair"),
    ({"question": {"a": "b"}}, "a pair"),
    ({"question": 7, "context": [1]}, "questions are int 7"),
    ({"n_best": 0}, "n_best is 0"),
    ({"n_best": True}, "n_best is True"),
    ({"max_answer_tokens": 1.5}, "max_answer_tokens is 1.5"),
    ({"beam": 0}, "beam is 0"),
    ({"stride": -1}, "stride is -1"),
    ({"threshold": math.nan}, "threshold is nan"),
    ({"threshold": "0"}, "threshold is '0'"),
    ({"max_length": 65}, "at most 64 tokens"),
    ({"max_length": 0}, "max_length is 0"),
    ({"question": "who " * 80, "context": "x"}, r"The question 'who who .*…: .*leaves no room"),
]


@pytest.mark.parametrize(("wrong", "message"), MISTAKES, ids=[message for _, message in MISTAKES])
def test_mistakes_are_explained(wrong: dict[str, Any], message: str) -> None:
    if "question" not in wrong:
        wrong = {"question": "a", "context": "x", **wrong}
    with pytest.raises(InputError, match=message):
        answer(**wrong, model=MODEL)


def test_unequal_streams_are_refused_where_one_ends() -> None:
    for questions, contexts, message in (("ab", "x", "question 1, and no context"), ("a", "xy", "context 1, and no q")):
        with pytest.raises(InputError, match=message):
            list(answer(iter(questions), iter(contexts), model=MODEL))


def test_a_model_without_the_head_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="answer needs an answer head"):
        answer("a", "b", model=saved(tmp_path, small_model("BertModel")))
    with pytest.raises(BertieError, match="answer needs a BertForQuestionAnswering"):
        answer("a", "b", model=tagging())
    with pytest.raises(InputError, match="without its tokenizer"):
        answer("a", "b", model=MODEL.model)


def test_real_questions_are_quoted_exactly(shared_data: Path) -> None:
    questions = [
        q for number, q in enumerate(read_squad(shared_data / "qa" / "squad2_half_dev.json")) if number % 20 == 0
    ]
    questions += [q for number, q in enumerate(read_squad(shared_data / "qa/xquad/xquad.zh.json")) if number % 20 == 0]
    assert len(questions) > 300
    model = answering(positions=512)
    results = answer([(q.question, q.context) for q in questions], model=model, n_best=5, max_length=256)
    for question, result in zip(questions, results, strict=True):
        check(result, question.context, n_best=5)
        assert result.question == question.question


def test_the_question_that_leaves_no_room_is_the_one_that_is_quoted() -> None:
    pairs = [("who?", "some text")] * 3 + [("why " * 600, "some text"), ("when?", "some text")]
    with pytest.raises(InputError, match="The question 'why why"):
        answer(pairs, model=answering())
