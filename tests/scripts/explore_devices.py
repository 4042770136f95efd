"""Everything in bertie.explore on one device beside the CPU: the largest difference of any number, view by view.

    python tests/scripts/explore_devices.py [--device cuda] [--model FOLDER]

Tiny models of every task, with relative positions and with pruned heads; then, where there are two texts to compare, a
checkpoint (all-MiniLM-L6-v2, or --model). The last line is the figure; the exit code is 1 if it is too large.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from bertie.defaults import default_embedding_model
from bertie.explore import Session, Switches, importance, open_session
from explore_sessions import TASKS, TEXTS, VARIANTS, model_of
from tiny_models import tokenizer

MOST = 1e-3  # of the largest number of a view; sums of float32 in another order
OFF = Switches(heads={(0, 2)}, layers={2}, feed_forward={1})
METHODS = ("integrated_gradients", "gradient_x_input", "occlusion", "rollout")
ROWS: dict[str, list[Any]] = {
    "fill": ["The quick brown fox jumps over the lazy dog.", "She opened the door and looked into the room."],
    "classify": [{"text": text, "label": f"LABEL_{n}"} for n, text in enumerate(("a good film", "a dog", "the room"))],
}


def views(session: Session, other: Session, task: str) -> Iterator[tuple[str, Callable[[], object]]]:
    """Every function, each giving numbers, names, or tables of them."""
    yield "answer", lambda: [score for _, score in session.answer().top]
    yield "best answer", lambda: session.answer().text if task != "embed" else ""
    yield "states", lambda: session.states().float().cpu().numpy()
    yield "attention", lambda: session.attention(2, 3).weights
    yield "thumbnails", lambda: (session.thumbnails(8).astype(float) / 255) ** 2
    yield "statistics", lambda: session.head_statistics().columns()
    yield "neurons", lambda: session.neuron_view(2, 3, 1, 2).columns()
    yield "rollout", lambda: session.rollout().weights
    yield "flow", lambda: session.flow(places=[0]).weights
    yield "drift", lambda: session.drift().columns()
    yield "trace", lambda: [step.norm for _, step in session.trace(place=1).steps()]
    yield "ablation", lambda: [score for _, score in session.ablate(OFF).after.top]
    means = ["The dog sleeps.", "She opened the door."]
    yield "at the mean", lambda: [score for _, score in session.ablate(OFF, session.means_of(means)).after.top]
    if "lens" in session.views:
        yield "lens", lambda: session.lens().probabilities
    if "match" in session.views:
        yield "match", lambda: session.match().weights
    if "attribute" in session.views:
        target = session.targets()[0]
        yield "score", lambda: session.score(target, "logit")
        for method in METHODS:
            yield method, lambda method=method: session.attribute(method, target).scores
        for part in ("state", "attention", "feed_forward"):
            yield f"patching {part}", lambda part=part: session.patch(other, part=part, target=target).scores
    if task in ROWS:
        for method in ("gradient", "leave_one_out"):
            yield (
                f"importance, {method}",
                lambda method=method: (
                    importance(
                        ROWS[task], model=session.reading.loaded, task=task, method=method, progress=False
                    ).values
                ),
            )


def numbers(found: object) -> np.ndarray[Any, Any]:
    if isinstance(found, dict):
        return np.concatenate([numbers(one) for one in found.values()])
    if isinstance(found, str) or (isinstance(found, list) and found and isinstance(found[0], str)):
        return np.zeros(0)
    if isinstance(found, (tuple, list)) and found and not isinstance(found[0], float):
        return np.concatenate([numbers(one) for one in found])
    return np.nan_to_num(np.asarray(found, dtype=np.float64)).ravel()


def compare(name: str, here: tuple[Session, Session], there: tuple[Session, Session], task: str) -> float:
    worst, said = 0.0, []
    for (view, ours), (_, theirs) in zip(views(*here, task), views(*there, task), strict=True):
        first, second = ours(), theirs()
        if isinstance(first, str) and first != second:
            raise SystemExit(f"{name}, {view}: {first!r} here, {second!r} there")
        a, b = numbers(first), numbers(second)
        apart = float(np.abs(a - b).max(initial=0) / max(1.0, float(np.abs(a).max(initial=0))))
        said.append(f"{view} {apart:.1e}")
        worst = max(worst, apart)
    print(f"{name}: {len(said)} views, at most {worst:.1e}   ({'; '.join(said)})", flush=True)
    return worst


def sessions(model: Any, task: str, device: str, tokenizer_: Any, text: Any, second: Any) -> tuple[Session, Session]:
    placed = model if isinstance(model, str) else deepcopy(model).to(device)
    other = text.replace("the", "a").replace("The", "a")
    opened = [
        open_session(one, second, model=placed, task=task, tokenizer=tokenizer_, device=device) for one in (text, other)
    ]
    return opened[0], opened[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--model", help="a checkpoint that embeds [default: all-MiniLM-L6-v2]")
    options = parser.parse_args()
    begin, worst = time.perf_counter(), 0.0
    for task in TASKS:
        for variant, config in VARIANTS.items():
            if task not in ("fill", "embed") and variant != "absolute":
                continue
            model = model_of(task, **config)
            given = [sessions(model, task, device, tokenizer(), *TEXTS[task]) for device in ("cpu", options.device)]
            worst = max(worst, compare(f"{task}, {variant}", given[0], given[1], task))
    source = options.model or str(default_embedding_model())
    texts = "A man is eating the food.", "Someone eats a meal."
    given = [sessions(source, "embed", device, None, *texts) for device in ("cpu", options.device)]
    worst = max(worst, compare(Path(source).name, given[0], given[1], "embed"))
    print(f"{time.perf_counter() - begin:.0f} s")
    print(f"largest difference of {options.device} from cpu: {worst:.2e}, wanted ≤ {MOST:g}")
    raise SystemExit(worst > MOST)


if __name__ == "__main__":
    main()
