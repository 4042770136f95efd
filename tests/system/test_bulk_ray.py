"""Bulk jobs on a real Ray cluster of three nodes, each with processes of its own, of which some are killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import bertie
from bulk_jobs import answers, parquet_files, some_texts
from sentence_models import tiny_sentence_model
from system.bulk_kills import Driver, begun, parts, wait_for

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'bertie[ray]'")
pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own

NODES = 3


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    made = Cluster()
    # A node that is gone is noticed after 2.5 s; one that is only slow has a minute to answer. Workers are as nice as
    # other processes (Ray's own 15 is next to nothing beside other tests).
    checks = {"health_check_period_ms": 500, "health_check_failure_threshold": 5, "health_check_timeout_ms": 60_000}
    add_node(made, include_log_monitor=False, _system_config={**checks, "worker_niceness": 0})
    for _ in range(NODES - 1):
        add_node(made)
    yield made
    made.shutdown()


def add_node(cluster: Any, **more: Any) -> Any:
    """Ray gives a node 30 s to start, which is not always enough on a busy machine."""
    for attempt in range(3):
        try:
            return cluster.add_node(num_cpus=1, object_store_memory=80 << 20, include_dashboard=False, **more)
        except Exception as error:  # Ray has no class for it
            if attempt == 2 or "timed out" not in str(error):
                raise
    raise AssertionError("unreachable")


def logs(cluster: Any) -> list[Path]:
    return list((Path(cluster.head_node.get_session_dir_path()) / "logs").glob("worker-*.err"))


def prepared(folder: Path, pieces: int, piece_rows: int, address: str) -> dict[str, Any]:
    texts = some_texts(pieces * piece_rows)
    parquet_files(folder / "in", texts)
    asked = {"input": str(folder / "in"), "model": tiny_sentence_model(folder / "model"), "piece_rows": piece_rows}
    bertie.bulk("embed", **asked, output=folder / "whole")
    return {**asked, "output": str(folder / "out"), "ray": address}


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def kill_a_worker(cluster: Any, before: list[tuple[int, int]]) -> None:
    """A process that began a piece since and still lives. (New logs may be listed before old ones.)"""
    for _, process in set(begun(*logs(cluster))) - set(before):
        if alive(process):
            os.kill(process, signal.SIGKILL)
            return


def kill_a_node(cluster: Any) -> None:
    node = random.Random(0).choice(sorted(cluster.worker_nodes, key=id))
    cluster.remove_node(node, allow_graceful=False)  # SIGKILL to its raylet; its workers end with it


def run_and_kill(cluster: Any, folder: Path, what: list[str], *, pieces: int, piece_rows: int) -> None:
    """A job during which these are killed, one after the other, at random moments; after a driver, the job goes on."""
    asked = prepared(folder, pieces, piece_rows, cluster.address)
    out, chance, before = folder / "out", random.Random(len(what)), begun(*logs(cluster))
    driver = Driver(asked, folder / "log")
    done = lost = 0
    for victim in what:
        wait_for(lambda done=done: parts(out) > done, "a part", driver)  # type: ignore[misc]
        time.sleep(chance.uniform(0, 0.2))
        if victim == "worker":
            kill_a_worker(cluster, before)
            lost += 1
        elif victim == "node":
            kill_a_node(cluster)
            add_node(cluster)
            lost += 1
        else:
            driver.kill()
            lost += NODES  # each worker may lose the piece that it was at
            driver = Driver(asked, folder / "log")
        done = parts(out)
    report = driver.finished()
    assert report["rows"] == pieces * piece_rows
    assert not report["set_aside"]
    assert answers(out).equals(answers(folder / "whole"))  # every row once, in order, bit for bit
    twice = len(begun(*logs(cluster))) - len(before) - pieces
    assert 0 <= twice <= lost, f"{twice} pieces were begun twice after {what}"
    del asked["ray"]  # where a job runs is not what it is
    assert bertie.bulk("embed", **asked).computed == 0


def test_a_driver_a_worker_and_a_node_are_killed_and_nothing_is_lost(cluster: Any, tmp_path: Path) -> None:
    """The short form: a driver is killed; in the run after it a worker and a node are, and the node does not return."""
    asked, out = prepared(tmp_path, 16, 500, cluster.address), tmp_path / "out"
    driver = Driver(asked, tmp_path / "log")
    wait_for(lambda: parts(out) > 0, "a part", driver)
    driver.kill()
    done = parts(out)
    assert 0 < done < 16

    def kill_both() -> None:
        wait_for(lambda: parts(out) > done, "another part")
        kill_a_worker(cluster, [])
        kill_a_node(cluster)

    try:
        with ThreadPoolExecutor(1) as beside:
            killed = beside.submit(kill_both)
            report = bertie.bulk("embed", **asked)  # this process is the driver: it has imported all that one needs
            killed.result()
    finally:
        ray.shutdown()
        add_node(cluster)
    assert (report.rows, dict(report.set_aside)) == (16 * 500, {})
    assert answers(out).equals(answers(tmp_path / "whole"))  # every row once, in order, bit for bit
    twice = len(begun(*logs(cluster))) - 16
    assert 0 <= twice <= NODES + 2, f"{twice} pieces were begun twice"


@pytest.mark.slow
@pytest.mark.parametrize("number", range(20))
def test_twenty_runs_with_random_kills(cluster: Any, tmp_path: Path, number: int) -> None:
    chance = random.Random(number)
    run_and_kill(cluster, tmp_path, chance.choices(["worker", "node", "driver"], k=3), pieces=30, piece_rows=800)


@pytest.mark.slow
def test_the_command_s_report_stands_alone_on_its_output_when_a_node_dies(cluster: Any, tmp_path: Path) -> None:
    asked, out = prepared(tmp_path, 16, 500, cluster.address), tmp_path / "out"
    line = ["embed", asked["input"], str(out), "-m", asked["model"], "--piece-rows", "500", "--ray", cluster.address]
    command = [sys.executable, "-m", "bertie", "bulk", *line, "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: parts(out) > 0 or process.poll() is not None, "a part")
    kill_a_node(cluster)
    add_node(cluster)
    said, warned = process.communicate(timeout=300)
    assert process.returncode == 0, warned[-3000:]
    assert json.loads(said)["rows"] == 16 * 500


@pytest.mark.slow
def test_a_piece_that_kills_three_workers_is_set_aside(cluster: Any, tmp_path: Path) -> None:
    """Whoever begins the first piece of all is killed, three times."""
    asked = prepared(tmp_path, 4, 8000, cluster.address)
    before = set(begun(*logs(cluster)))
    driver = Driver(asked, tmp_path / "log")

    def killed() -> bool:
        for piece, process in set(begun(*logs(cluster))) - before:
            if piece == 0 and alive(process) and not (tmp_path / "out" / "part-000000.parquet").exists():
                os.kill(process, signal.SIGKILL)
        return driver.process.poll() is not None

    wait_for(killed, "the job's end")
    report = driver.finished()
    assert list(report["set_aside"].values()) == ["it ended its worker 3 times"]
    assert report["computed"] == 3


@pytest.mark.slow
def test_a_model_that_a_node_lacks_is_said_with_the_node(cluster: Any, tmp_path: Path) -> None:
    """The model goes while workers start: they say where it is missing, and the job stays as it was."""
    asked = prepared(tmp_path, 4, 100, cluster.address)
    driver = Driver(asked, tmp_path / "log")
    wait_for(lambda: (tmp_path / "out" / "_job" / "job.json").exists(), "the job")
    Path(asked["model"]).rename(tmp_path / "moved")
    _, said = driver.process.communicate(timeout=300)
    assert driver.process.returncode == 1
    assert "Every machine needs the model" in said
    (tmp_path / "moved").rename(asked["model"])
    assert Driver(asked, tmp_path / "log").finished()["rows"] == 400
