"""Memory nodes (NUMA) of the CPU engine: how they are found, and that workers stay on theirs and answers on theirs too.

Two cores play two nodes here; tests/scripts/memory_nodes.py checks on an emulated machine where memory lies.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bertie.engine.cpu import cores
from bertie.engine.cpu.library import instruction_set
from bertie.errors import InputError

ROOT = Path(__file__).parents[3]
USABLE = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
two_cores = pytest.mark.skipif(
    instruction_set() is None or len(USABLE) < 2, reason="needs the C++ kernels, Linux and two cores"
)


def test_the_system_s_nodes_are_those_that_have_cores(tmp_path: Path) -> None:
    lists = {"node0": "0-3,8\n", "node2": "4-7,9\n", "node10": "10\n", "node3": "\n", "node4": "nonsense\n"}
    for name, line in lists.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "cpulist").write_text(line)
    (tmp_path / "node5").mkdir()
    (tmp_path / "possible").write_text("0-3\n")
    assert cores.memory_nodes(tmp_path) == [{0, 1, 2, 3, 8}, {4, 5, 6, 7, 9}, {10}]
    assert cores.memory_nodes(tmp_path / "not there") == []


def test_nodes_are_named_by_their_cores() -> None:
    assert cores.named_nodes("0;1") == [{0}, {1}]
    assert cores.named_nodes("0-2,8; 4-5,1023") == [{0, 1, 2, 8}, {4, 5, 1023}]
    assert cores.named_nodes("3") == [{3}]


@pytest.mark.parametrize(
    "text", ["on", "0-;1", "0;", ";", "0;;1", "1-0;2", "0-1;1", "0-1024;5", "0,;1", "0 1;2", "-1;0"]
)
def test_a_list_of_nodes_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r'^BERTIE_NODES is .*; it must list(.|\n)*"0-7;8-15" for two nodes'):
        cores.named_nodes(text)


@pytest.mark.parametrize(("asked", "wanted"), [("off", []), ("0;1", [{0}, {1}]), ("", None), (None, None)])
def test_bertie_nodes_overrides_what_the_system_says(
    asked: str | None, wanted: list[set[int]] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = [{0, 1}, {2, 3}]
    monkeypatch.setattr(cores, "memory_nodes", lambda _: system)
    monkeypatch.delenv("BERTIE_NODES", raising=False)
    if asked is not None:
        monkeypatch.setenv("BERTIE_NODES", asked)
    assert cores.own_nodes.__wrapped__() == (system if wanted is None else wanted)


@pytest.mark.skipif(instruction_set() is None, reason="the kernels were not built: no C++ compiler")
def test_compiling_with_wrong_nodes_is_an_error() -> None:
    code = "import bertie; bertie.compile(bertie.BertModel(bertie.BertConfig(num_hidden_layers=1, vocab_size=99)))"
    done = run(code, "0-1;1", check=False)
    assert "InputError: BERTIE_NODES is '0-1;1'; it must list the cores of each memory node" in done.stderr


def run(code: str, nodes: str, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *arguments],
        cwd=ROOT,
        env=os.environ | {"BERTIE_NODES": nodes},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


COMMON = """
import os, sys, threading
import torch
import bertie
from tests.tiny_models import tiny, tokenizer

torch.set_num_threads(1)  # its threads are not ours
first, second = sorted(os.sched_getaffinity(0))[:2]
os.sched_setaffinity(0, {first, second})
from bertie.engine.cpu import runner as cpu_runner
cpu_runner.own_quota = lambda: None

def tasks():
    return set(map(int, os.listdir("/proc/self/task")))

def compiled(dtype="float32"):
    torch.manual_seed(0)
    model = tiny("BertModel", max_position_embeddings=512, hidden_size=64)
    return bertie.compile(model, dtype=dtype, tokenizer=tokenizer(), threads=2)

BATCHES = ([3], [200], [512, 1, 77], [30] * 40, [100] * 60)

def answers(fast):
    found = []
    for lengths in BATCHES:
        ends = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()])
        found.append(fast(torch.arange(sum(lengths)) % 200, cu_seqlens=ends)[0])
    return found
"""

SAVED = """
torch.save([answers(compiled(dtype)) for dtype in ("float32", "bfloat16", "int8")], sys.argv[1])
"""

PLACED = """
before = tasks()
fast = compiled()
for _ in range(20):
    answers(fast)
workers = tasks() - before
assert os.sched_getaffinity(0) == {first, second}, "the caller's own mask is as it was"
masks = [os.sched_getaffinity(worker) for worker in workers]
assert masks and all(mask in ({first}, {second}) for mask in masks), masks

# A caller that runs on one core has one node, and one thread.
def ran():
    return {worker: open(f"/proc/self/task/{worker}/schedstat").read().split()[0] for worker in workers}

wanted = answers(fast)
os.sched_setaffinity(0, {first})
slept = ran()
assert all(map(torch.equal, answers(fast), wanted))
assert ran() == slept and tasks() - before == workers
os.sched_setaffinity(0, {first, second})
assert all(map(torch.equal, answers(fast), wanted))

# A forked child has no workers, and starts its own.
child = os.fork()
if not child:
    alone = tasks()
    well = all(map(torch.equal, answers(fast), wanted))
    masks = [os.sched_getaffinity(worker) for worker in tasks() - alone]
    os._exit(0 if well and masks and all(mask in ({first}, {second}) for mask in masks) else 1)
assert os.waitpid(child, 0)[1] == 0
assert all(map(torch.equal, answers(fast), wanted))

# Callers on both nodes at once.
def call(core):
    os.sched_setaffinity(0, {core, second})
    right.append(all(all(map(torch.equal, answers(fast), wanted)) for _ in range(5)))

right = []
callers = [threading.Thread(target=call, args=(core,)) for core in (first, second, first)]
for caller in callers:
    caller.start()
for caller in callers:
    caller.join()
assert right == [True] * 3
print("well")
"""

REBOUND = """
cpu_runner.usable_cores = lambda: 2
before = tasks()
fast = compiled()
wanted = answers(fast)
(worker,) = tasks() - before
for mask in ({first, second}, {first}, {first, second}, {second}):
    os.sched_setaffinity(0, mask)
    for _ in range(20):
        assert all(map(torch.equal, answers(fast), wanted))
    assert os.sched_getaffinity(worker) == mask
print("well")
"""


@two_cores
def test_bits_do_not_depend_on_nodes(tmp_path: Path) -> None:
    found = []
    for name, nodes in (("one", "off"), ("two", f"{USABLE[0]};{USABLE[1]}")):
        run(COMMON + SAVED, nodes, str(tmp_path / name))
        found.append(torch.load(tmp_path / name, weights_only=True))
    for one, two in zip(*found, strict=True):
        assert all(map(torch.equal, one, two))


@two_cores
def test_workers_stay_on_their_node_and_in_the_mask_of_their_caller() -> None:
    assert run(COMMON + PLACED, f"{USABLE[0]};{USABLE[1]}").stdout == "well\n"


@two_cores
def test_workers_follow_when_the_mask_of_their_caller_changes() -> None:
    """The first node has both cores, and the mask allows one of them or both; nobody has the second node's."""
    assert run(COMMON + REBOUND, f"{USABLE[0]},{USABLE[1]};1023").stdout == "well\n"


@two_cores
def test_one_node_binds_nobody() -> None:
    code = "before = tasks()\nanswers(compiled())\nprint([os.sched_getaffinity(one) for one in tasks() - before])"
    assert run(COMMON + code, "off").stdout == f"[{set(USABLE[:2])}]\n"
