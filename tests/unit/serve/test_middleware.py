"""Who is let in: keys, hosts, rates, and what settings make of files and variables."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from bertie.errors import InputError
from bertie.serve.aside import Answers
from bertie.serve.failures import Refusal, invalid
from bertie.serve.http.middleware import Hosts, _is_known_address
from bertie.serve.http.rates import Rates, shared_buckets
from bertie.serve.service import Call, Service
from bertie.serve.settings import digest, read_keys, read_model_choice


@pytest.mark.parametrize("host", [b"localhost", b"localhost:80", b"127.0.0.1:8000", b"[::1]:8000", b"LocalHost"])
def test_a_loopback_server_answers_to_loopback_names(host: bytes) -> None:
    Hosts("127.0.0.1", ()).check(host)


@pytest.mark.parametrize(
    "host",
    [
        b"evil.example", b"127.0.0.1.evil.example", b"", None, b"192.168.1.5", b"[evil", b"][", b"[::1].evil.example",
        b"[::1]evil.example", b"[::1%evil.example]", b"::1", b"localhost:80.evil.example", b"localhost:80:80",
        b"127.0.0.1@evil.example", b"localhost:80 ", b"localhost\n", b"[]", b":80",
    ],
)  # fmt: skip
def test_a_loopback_server_answers_to_nothing_else(host: bytes | None) -> None:
    with pytest.raises(Refusal) as refused:
        Hosts("127.0.0.1", ()).check(host)
    assert refused.value.status == 421


def test_an_open_server_answers_to_addresses_and_to_names_it_was_given() -> None:
    hosts = Hosts("0.0.0.0", ("bert.example",))
    hosts.check(b"192.168.1.5:80")
    hosts.check(b"BERT.example")
    with pytest.raises(Refusal):
        hosts.check(b"evil.example")
    Hosts("0.0.0.0", ("*",)).check(b"evil.example")


def test_names_of_any_length_are_not_remembered() -> None:
    before = _is_known_address.cache_info().currsize
    for number in range(10):
        with pytest.raises(Refusal):
            Hosts("127.0.0.1", ()).check(b"%d" % number * 60_000)
    assert _is_known_address.cache_info().currsize == before


def test_a_message_does_not_quote_megabytes() -> None:
    refusal = invalid("You sent " + "x" * 1_000_000)
    assert len(refusal.body("/embed")) < 2000
    assert len(refusal.body("/v1/fill")) < 2000


def test_answers_that_are_made_together_have_a_limit() -> None:
    """A client is refused for its own large answers, and not for those of others."""

    def call(client: str, size: int) -> Call:
        return Call(cast("Service", None), "1", "POST", "/embed", 0.0, client=client, answer_bytes=size)

    answers = Answers(100)
    first, second, other = call("a", 60), call("a", 60), call("b", 60)
    answers.hold(first)
    with pytest.raises(Refusal) as refused:
        answers.hold(second)
    assert refused.value.status == 429
    answers.hold(other)
    first.answer_bytes = 90  # it grows, and is its client's only one
    answers.hold(first)
    answers.forget(other)
    answers.forget(first)
    answers.hold(second)


def test_a_rate_is_for_each_key_by_itself() -> None:
    rates = Rates(3)
    for _ in range(3):
        rates.check("a")
    with pytest.raises(Refusal) as refused:
        rates.check("a")
    assert refused.value.status == 429
    assert refused.value.headers()
    rates.check("b")


def test_rates_forget_clients_rather_than_fill_memory() -> None:
    rates = Rates(1)
    size = len(rates._table)
    for number in range(25_000):
        rates.check(str(number))
    assert len(rates._table) == size < 1 << 20
    with pytest.raises(Refusal):
        rates.check("24999")  # the last ones are remembered


def test_fronts_count_requests_together() -> None:
    table = shared_buckets()
    fronts = [Rates(4, table) for _ in range(2)]
    for number in range(4):
        fronts[number % 2].check("a")
    for front in fronts:
        with pytest.raises(Refusal):
            front.check("a")
        front.check("b")


def test_keys_come_from_the_environment_and_a_file_and_are_kept_as_digests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\nfile-key-123\n\n")
    monkeypatch.setenv("BERTIE_API_KEYS", "first-key-1, second-key-2")
    keys = read_keys("BERTIE_API_KEYS", str(file))
    assert keys == {digest(b"first-key-1"), digest(b"second-key-2"), digest(b"file-key-123")}
    assert "first-key-1" not in repr(keys)


def test_bad_key_files_are_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BERTIE_API_KEYS", raising=False)
    with pytest.raises(InputError, match="cannot be read"):
        read_keys("BERTIE_API_KEYS", str(tmp_path / "none"))
    (tmp_path / "empty").write_text("# nothing\n")
    with pytest.raises(InputError, match="holds no key"):
        read_keys("BERTIE_API_KEYS", str(tmp_path / "empty"))
    (tmp_path / "short").write_text("abc\n")
    with pytest.raises(InputError, match="shorter than") as error:
        read_keys("BERTIE_API_KEYS", str(tmp_path / "short"))
    assert "abc" not in str(error.value)


def test_a_model_is_named_by_its_path_or_outright() -> None:
    assert read_model_choice("a=./b").source == "./b"
    assert read_model_choice("./models/tiny").name == "tiny"
    assert read_model_choice("org/name").source == "org/name"
    for bad in ("=x", "a=", "a/b=c", ""):
        with pytest.raises(InputError):
            read_model_choice(bad)
