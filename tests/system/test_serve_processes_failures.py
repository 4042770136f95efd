"""A server of several processes when one of them fails, is stopped or is told to stop at a bad moment.

Signals make the moment: a process that is stopped (SIGSTOP) holds what it was given for as long as the test likes.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest
from prometheus_client.multiprocess import MultiProcessCollector
from serving import folders

from bertie.serve.app import ROUTES
from scripts.serve_drain import run as run_drains
from system.serve_process import FORMS, Server, serving
from system.test_serve_limits import until, working
from tiny_models import saved

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs Linux's /proc")

SEVERAL = FORMS[1]
QUIET = ("--threads", "1", "--log-level", "warning")
KEY, ADMIN = "user-key-0123456789", "admin-key-9876543210"
PUBLIC = {"/health", "/live", "/ready"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return folders(tmp_path_factory.mktemp("models"), "embed")["embed"]


@contextmanager
def two_engines(folder: Path, model: str, *options: str, fronts: int = 1) -> Iterator[tuple[Server, int, int]]:
    """(server, first engine, second engine). Engines are forked first."""
    given = ("-m", f"m={model}", "--task", "embed", "--workers", str(fronts), "--device", "cpu,cpu", *QUIET, *options)
    with serving(folder, *given, environment={"BERTIE_ADMIN_KEYS": ADMIN}) as server:
        engines = engines_of(server)
        try:
            yield server, *engines
        finally:
            for engine in engines:
                with suppress(ProcessLookupError):
                    os.kill(engine, signal.SIGCONT)


def engines_of(server: Server) -> tuple[int, int]:
    """Those that ignore SIGTERM, in the order of their numbers (which processes of a replaced engine keep)."""
    pids = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
    files = {int(pid): Path(f"/proc/{pid}/maps").read_text() for pid in pids}
    found = {re.findall(r"counter_engine-(\d)\.db", text)[0]: pid for pid, text in files.items() if "_engine-" in text}
    return found["0"], found["1"]


def folder_of(server: Server) -> Path:
    """Where the processes meet: metrics, sockets."""
    maps = Path(f"/proc/{engines_of(server)[0]}/maps").read_text()
    return Path(re.search(r"(\S+)/counter_engine-0\.db", maps)[1])  # type: ignore[index]


def count_of(server: Server, name: str, metric: str) -> float:
    """A counter of one process alone."""
    merged = MultiProcessCollector.merge([str(folder_of(server) / f"counter_{name}.db")], accumulate=False)
    return sum(sample.value for one in merged if one.name == metric for sample in one.samples)


# -- an engine ends ---------------------------------------------------------------------------------------------------


def test_what_a_dead_engine_held_is_given_to_the_other_one(tmp_path: Path, model: str) -> None:
    with two_engines(tmp_path, model) as (server, first, second), ThreadPoolExecutor(4) as pool:
        for engine in (first, second):
            os.kill(engine, signal.SIGSTOP)
        asked = [pool.submit(server.post, "/embed", {"inputs": f"a dog {n}"}) for n in range(4)]
        asked_whole = pool.submit(server.post, "/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b"]}})
        time.sleep(0.5)  # they are with the engines now, some with either
        assert not any(one.done() for one in asked)
        os.kill(first, signal.SIGKILL)
        os.kill(second, signal.SIGCONT)
        assert [one.result(30).status_code for one in asked] == [200] * 4
        assert asked_whole.result(30).status_code == 200
        states = server.get("/ready")
        assert states.status_code == 200  # the other engine has the model
        assert states.json()["engines"]["1"] == "ready"
        assert until(lambda: set(server.get("/ready").json()["engines"].values()) == {"ready"}, seconds=30)
        assert server.metric("bertie_engine_restarts_total") == 1
        assert "a process is started again" in server.log.read_text()


def test_ready_names_the_engine_that_is_gone(tmp_path: Path, model: str) -> None:
    with two_engines(tmp_path, model) as (server, first, second):
        os.kill(server.process.pid, signal.SIGSTOP)  # so that nobody starts it again
        os.kill(first, signal.SIGKILL)
        assert until(lambda: server.get("/ready").json()["engines"] == {"0": "restarting", "1": "ready"})
        assert server.post("/embed", {"inputs": "a dog"}).status_code == 200
        os.kill(second, signal.SIGKILL)
        assert until(lambda: server.get("/ready").status_code == 503)
        assert server.get("/metrics").status_code == 200  # that is when they are looked at
        os.kill(server.process.pid, signal.SIGCONT)
        assert until(lambda: server.get("/ready").status_code == 200, seconds=30)


def test_what_the_only_engine_held_gets_503(tmp_path: Path, model: str) -> None:
    options = ("-m", f"m={model}", "--task", "embed", "--workers", "2", "--device", "cpu", *QUIET)
    with serving(tmp_path, *options) as server, ThreadPoolExecutor(1) as pool:
        (engine,) = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()[:1]
        os.kill(int(engine), signal.SIGSTOP)
        asked = pool.submit(server.post, "/embed", {"inputs": "a dog"})
        time.sleep(0.5)
        os.kill(int(engine), signal.SIGKILL)
        assert asked.result(30).status_code == 503
        assert "retry-after" in asked.result().headers
        assert server.post("/embed", {"inputs": "a dog"}).status_code == 200  # it waited for the next one


def test_an_engine_that_cannot_be_started_again_says_why(tmp_path: Path) -> None:
    moved = folders(tmp_path, "embed")["embed"]
    with two_engines(tmp_path, moved) as (server, first, _):
        shutil.rmtree(moved)
        os.kill(first, signal.SIGKILL)
        assert until(lambda: "a process cannot be started again" in server.log.read_text(), seconds=30)
        assert server.post("/embed", {"inputs": "a dog"}).status_code == 200
        assert "Traceback" not in server.log.read_text()


# -- all engines or none ----------------------------------------------------------------------------------------------


def test_a_model_is_loaded_by_every_engine_or_by_none(tmp_path: Path, model: str) -> None:
    admin = {"authorization": f"Bearer {ADMIN}"}
    added = {"name": "added", "source": model, "tasks": ["embed"]}
    with two_engines(tmp_path, model) as (server, first, second), ThreadPoolExecutor(1) as pool:
        os.kill(second, signal.SIGSTOP)
        asked = pool.submit(server.request, "POST", "/admin/models", json=added, headers=admin)
        # The first engine has it, the second one ends before it does.
        assert until(lambda: (folder_of(server) / "models-0.json").exists())
        os.kill(second, signal.SIGKILL)
        assert asked.result(30).status_code == 503
        assert until(lambda: set(server.get("/ready").json()["engines"].values()) == {"ready"}, seconds=30)
        assert set(server.get("/ready").json()["models"]) == {"m"}
        # So it can be tried again, and is then in both.
        assert server.request("POST", "/admin/models", json=added, headers=admin).status_code == 200
        os.kill(first, signal.SIGKILL)
        assert server.post("/embed", {"inputs": "a dog", "model": "added"}).status_code == 200
        assert until(
            lambda: server.request("DELETE", "/admin/models/added", headers=admin).status_code == 200, seconds=30
        )
        assert server.request("DELETE", "/admin/models/added", headers=admin).status_code == 404


def test_both_engines_get_requests_and_count_what_waits(tmp_path: Path, model: str) -> None:
    with two_engines(tmp_path, model) as (server, _, _), httpx.Client(base_url=server.url, timeout=30) as client:
        texts = [count_of(server, f"engine-{n}", "bertie_texts") for n in range(2)]
        for number in range(8):  # one after another: neither ever has more to do than the other
            assert client.post("/embed_all", json={"inputs": f"a dog {number}"}).status_code == 200
        after = [count_of(server, f"engine-{n}", "bertie_texts") for n in range(2)]
        assert [b - a for a, b in zip(texts, after, strict=True)] == [4, 4]


def test_the_queues_of_all_engines_are_in_the_metrics(tmp_path: Path) -> None:
    slow = saved(tmp_path / "slow", "BertModel", hidden_size=256, num_hidden_layers=12, intermediate_size=1024)
    with two_engines(tmp_path, slow) as (server, _, _), ThreadPoolExecutor(4) as pool:
        body = {"inputs": ["the dog and the fox " * 12] * 1024, "truncate": True}
        asked = [pool.submit(server.post, "/embed", body) for _ in range(4)]
        assert until(lambda: server.metric("bertie_queue_requests") == 4)  # two with each engine
        assert server.metric("bertie_queue_tokens") > 2 * 1024 * 12
        server.process.send_signal(signal.SIGINT)
        server.process.send_signal(signal.SIGTERM)  # a second signal: they are not waited for
        for one in asked:
            assert isinstance(one.exception(20), httpx.HTTPError) or one.result().status_code in (500, 503)


# -- told to stop -----------------------------------------------------------------------------------------------------


def test_one_ctrl_c_is_one_drain_though_every_process_gets_it() -> None:
    (found,) = run_drains(1, seed=4, options=("--workers", "2"), ctrl_c=True)
    assert found.good, found


@pytest.mark.slow
def test_twenty_times_ctrl_c_loses_nothing() -> None:
    for one in run_drains(20, seed=5, options=SEVERAL, ctrl_c=True):
        assert one.good, one


@pytest.mark.parametrize("number", [1, 4])
def test_a_server_that_is_stopped_while_it_starts_ends_at_once(model: str, number: int) -> None:
    command = [sys.executable, "-m", "bertie", "serve", "-m", f"m={model}", "--port", "0", *SEVERAL]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        assert "4 fronts and 2 engines" in said
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while len(children.read_text().split()) < number:
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        rest, _ = process.communicate(timeout=20)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    assert process.returncode == 0
    assert "Traceback" not in rest


def test_nothing_is_left_when_the_first_process_is_killed(tmp_path: Path, model: str) -> None:
    with two_engines(tmp_path, model, fronts=2) as (server, *_):
        place = folder_of(server)
        pids = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
        assert place.parent == Path(tempfile.gettempdir())
        server.process.kill()
        server.process.wait()
        assert until(lambda: not place.exists(), seconds=30)
        assert until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), seconds=30)


def test_a_server_goes_on_when_nobody_reads_what_it_says(model: str) -> None:
    command = [sys.executable, "-m", "bertie", "serve", "-m", f"m={model}", "--port", "0", *SEVERAL]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert process.stdout is not None
        url = re.findall(r"http://\S+", process.stdout.readline())[0]
        process.stdout.close()  # as `bertie serve | head -1` does

        def is_ready() -> bool:
            with suppress(httpx.HTTPError):
                return httpx.get(f"{url}/ready").status_code == 200
            return False

        assert until(is_ready, seconds=60)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        before = children.read_text().split()
        os.kill(int(before[-1]), signal.SIGTERM)  # a front that drains, and then has nobody to say so
        assert until(lambda: before[-1] not in children.read_text().split(), seconds=30)
        assert until(lambda: len(children.read_text().split()) == len(before), seconds=30)
        assert set(before[:-1]) <= set(children.read_text().split())
        assert until(is_ready, seconds=30)
        process.send_signal(signal.SIGTERM)
        process.wait(20)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


# -- nobody gets in, nobody gets more ---------------------------------------------------------------------------------


def test_every_front_asks_for_keys_and_logs_none(tmp_path: Path, model: str) -> None:
    options = ("-m", f"m={model}", "--threads", "1", "--log-level", "debug", *SEVERAL)
    environment = {"BERTIE_API_KEYS": KEY, "BERTIE_ADMIN_KEYS": ADMIN}
    with serving(tmp_path, *options, environment=environment) as server:
        for number, route in enumerate(ROUTES):  # a connection each, which the kernel deals out among the fronts
            path = route.path.replace("{name}", "m")
            wrong = ({}, {"authorization": "Bearer wrong-key-000"}, {"x-api-key": KEY + "x"})[number % 3]
            answer = server.request(route.method, path, headers=wrong, json={})
            assert answer.status_code == (200 if route.path in PUBLIC else 401), path
            assert not [name for name in answer.headers if name.startswith("access-control")]
        for _ in range(6):
            given = {"authorization": f"Bearer {KEY}"}
            assert server.post("/embed?k=" + KEY, {"inputs": "a secret text"}, headers=given).status_code == 200
            assert server.post("/rerank", {"query": "a secret text", "texts": ["a"]}, headers=given).status_code == 200
            assert server.post("/admin/models", {}, headers=given).status_code == 403
            assert server.post("/admin/models", {}, headers={"x-api-key": ADMIN}).status_code == 422
    said = server.log.read_text()
    assert said.count('"path":"/embed"') > 6
    for secret in (KEY, ADMIN, "wrong-key-000", "secret text"):
        assert secret not in said


def test_a_key_has_its_share_however_many_connections_another_one_has(tmp_path: Path) -> None:
    slow = saved(tmp_path / "slow", "BertModel", hidden_size=128, num_hidden_layers=6, intermediate_size=512)
    options = ("-m", f"m={slow}", "--workers", "2", "--device", "cpu", "--queue-tokens", "1000000", *QUIET)
    body = {"inputs": ["the dog and the fox " * 6] * 128, "truncate": True}
    seconds: dict[str, list[float]] = {"many": [], "one": []}
    stop = threading.Event()
    with serving(tmp_path, *options, environment={"BERTIE_API_KEYS": "many-many,only-one"}) as server:

        def ask(who: str, key: str) -> None:
            with httpx.Client(base_url=server.url, timeout=60, headers={"x-api-key": key}) as client:
                while not stop.is_set():
                    began = time.monotonic()
                    assert client.post("/embed", json=body).status_code == 200
                    seconds[who].append(time.monotonic() - began)

        many = [threading.Thread(target=ask, args=("many", "many-many")) for _ in range(8)]
        one = threading.Thread(target=ask, args=("one", "only-one"))
        for thread in (*many, one):
            thread.start()
        assert until(lambda: len(seconds["one"]) >= 6 and len(seconds["many"]) >= 12, seconds=60)
        stop.set()
        for thread in (*many, one):
            thread.join()
    # One request of nine would take as long as the others; half of the engine is four and a half times that share.
    assert statistics.median(seconds["many"][4:]) > 2 * statistics.median(seconds["one"][1:])


# -- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", ["1", "2"])
def test_traces_without_their_package_are_explained(model: str, workers: str) -> None:
    try:
        import opentelemetry.exporter.otlp.proto.http  # noqa: F401
    except ImportError:
        pass
    else:
        pytest.skip("the package is installed")
    command = [sys.executable, "-m", "bertie", "serve", "--port", "0", "-m", model, "--workers", workers]
    environment = os.environ | {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert ended.returncode == 2
    assert "pip install 'bertie[otel]'" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_processes_that_hang_are_replaced_and_the_others_go_on(tmp_path: Path, model: str) -> None:
    """A stopped process is there and answers nobody, as with a driver that hangs."""
    with two_engines(tmp_path, model, "--hung-seconds", "4") as (server, first, second):
        listed = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")

        def children() -> set[int]:
            return set(map(int, listed.read_text().split()))

        def is_well() -> bool:
            with suppress(httpx.HTTPError):
                return len(children()) == 3 and server.get("/ready").status_code == 200 and working(server)
            return False

        (front,) = children() - {first, second}
        for hung in (first, front):
            os.kill(hung, signal.SIGSTOP)
            assert until(lambda hung=hung: hung not in children(), 30)
            assert until(is_well, 20)
        assert second in children()
    killed = re.findall(r'a process does not respond and is killed","child":"([^"]+)', server.log.read_text())
    assert set(killed) == {"engine-0", "front-0"}
