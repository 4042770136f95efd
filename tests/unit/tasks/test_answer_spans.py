"""The span decoder against Google's published rules, written here a second time as plainly as they read."""

from __future__ import annotations

import math
import random
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertie.tasks.answer import Decoded, SpanRules, find_spans
from bertie.text import WindowedDocument, split_document
from token_models import HARD_TEXTS, small_tokenizer

Logits = list[tuple[np.ndarray, np.ndarray]]


class Plain(NamedTuple):
    logit: float
    first: int
    last: int


def plain_max_context(document: WindowedDocument, token: int) -> int:
    """The window where a token has most context; the first of equals (`_check_is_max_context`)."""
    best, chosen = -1.0, -1
    for number, window in enumerate(document.windows):
        if window.start <= token < window.end:
            left, right = token - window.start, window.end - 1 - token
            score = min(left, right) + 0.01 * (window.end - window.start)
            if score > best:
                best, chosen = score, number
    return chosen


def plain_spans(document: WindowedDocument, logits: Logits, size: int | None, longest: int) -> list[Plain]:
    """Every span that `write_predictions` looks at, best first. `size` is its n_best_size; None: every position."""
    spans = []
    for number, (window, (start, end)) in enumerate(zip(document.windows, logits, strict=True)):
        starts = sorted(range(len(start)), key=lambda i: start[i], reverse=True)[:size]
        ends = sorted(range(len(end)), key=lambda i: end[i], reverse=True)[:size]
        for s in starts:
            for e in ends:
                first, last = document.token_at(number, s), document.token_at(number, e)
                if first is None or last is None or last < first or last - first + 1 > longest:
                    continue
                if plain_max_context(document, first) == number:
                    spans.append(Plain(float(start[s]) + float(end[e]), first, last))
        assert len(window) == len(start)
    return sorted(spans, reverse=True)


def plain_n_best(document: WindowedDocument, spans: list[Plain], number: int) -> list[Plain]:
    kept: list[Plain] = []
    texts: set[str] = set()
    for span in spans:
        text = document.quote(span.first, span.last)
        if text not in texts and len(kept) < number:
            texts.add(text)
            kept.append(span)
    return kept


def plain_scores(spans: list[Plain], kept: list[Plain], null: float | None) -> list[float]:
    everything = [span.logit for span in spans] + ([] if null is None else [null])
    total = sum(math.exp(logit) for logit in everything)
    return [math.exp(span.logit) / total for span in kept]


def some_document(seed: int, words: int, max_length: int, stride: int) -> WindowedDocument:
    rng = random.Random(seed)
    pool = " ".join(HARD_TEXTS).split()
    text = " ".join(rng.choice(pool) for _ in range(words))
    return split_document(small_tokenizer(), text, question="who is it", max_length=max_length, stride=stride)


def some_logits(document: WindowedDocument, seed: int, spread: float = 2.0) -> Logits:
    rng = np.random.default_rng(seed)
    return [
        tuple(rng.normal(0, spread, (2, len(window))).astype(np.float32))  # type: ignore[misc]
        for window in document.windows
    ]


@settings(max_examples=120)
@given(
    seed=st.integers(0, 10**6),
    words=st.integers(0, 40),
    room=st.integers(1, 40),
    stride=st.integers(0, 20),
    n_best=st.integers(1, 25),
    longest=st.integers(1, 30),
    beam=st.none() | st.integers(1, 20),
    null=st.booleans(),
)
def test_spans_are_those_of_the_published_rules(
    seed: int, words: int, room: int, stride: int, n_best: int, longest: int, beam: int | None, null: bool
) -> None:
    document = some_document(seed, words, room + 6 + len("who is it"), stride)
    logits = some_logits(document, seed)
    decoded = find_spans(document, logits, SpanRules(n_best, longest, beam), null=null)
    spans = plain_spans(document, logits, beam, longest)
    kept = plain_n_best(document, spans, n_best)
    null_logit = min(float(start[0]) + float(end[0]) for start, end in logits)
    assert [(span.first, span.last) for span in decoded.spans] == [(span.first, span.last) for span in kept]
    assert [span.logit for span in decoded.spans] == pytest.approx([span.logit for span in kept])
    assert decoded.null_logit == pytest.approx(null_logit)
    expected = plain_scores(spans, kept, null_logit if null else None)
    assert [span.score for span in decoded.spans] == pytest.approx(expected, rel=1e-6)
    check_scores(decoded)


