"""Bodies in and out of JSON: what is counted before a large one is decoded, and answers encoded in parts."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertie.answers import Candidate, SentFeatures, SentLayer, SentToken
from bertie.serve import bodies, schemas
from bertie.serve.bodies import NUMBER_BYTES, encode, encode_answer, encode_rows, read_body, shape
from bertie.serve.failures import Refusal
from bertie.serve.settings import Limits
from bertie.serve.tasks import AnswerRequest

JSON = st.recursive(
    st.none() | st.integers() | st.text(alphabet='a",[{\\é\n', max_size=8),
    lambda inside: st.lists(inside, max_size=4) | st.dictionaries(st.text(alphabet='x"\\', max_size=3), inside),
    max_leaves=20,
)


def plain_shape(value: Any, depth: int = 1) -> tuple[int, int, int, int]:
    if isinstance(value, str):
        return 0, 1, 0, 0
    if not isinstance(value, list | dict):
        return 0, 0, 0, 0
    parts = [plain_shape(part, depth + 1) for part in (value if isinstance(value, list) else value.values())]
    keys = len(value) if isinstance(value, dict) else 0
    own = max(0, len(value) - 1)
    lists, strings, commas, outer = (sum(part[place] for part in parts) for place in range(4))
    return lists + 1, strings + keys, commas + own, outer + own * (depth == 2)


@given(JSON, st.booleans(), st.integers(1, 7))
@settings(max_examples=300, deadline=None)
def test_the_shape_of_a_body_is_that_of_what_is_in_it(value: Any, ascii_only: bool, block: int) -> None:
    """Whatever is inside of strings, and wherever a block of it ends."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bodies, "_BLOCK", block)
        assert shape(json.dumps(value, ensure_ascii=ascii_only).encode()) == plain_shape(value)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b'{"inputs":[' + b",".join([b'["a"]'] * 30_000) + b"]}", schemas.ClassifyRequest),
        (b'{"inputs":[' + b",".join([b'"a"'] * 30_000) + b"]}", schemas.EmbedRequest),
        (b'{"ids":[[' + b",".join([b"1"] * 2_000_000) + b"]]}", schemas.DecodeRequest),
        (b'{"ids":[[1],' + b",".join([b"1"] * 40_000) + b"]}", schemas.DecodeRequest),
    ],
    ids=["lists", "strings", "numbers", "numbers in one list"],
)
def test_a_body_with_too_much_in_it_is_refused_before_it_is_decoded(body: bytes, kind: Any) -> None:
    class Never:
        def decode(self, body: bytes) -> None:
            raise AssertionError("it was decoded")

    never: Any = Never()
    with pytest.raises(Refusal) as refused:
        read_body(never, body, Limits())
    assert refused.value.status == (422 if kind is schemas.ClassifyRequest else 413)


def test_the_largest_legal_bodies_are_taken() -> None:
    limits = Limits()
    texts = json.dumps({"inputs": ['a, [text] "quoted" {x}, ' * 300] * limits.batch}).encode()
    assert len(texts) < limits.body_bytes
    assert len(read_body(msgspec.json.Decoder(schemas.EmbedRequest), texts, limits).inputs) == limits.batch
    pairs = json.dumps({"inputs": [{"question": "a", "context": "b" * 100}] * limits.batch}).encode()
    assert len(read_body(msgspec.json.Decoder(AnswerRequest), pairs, limits).inputs) == limits.batch
    ids = json.dumps({"input": [[1] * 512] * limits.batch}).encode()
    assert len(read_body(msgspec.json.Decoder(schemas.EmbeddingsRequest), ids, limits).input) == limits.batch


class Watched:
    """A decoder that notes the most bytes it was given at once."""

    real: Any = msgspec.json.Decoder

    def __init__(self, kind: Any, most: list[int]) -> None:
        self._decoder = self.real(kind)
        self.type, self._most = kind, most

    def decode(self, given: Any) -> Any:
        self._most[0] = max(self._most[0], len(memoryview(given)))
        return self._decoder.decode(given)


