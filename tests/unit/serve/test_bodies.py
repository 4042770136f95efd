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
from bertie.serve.bodies import encode, encode_answer, encode_rows, read_body, shape
from bertie.serve.failures import Refusal
from bertie.serve.settings import Limits
from bertie.serve.tasks import NUMBER_BYTES, AnswerRequest

JSON = st.recursive(
    st.none() | st.integers() | st.text(alphabet='a",[{\\é\n', max_size=8),
    lambda inside: st.lists(inside, max_size=4) | st.dictionaries(st.text(alphabet='x"\\', max_size=3), inside),
    max_leaves=20,
)


def plain_shape(value: Any) -> tuple[int, int, int]:
    if isinstance(value, str):
        return 0, 1, 0
    if not isinstance(value, list | dict):
        return 0, 0, 0
    parts = [plain_shape(part) for part in (value if isinstance(value, list) else value.values())]
    keys = len(value) if isinstance(value, dict) else 0
    lists, strings, commas = (sum(part[place] for part in parts) for place in range(3))
    return lists + 1, strings + keys, commas + max(0, len(value) - 1)


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
    ],
    ids=["lists", "strings", "numbers"],
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


def test_answers_in_parts_are_the_same_json() -> None:
    ranks = [schemas.Rank(1, 0.5), schemas.Rank(2, 0.25, "a text")] * 5
    usage = schemas.Usage(3, 3)
    found: list[Any] = [
        ranks,
        [],
        schemas.CohereRerankAnswer("id", [], "m", usage, {"a": {"b": 1}}),
        schemas.Answer("m", [schemas.FilledOut("a", ((Candidate("x", 0.5, "y", (1,)),),), ())] * 9, usage),
        SentFeatures([SentToken("a", [SentLayer(0, [1.0, 2.0])] * 9)] * 9),
        schemas.SimilarityAnswer("m", [[1.0, 2.0]], usage),
    ]
    for one in found:
        assert encode_answer(one) == encode(one)
    rows = np.random.default_rng(1).standard_normal((3, 4, 5)).astype(np.float32)
    assert encode_rows(rows) == encode(rows.tolist())
    assert max(len(encode(float(value))) for value in (rows * np.float32(1e-5)).flat) < NUMBER_BYTES