def check_scores(decoded: Decoded) -> None:
    scores = [span.score for span in decoded.spans]
    assert all(0 <= score <= 1 for score in scores)
    assert sum(scores) + decoded.null_score <= 1 + 1e-9
    assert scores == sorted(scores, reverse=True)


def test_looking_at_everything_never_finds_less_than_a_beam() -> None:
    better = {3: 0, 20: 0}
    for seed in range(30):
        document = some_document(seed, 60, 60, 16)
        logits = some_logits(document, seed)
        ours = find_spans(document, logits, SpanRules(1), null=False).spans[0]
        for beam in better:
            pruned = find_spans(document, logits, SpanRules(1, beam=beam), null=False).spans
            assert not pruned or ours.logit >= pruned[0].logit
            better[beam] += not pruned or ours.logit > pruned[0].logit
    assert better[20] == 0
    assert better[3] > 0


def test_googles_beam_can_lose_every_answer_to_the_question() -> None:
    document = some_document(3, 4, 60, 16)
    (window,) = document.windows
    start = np.where(np.arange(len(window)) < window.shift, 5.0, 0.0)
    assert find_spans(document, [(start, start)], SpanRules(1, beam=2), null=False).spans == ()
    assert len(find_spans(document, [(start, start)], SpanRules(1), null=False).spans) == 1


def test_a_start_counts_only_in_the_window_where_it_has_most_context() -> None:
    document = some_document(1, 60, 30, 10)
    token = document.windows[1].start  # the first of window 1, better seen at the end of window 0
    assert document.best_windows[token] == 0
    logits = [(np.zeros(len(window)), np.zeros(len(window))) for window in document.windows]
    logits[1][0][token + document.windows[1].shift] = 100.0
    assert find_spans(document, logits, SpanRules(1), null=False).spans[0].logit == 0.0
    logits[0][0][token + document.windows[0].shift] = 50.0
    best = find_spans(document, logits, SpanRules(1), null=False).spans[0]
    assert (best.first, best.window, best.logit) == (token, 0, 50.0)


def test_equal_texts_are_given_once_and_equal_logits_by_place() -> None:
    document = split_document(small_tokenizer(), "ada " * 50, question="who", max_length=20, stride=5)
    logits = [(np.zeros(len(window)), np.zeros(len(window))) for window in document.windows]
    decoded = find_spans(document, logits, SpanRules(n_best=50, max_tokens=3), null=False)
    assert [document.quote(s.first, s.last) for s in decoded.spans] == ["ada", "ada ada", "ada ada ada"]
    assert [(s.first, s.last) for s in decoded.spans] == [(0, 0), (0, 1), (0, 2)]


def test_extreme_logits_stay_finite() -> None:
    document = some_document(2, 30, 30, 8)
    for size in (1e4, 3e38):
        logits = some_logits(document, 0, spread=1.0)
        logits = [(np.sign(s) * size / 4, np.sign(e) * size / 4) for s, e in logits]
        check_scores(find_spans(document, logits, SpanRules(20), null=True))


def test_a_hundred_thousand_tokens_are_decoded() -> None:
    document = split_document(small_tokenizer(), "ada wrote it " * 33_000, question="who", max_length=384, stride=128)
    decoded = find_spans(document, some_logits(document, 0), SpanRules(20), null=True)
    assert len(decoded.spans) == 20
    check_scores(decoded)