@pytest.mark.parametrize("kind", [schemas.DecodeRequest, schemas.EmbedRequest, schemas.EmbeddingsRequest])
def test_no_single_call_decodes_a_million_ids(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else runs in such a call: it would take a tenth of a second, and more on a busy machine."""
    name = {schemas.DecodeRequest: "ids", schemas.EmbedRequest: "inputs", schemas.EmbeddingsRequest: "input"}[kind]
    rows = [[number, 7] * 500 for number in range(1000)]
    body = json.dumps({"model": "m", name: rows}).encode()
    most = [0]
    bodies._element_decoders.cache_clear()
    monkeypatch.setattr(msgspec.json, "Decoder", lambda one: Watched(one, most))
    try:
        found = read_body(Watched(kind, most), body, Limits())  # type: ignore[arg-type]
    finally:
        bodies._element_decoders.cache_clear()
    assert getattr(found, name) == rows
    assert found.model == "m"
    assert most[0] < 64 << 10


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("ids", [[1] * 500] * 90 + [[1, 2, "x"]], schemas.DecodeRequest),
        ("ids", [[1] * 500] * 90 + ["x"], schemas.DecodeRequest),
        ("ids", [[1] * 500] * 90 + [[-1]], schemas.DecodeRequest),
        ("inputs", ["a" * 500] * 200 + [None], schemas.EmbedRequest),
        ("inputs", {"a": "b" * 90_000}, schemas.EmbedRequest),
        ("inputs", ["a" * 500] * 200 + [["a", "b", "c"]], schemas.ClassifyRequest),
    ],
)
def test_an_error_in_a_large_body_is_named_as_in_a_small_one(name: str, value: Any, kind: Any) -> None:
    decoder, body = msgspec.json.Decoder(kind), json.dumps({name: value}).encode()
    with pytest.raises(msgspec.ValidationError) as plain:
        decoder.decode(body)
    with pytest.raises(Refusal) as refused:
        read_body(decoder, body, Limits())
    assert refused.value.status == 422
    assert refused.value.message == f"The body is not what this route takes: {plain.value}"


def test_a_row_of_too_many_ids_is_refused_before_it_is_decoded() -> None:
    body = json.dumps({"ids": [[1], [1] * 100_000]}).encode()
    with pytest.raises(Refusal, match=r"`ids\[1\]` has more than 16448 elements") as refused:
        read_body(msgspec.json.Decoder(schemas.DecodeRequest), body, Limits())
    assert refused.value.status == 413


def test_answers_in_parts_are_the_same_json() -> None:
    ranks = [schemas.Rank(1, 0.5), schemas.Rank(2, 0.25, "a text")] * 5
    usage = schemas.Usage(3, 3)
    found: list[Any] = [
        ranks,
        [],
        {"a": [[0.5, None]] * 9, "b": {"c": {1: "d"}, "e": []}},
        schemas.CohereRerankAnswer("id", [], "m", usage, {"a": {"b": 1}}),
        schemas.Answer("m", [schemas.FilledOut("a", ((Candidate("x", 0.5, "y", (1,)),),), ())] * 9, usage),
        SentFeatures([SentToken("a", [SentLayer(0, [1.0, 2.0])] * 9)] * 9),
        schemas.SimilarityAnswer("m", [[1.0, 2.0]], usage),
    ]
    for one in found:
        assert encode_answer(one) == encode(one)
    rows = np.random.default_rng(1).standard_normal((3, 4, 5)).astype(np.float32)
    found = np.array(json.loads(encode_rows(rows)), np.float32)
    np.testing.assert_array_equal(found, rows)  # to the last bit
    assert len(encode_rows(rows)) <= len(encode(rows.tolist()))
    assert max(len(encode(float(value))) for value in (rows * np.float32(1e-5)).flat) < NUMBER_BYTES
