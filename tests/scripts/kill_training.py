"""kill -9 a training run at random moments, resume it each time, and see that nothing is lost (QUALITY 18).

    python tests/scripts/kill_training.py [--kills 100] [--inside 25] [--seed 0]

Every life of the run gets a random time before it is killed; a share of the kills waits until a save is under way.
After each kill the newest checkpoint must be whole and at most one save interval behind what was done; at the end the
weights must be those of a run that was never killed. The last line is the figure.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from safetensors.torch import load_file

PROGRAM = Path(__file__).with_name("train_toy.py")
SAVE_EVERY = 4


def start(run: Path, steps: int, *, resume: bool) -> subprocess.Popen[str]:
    command = [
        sys.executable, str(PROGRAM), str(run), "--steps", str(steps), "--save-every", str(SAVE_EVERY),
        "--dropout", "0.1", "--hidden-size", "64", *(["--resume"] if resume else []),
    ]  # fmt: skip
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def saves(run: Path) -> set[str]:
    """The saves under way, or cut short by a kill: their folders have not got their names yet."""
    folder = run / "checkpoints"
    return {name for name in os.listdir(folder) if ".saving-" in name} if folder.is_dir() else set()


def written(run: Path) -> int:
    """When the log was last written, in nanoseconds: a run that is resumed begins with rewriting it."""
    path = run / "metrics.jsonl"
    return path.stat().st_mtime_ns if path.exists() else 0


def newest(run: Path) -> int:
    """The step of the newest checkpoint, 0 when there is none."""
    folder = run / "checkpoints"
    names = [path.name for path in folder.iterdir() if path.name.startswith("step-")] if folder.is_dir() else []
    return max((int(name.removeprefix("step-")) for name in names), default=0)


def done(run: Path) -> int:
    """The last step that was logged."""
    path = run / "metrics.jsonl"
    rows = path.read_text().splitlines() if path.exists() else []
    for line in reversed(rows):
        try:
            return int(json.loads(line)["step"])
        except ValueError:
            continue
    return 0


def live(run: Path, steps: int, chance: random.Random, *, resume: bool, inside: bool) -> tuple[bool, bool]:
    """One life: (whether it was killed before it ended, whether that was inside a save)."""
    before, leftovers = written(run), saves(run)
    process = start(run, steps, resume=resume)
    try:
        while process.poll() is None and written(run) == before:
            time.sleep(0.01)  # Python is starting; kills are meant for training
        until = time.monotonic() + chance.uniform(0.0, 1.5)
        while process.poll() is None and time.monotonic() < until:
            time.sleep(0.002)
        while inside and process.poll() is None and not saves(run) - leftovers:
            time.sleep(0.0005)
        if process.poll() is None:
            process.kill()
            process.communicate()
            return True, bool(saves(run) - leftovers)
        _, errors = process.communicate()
        if process.returncode != 0:
            raise SystemExit(f"a resumed run failed: {errors}")
        return False, False
    finally:
        if process.poll() is None:
            process.kill()


def kill_and_resume(kills: int, inside: int, seed: int, folder: Path, *, steps: int = 200) -> tuple[int, int, int]:
    """(kills, of them inside a save, most steps lost)."""
    chance = random.Random(seed)
    killed = hit = most_lost = 0
    number = 0
    while killed < kills or hit < inside:
        number += 1
        run = folder / f"run-{number}"
        straight = folder / "straight"
        if not straight.exists():
            process = start(straight, steps, resume=False)
            _, errors = process.communicate()
            if process.returncode:
                raise SystemExit(errors)
        resume = False
        while True:
            want_inside = hit < inside and chance.random() < 0.6
            was_killed, was_inside = live(run, steps, chance, resume=resume, inside=want_inside)
            if not was_killed:
                break
            killed, hit = killed + 1, hit + was_inside
            most_lost = max(most_lost, done(run) - newest(run))
            resume = True
            if killed >= kills and hit >= inside:
                process = start(run, steps, resume=True)
                _, errors = process.communicate()
                if process.returncode:
                    raise SystemExit(f"the last resume failed: {errors}")
                break
        name = f"checkpoints/step-{steps:08d}/model.safetensors"
        first, last = load_file(straight / name), load_file(run / name)
        if any(not first[key].equal(last[key]) for key in first):
            raise SystemExit("a killed and resumed run ended with other weights")
    return killed, hit, most_lost


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--inside", type=int, default=25)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        killed, hit, lost = kill_and_resume(arguments.kills, arguments.inside, arguments.seed, Path(folder))
    told = f"seed {arguments.seed}: {killed} kills, {hit} inside a save, every resume worked"
    print(f"{told}; most steps lost {lost} (saved every {SAVE_EVERY})")


if __name__ == "__main__":
    main()
