"""`bertie.Client` and `bertie.AsyncClient` against a server made of a few lines: patience, order, shapes, errors."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any

import numpy as np
import pytest

pytest.importorskip("httpx", reason="the client needs httpx (extra: serve)")

from bertie import answers
from bertie.client import AsyncClient, Client, Retrying, ServerError
from bertie.client.requests import refusal, retry_after
from bertie.errors import InputError, TruncationWarning

Reply = tuple[int, dict[str, str], Any]


@dataclass
class Stub:
    """A server that answers what it is told to, and keeps what it was asked."""

    url: str = ""
    reply: Callable[[str, Any], Reply] = lambda path, body: (200, {}, embedded(body))
    seen: list[tuple[str, Any, dict[str, str]]] = field(default_factory=list)
    under_way: int = 0
    most_under_way: int = 0


def embedded(body: Any) -> Any:
    """The length of each text as a vector of two, in OpenAI's shape."""
    vectors = [np.array([len(text), hash(text) % 97], dtype="<f4") for text in body["input"]]
    rows = [{"index": n, "embedding": base64.b64encode(v.tobytes()).decode()} for n, v in enumerate(vectors)]
    return {"data": rows[::-1]}  # the order of the rows is told by `index`


@pytest.fixture
def stub() -> Iterator[Stub]:
    state = Stub()
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            raw = self.rfile.read(int(self.headers.get("content-length") or 0))
            body = json.loads(raw) if raw else None
            with lock:
                state.seen.append((self.path, body, {k.lower(): v for k, v in self.headers.items()}))
                state.under_way += 1
                state.most_under_way = max(state.most_under_way, state.under_way)
            status, headers, payload = state.reply(self.path, body)
            data = b"" if payload is None else json.dumps(payload).encode()
            with lock:
                state.under_way -= 1
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = answer  # noqa: N815

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield state
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Pauses are written down instead of waited for."""
    taken: list[float] = []
    real = asyncio.sleep

    async def skip(seconds: float) -> None:
        taken.append(seconds)
        await real(0)

    monkeypatch.setattr("bertie.client.synchronous.time.sleep", taken.append)
    monkeypatch.setattr("bertie.client.asynchronous.asyncio.sleep", skip)
    return taken


def asked(stub: Stub, kind: str, question: Callable[[Any], Any], **settings: Any) -> Any:
    """The answer to the same question from either client."""
    if kind == "Client":
        with Client(stub.url, **settings) as client:
            found = question(client)
            return list(found) if isinstance(found, Iterator) else found

    async def run() -> Any:
        async with AsyncClient(stub.url, **settings) as client:
            found = question(client)
            return [one async for one in found] if hasattr(found, "__aiter__") else await found

    return asyncio.run(run())


both = pytest.mark.parametrize("kind", ["Client", "AsyncClient"])


def failing(times: int, status: int, headers: dict[str, str] | None = None) -> Callable[[str, Any], Reply]:
    """Refuse the first `times` requests, then answer."""
    numbers = count(1)

    def reply(path: str, body: Any) -> Reply:
        if next(numbers) <= times:
            return status, headers or {}, {"error": "not now"}
        return 200, {}, embedded(body)

    return reply


@both
def test_one_text_a_list_and_a_stream_have_their_shapes(stub: Stub, kind: str) -> None:
    texts = [f"{'x' * n}" for n in range(1, 11)]
    assert asked(stub, kind, lambda c: c.embed("abc"))[0] == 3
    array = asked(stub, kind, lambda c: c.embed(texts), batch_size=3)
    assert array.shape == (10, 2)
    assert array[:, 0].tolist() == list(range(1, 11))
    stream = asked(stub, kind, lambda c: c.embed(iter(texts)), batch_size=4)
    assert [vector[0] for vector in stream] == list(range(1, 11))
    assert asked(stub, kind, lambda c: c.embed([])).shape[0] == 0


def test_what_is_asked_may_be_given_by_name(stub: Stub) -> None:
    with Client(stub.url) as client:
        assert client.embed(texts=["a", "bb"]).shape == (2, 2)  # type: ignore[call-overload]
        with pytest.raises(TypeError, match=r"embed\(\) needs texts"):
            client.embed()  # type: ignore[call-overload]


@both
@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_server_is_asked_again(stub: Stub, pauses: list[float], kind: str, status: int) -> None:
    stub.reply = failing(3, status)
    assert asked(stub, kind, lambda c: c.embed("abc"))[0] == 3
    assert len(stub.seen) == 4
    assert len(pauses) == 3
    for number, pause in enumerate(pauses):
        assert 0.125 * 2**number <= pause <= 0.25 * 2**number


@both
def test_retry_after_is_honoured(stub: Stub, pauses: list[float], kind: str) -> None:
    stub.reply = failing(1, 429, {"Retry-After": "7"})
    asked(stub, kind, lambda c: c.embed("abc"))
    assert pauses == [7.0]


@both
def test_a_server_that_asks_for_more_patience_than_we_have_is_an_error(
    stub: Stub, pauses: list[float], kind: str
) -> None:
    stub.reply = failing(9, 503, {"Retry-After": "3600"})
    with pytest.raises(ServerError, match="not now") as caught:
        asked(stub, kind, lambda c: c.embed("abc"))
    assert caught.value.status == 503
    assert not pauses
    assert len(stub.seen) == 1


@both
def test_attempts_end(stub: Stub, pauses: list[float], kind: str) -> None:
    stub.reply = failing(99, 503)
    with pytest.raises(ServerError, match="not now"):
        asked(stub, kind, lambda c: c.embed("abc"), attempts=3)
    assert len(stub.seen) == 3


@both
@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_mistake_in_the_request_is_an_input_error_at_once(stub: Stub, kind: str, status: int) -> None:
    stub.reply = lambda path, body: (status, {}, {"error": {"message": "Text 0 is empty.", "remedy": "Fill it."}})
    with pytest.raises(InputError) as caught:
        asked(stub, kind, lambda c: c.embed("abc"))
    assert (caught.value.cause, caught.value.remedy) == ("Text 0 is empty.", "Fill it.")
    assert len(stub.seen) == 1


@both
def test_a_server_that_is_not_there_is_an_error_with_its_address(stub: Stub, pauses: list[float], kind: str) -> None:
    stub.url = "http://127.0.0.1:9"
    with pytest.raises(ServerError, match=r"http://127.0.0.1:9 cannot be reached") as caught:
        asked(stub, kind, lambda c: c.embed("abc"), attempts=3)
    assert "bertie serve" in str(caught.value)
    assert caught.value.status is None
    assert len(pauses) == 2


@both
def test_a_slow_server_is_not_asked_again(stub: Stub, pauses: list[float], kind: str) -> None:
    def slow(path: str, body: Any) -> Reply:
        threading.Event().wait(0.5)
        return 200, {}, embedded(body)

    stub.reply = slow
    with pytest.raises(ServerError, match=r"did not answer within 0.1 seconds"):
        asked(stub, kind, lambda c: c.embed("abc"), timeout=0.1)
    assert len(stub.seen) == 1


@both
def test_order_is_kept_and_only_so_many_requests_are_under_way(stub: Stub, kind: str) -> None:
    waits = iter([0.08, 0.0, 0.05, 0.01] * 10)

    def uneven(path: str, body: Any) -> Reply:
        threading.Event().wait(next(waits))
        return 200, {}, embedded(body)

    stub.reply = uneven
    texts = ["x" * n for n in range(1, 41)]
    array = asked(stub, kind, lambda c: c.embed(texts), batch_size=2, concurrency=3)
    assert array[:, 0].tolist() == list(range(1, 41))
    assert 1 < stub.most_under_way <= 3


def test_a_stream_without_end_is_read_a_little_ahead(stub: Stub) -> None:
    taken = count()

    def endless() -> Iterator[str]:
        for number in taken:
            yield "x" * (number + 1)

    with Client(stub.url, batch_size=2, concurrency=2) as client:
        stream = client.embed(endless())
        assert [next(stream)[0] for _ in range(5)] == [1, 2, 3, 4, 5]
        stream.close()
    assert next(taken) <= 5 + 2 * 2 + 2


def test_async_generators_are_streams(stub: Stub) -> None:
    async def texts() -> Any:
        for number in range(1, 6):
            yield "x" * number

    assert [v[0] for v in asked(stub, "AsyncClient", lambda c: c.embed(texts()), batch_size=2)] == [1, 2, 3, 4, 5]


@both
def test_the_key_goes_into_the_header_and_nowhere_else(stub: Stub, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERTIE_API_KEY", "secret-key")
    asked(stub, kind, lambda c: c.embed("abc"))
    assert stub.seen[0][2]["authorization"] == "Bearer secret-key"
    stub.reply = lambda path, body: (401, {}, {"error": "No."})
    with pytest.raises(ServerError) as caught:
        asked(stub, kind, lambda c: c.embed("abc"))
    assert "secret-key" not in str(caught.value) + repr(Client(stub.url))
    assert "BERTIE_API_KEY" in str(caught.value)
    with pytest.raises(InputError, match="API key"):
        Client(stub.url, api_key="two\nlines")


@both
def test_similarity_is_the_cosine_of_the_vectors(stub: Stub, kind: str) -> None:
    def reply(path: str, body: Any) -> Reply:
        axes = {"a": [2.0, 0.0], "b": [0.0, 3.0], "c": [1.0, 1.0]}
        rows = [np.array(axes[text], dtype="<f4").tobytes() for text in body["input"]]
        data = [{"index": n, "embedding": base64.b64encode(row).decode()} for n, row in enumerate(rows)]
        return 200, {}, {"data": data}

    stub.reply = reply
    found = asked(stub, kind, lambda c: c.similarity("a", ["a", "b", "c"]))
    assert np.allclose(found, [[1, 0, 2**-0.5]])
    assert np.allclose(asked(stub, kind, lambda c: c.similarity(["a", "b"])), np.eye(2))


@both
def test_rerank_puts_batches_together_best_first(stub: Stub, kind: str) -> None:
    def reply(path: str, body: Any) -> Reply:
        rows = [{"index": n, "relevance_score": float(text)} for n, text in enumerate(body["documents"])]
        return 200, {}, {"results": sorted(rows, key=lambda row: -row["relevance_score"])}

    stub.reply = reply
    found = asked(stub, kind, lambda c: c.rerank("q", ["3", "1", "5", "3", "2"], top_k=4), batch_size=2)
    assert [(one.index, one.score, one.text) for one in found] == [(2, 5, "5"), (0, 3, "3"), (3, 3, "3"), (4, 2, "2")]


def test_wrong_things_are_refused_before_anything_is_sent(stub: Stub) -> None:
    client = Client(stub.url)
    wrong: list[Callable[[], Any]] = [
        lambda: client.embed(["a", b"bytes"]),
        lambda: client.embed(["a", None]),
        lambda: client.embed(b"bytes"),
        lambda: client.embed({"a": 1}),
        lambda: client.answer("only a question"),
        lambda: client.answer(["q"], ["c", "d"]),
        lambda: client.next_sentence("a", ["b"]),
        lambda: client.rerank("q", "one string"),
        lambda: client.rerank(5, ["a"]),  # type: ignore[arg-type]
        lambda: Client("localhost:8080"),
        lambda: Client(stub.url, batch_size=0),
        lambda: Client(stub.url, attempts=0),
        lambda: client.answer("q", "c", threshold=float("inf")),
    ]
    for mistake in wrong:
        with pytest.raises(InputError):
            mistake()
    assert not stub.seen
    client.close()


def test_lone_surrogates_reach_the_server(stub: Stub) -> None:
    with Client(stub.url) as client:
        client.embed("a\ud800b")
    assert stub.seen[0][1]["input"] == ["a\ud800b"]


@pytest.mark.parametrize(
    "payload", [None, [], {}, {"data": [{}]}, {"data": []}, {"data": [{"index": 0, "embedding": 5}]}]
)
def test_an_answer_of_another_shape_is_a_server_error(stub: Stub, payload: Any) -> None:
    stub.reply = lambda path, body: (200, {}, payload)
    with Client(stub.url) as client, pytest.raises(ServerError, match="cannot be read"):
        client.embed("abc")


def test_retry_after_reads_numbers_and_dates() -> None:
    assert retry_after({"retry-after": "3"}) == 3
    later = retry_after({"retry-after": formatdate(time.time() + 60, usegmt=True)})
    assert later is not None
    assert 55 <= later <= 61
    assert retry_after({"retry-after": "soon"}) is None
    assert retry_after({}) is None


def test_pauses_grow_to_a_longest() -> None:
    retrying = Retrying(attempts=20, first=1, longest=8)
    pauses = [retrying.pause(attempt) for attempt in range(1, 20)]
    assert all(pause is not None and 0.5 <= pause <= 8 for pause in pauses)
    assert retrying.pause(20) is None


@pytest.mark.parametrize(
    "payload",
    [
        {"error": "Too long.", "error_type": "Validation"},
        {"error": {"message": "Too long.", "type": "invalid_request_error"}},
        {"cause": "Too long.", "remedy": None},
        {"detail": "Too long."},
    ],
)
def test_the_words_of_every_kind_of_server_are_found(payload: Any) -> None:
    assert refusal(422, payload, url="http://x").cause == "Too long."


def test_answers_are_the_tasks_own_types() -> None:
    from bertie.search import index
    from bertie.tasks import answer, classify, features, fill, generate, next_sentence, rerank, tag

    pairs = [
        (classify, "Classification"), (tag, "Entity"), (tag, "WordTag"), (answer, "FoundAnswer"),
        (answer, "AnswerResult"), (fill, "Candidate"), (fill, "Filling"), (fill, "Filled"), (generate, "Generated"),
        (next_sentence, "NextSentence"), (rerank, "Ranked"), (features, "TokenFeatures"), (features, "Features"),
        (index, "Hit"),
    ]  # fmt: skip
    for module, name in pairs:
        assert getattr(module, name) is getattr(answers, name), name


def test_texts_that_the_server_cut_are_told(stub: Stub) -> None:
    payload = {"results": [[{"label": "a", "score": 1.0}]], "usage": {"truncated_texts": 1}}
    stub.reply = lambda path, body: (200, {}, payload)
    with Client(stub.url) as client, pytest.warns(TruncationWarning, match="The server cut 1 texts"):
        assert client.classify("a long text").label == "a"


def test_a_client_does_not_import_torch() -> None:
    code = "import sys, bertie.client; bertie.client.Client('http://127.0.0.1:9'); print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


def test_without_httpx_the_error_says_what_to_install() -> None:
    code = "import sys; sys.modules['httpx'] = None\nimport bertie.client\nbertie.client.Client('http://127.0.0.1:9')"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'bertie[serve]'" in found.stderr
