"""Long documents: no token is lost, offsets quote the text, and each token is judged where it has most context."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertie.errors import TokenizerError
from bertie.text import BertTokenizer, split_document, split_documents, train_vocabulary
from bertie.text.windows import max_context_score, max_context_windows, window_spans
from bertie.text.wordpiece.reference import WordPieceTokenizer

TEXT = (
    "Ännchen von Tharau ist's, die mir gefällt;\tsie ist mein Leben, mein Gut und mein Geld. 漢字 😀 the unaffable end"
)
TOKENIZER = train_vocabulary([TEXT, "the a of and to in unaffable question what"], vocab_size=160, min_frequency=1)


def test_windows_of_a_short_text_are_one_row_as_the_tokenizer_makes_it() -> None:
    document = split_document(TOKENIZER, TEXT)
    (window,) = document.windows
    assert list(window.input_ids) == TOKENIZER.encode(TEXT)
    assert window.token_type_ids == (0,) * len(window)
    assert (window.start, window.end, window.shift) == (0, len(document), 1)
    assert document.quote(0, len(document) - 1) == TEXT


def test_windows_equal_the_tokenizers_own_overflow() -> None:
    for question in (None, "what end"):
        document = split_document(TOKENIZER, TEXT, question=question, max_length=20, stride=6)
        first, second = (TEXT, None) if question is None else (question, TEXT)
        rows = TOKENIZER(
            first,
            second,
            truncation="only_first" if question is None else "only_second",
            max_length=20,
            stride=6,
            return_overflowing_tokens=True,
        )
        assert [list(window.input_ids) for window in document.windows] == rows["input_ids"]
        assert [list(window.token_type_ids) for window in document.windows] == rows["token_type_ids"]


@settings(max_examples=150, deadline=None)
@given(
    text=st.lists(st.sampled_from([*"abcdeänt ,.\t漢😀\u0301\x00", "unaffable ", "gefällt "]), max_size=60).map(
        "".join
    ),
    question=st.none() | st.text("aent ", max_size=6),
    room=st.integers(1, 30),
    stride=st.integers(0, 40),
    keep_words=st.booleans(),
)
def test_every_token_is_in_a_window_and_its_offsets_quote_the_text(
    text: str, question: str | None, room: int, stride: int, keep_words: bool
) -> None:
    taken = len(TOKENIZER("", question)["input_ids"]) if question is None else len(TOKENIZER(question, "")["input_ids"])
    document = split_document(
        TOKENIZER, text, question=question, max_length=taken + room, stride=stride, keep_words=keep_words
    )
    reference = WordPieceTokenizer(TOKENIZER.get_vocab()).tokenize(text)
    assert list(document.token_ids) == [token.id for token in reference]
    assert list(document.offsets) == [(token.start, token.end) for token in reference]
    seen: set[int] = set()
    for window in document.windows:
        assert len(window) <= taken + room
        assert len(window.token_type_ids) == len(window)
        for token in range(window.start, window.end):
            position = token + window.shift
            assert window.input_ids[position] == document.token_ids[token]
            assert document.token_at(window.index, position) == token
            seen.add(token)
        assert document.token_at(window.index, 0) is None
        assert document.token_at(window.index, len(window) - 1) is None
    assert seen == set(range(len(document)))
    for token in range(len(document)):
        best = [window for window in document.windows_with(token) if document.is_max_context(window, token)]
        assert best == [document.best_windows[token]]
        start, end = document.span(token, token)
        assert document.quote(token, token) == text[start:end] != ""


@given(
    num_tokens=st.integers(0, 300),
    room=st.integers(1, 60),
    stride=st.integers(0, 59),
    word_lengths=st.none() | st.lists(st.integers(1, 70), min_size=1, max_size=5),
)
def test_spans_cover_everything_and_always_advance(
    num_tokens: int, room: int, stride: int, word_lengths: list[int] | None
) -> None:
    stride = min(stride, room - 1)
    words: list[int] | None = None
    if word_lengths is not None:
        words = []
        while len(words) < num_tokens:
            words += [len(words)] * word_lengths[len(words) % len(word_lengths)]
        words = words[:num_tokens]
    spans = window_spans(num_tokens, room, stride, words)
    assert spans[0][0] == 0
    assert spans[-1][1] == num_tokens
    for (start, end), (following, later) in itertools.pairwise(spans):
        assert start < following <= end < later
        if words is None:
            assert end - following == stride
    for start, end in spans:
        assert end - start <= room
        if words is not None and end < num_tokens and words[end] == words[end - 1]:
            # Only a word longer than the window is cut.
            assert words[start] == words[end]


def test_context_is_googles_rule() -> None:
    # From the comment in Google's run_squad.py: 'bought' has 1 token to its left in span B, and 4 left, 0 right in A …
    spans = [(0, 5), (3, 8), (6, 11)]
    assert max_context_score(4, *spans[0]) == pytest.approx(0 + 0.05)
    assert max_context_score(4, *spans[1]) == pytest.approx(1 + 0.05)
    assert max_context_windows(spans, 11) == (0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2)
    # Equal context on both sides: the earlier window; but a longer one goes first.
    assert max_context_windows([(0, 4), (2, 6)], 6) == (0, 0, 0, 1, 1, 1)
    assert max_context_windows([(0, 4), (2, 7)], 7) == (0, 0, 0, 1, 1, 1, 1)


def test_empty_documents_have_one_empty_window() -> None:
    document = split_document(TOKENIZER, "", question="what")
    assert [list(window.input_ids) for window in document.windows] == [TOKENIZER.encode("what", "")]
    assert len(document) == 0
    assert document.best_windows == ()


def test_questions_that_leave_no_room_are_refused() -> None:
    with pytest.raises(
        TokenizerError, match="max_length=6 leaves no room for the document: special tokens and question"
    ):
        split_document(TOKENIZER, TEXT, question="the the the the", max_length=6)
    with pytest.raises(TokenizerError, match="stride=-1"):
        split_document(TOKENIZER, TEXT, stride=-1)
    with pytest.raises(TokenizerError, match="stride=5 should be"):
        window_spans(10, 5, 5)


def test_documents_without_a_model_length_are_one_window() -> None:
    unlimited = BertTokenizer(TOKENIZER.get_vocab(), check_case=False)
    assert len(split_document(unlimited, TEXT * 50).windows) == 1


def test_many_documents_are_each_as_alone() -> None:
    texts = [TEXT, "", "the end", TEXT * 3]
    questions = ["what end", "", "what", "of"]
    for options in ({"max_length": 20, "stride": 6}, {"max_length": 20, "stride": 6, "keep_words": True}, {}):
        together = list(split_documents(TOKENIZER, texts, **options))  # type: ignore[arg-type]
        assert together == [split_document(TOKENIZER, text, **options) for text in texts]  # type: ignore[arg-type]
        together = list(split_documents(TOKENIZER, texts, questions=questions, **options))  # type: ignore[arg-type]
        for document, text, question in zip(together, texts, questions, strict=True):
            assert document == split_document(TOKENIZER, text, question=question, **options)  # type: ignore[arg-type]
    assert list(split_documents(TOKENIZER, [])) == []


def test_an_error_comes_with_its_document() -> None:
    documents = split_documents(TOKENIZER, ["the", "end"], questions=["what", "what " * 20], max_length=12)
    assert next(documents).text == "the"
    with pytest.raises(TokenizerError, match="leaves no room"):
        next(documents)
