"""The engine on a GPU beside transformers, its compiled form and sentence-transformers, in one run.

    PYTHONPATH=src python -m benchmarks.gpu --texts texts.json --model FOLDER [--save]

`texts.json` is a list of paragraphs; FOLDER has all-MiniLM-L6-v2, whose tokenizer is used throughout. BERT-base has
random weights, the same for everyone. Calls alternate and medians are compared. What is measured:

- tokens a second over all texts, BERT-base, with the share of the matrix ceiling measured in the same run;
- accuracy: the cosine of each text's mean vector to float32, mean and lowest, for BERT-base and for MiniLM;
- the time of one short text; texts to vectors end to end; time against tokens and against the length of texts.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import bertie
import bertie.engine
from benchmarks.gpu_kernels import ceilings
from benchmarks.gpu_peers import SentenceTransformers, Transformers, packed_batches, transformers_model
from benchmarks.machine import describe, save_result
from bertie.engine.calibration import mean_vectors
from bertie.ops.packing import Packing
from bertie.text import BertTokenizer

# Written before the first measurement, from the floors in `arithmetic` and one layer's kernels as cuBLAS ran them.
EXPECTED = {
    "one layer, 65.5k tokens, bf16": "GEMMs 1280 µs + attention 110 + norms 120 + GELU in the epilogue 25 = 1.53 ms",
    "bf16": "3.4 M tokens/s, 75 % of the ceiling",
    "fp8": "4.6 M tokens/s; cosine 0.9997 with weights rounded one input after the other",
    "attention": "94 µs at 65.5k tokens if it only had to move its bytes; 110 expected",
    "one text of 32 tokens": "86 kernels in a graph at 3 to 6 µs: 0.40 ms",
    "end to end": "tokenizer bound: 4 M tokens/s of MiniLM at most",
    "end to end, tokenized in C++": "two threads of 13 M tokens/s: MiniLM 12 M, BERT-base 2.8 M (93 %)",
}
BUDGET = 65536


def arithmetic(lengths: Sequence[int], *, width: int = 768, layers: int = 12) -> float:
    """Operations that the texts' tokens need: 24·D² a token and layer, and 4·n²·D a text and layer for attention."""
    return layers * sum(24.0 * n * width**2 + 4.0 * n * n * width for n in lengths)


def seconds(call: Callable[[], Any]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def alternating(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Median seconds of each, taken in turns."""
    for call in calls.values():
        call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            times[name].append(seconds(call))
    return {name: statistics.median(found) for name, found in times.items()}


def base_model() -> bertie.BertModel:
    torch.manual_seed(0)
    return bertie.BertModel(bertie.BertConfig.preset("base"), add_pooling_layer=False).eval().cuda()


def throughput(rows: list[list[int]], runners: dict[str, Any], base: Any, rounds: int) -> list[dict[str, Any]]:
    rates = ceilings()
    lengths = [len(row) for row in rows]
    tokens, work = sum(lengths), arithmetic(lengths)
    packed = packed_batches(rows, BUDGET)

    def ours(runner: Any) -> Callable[[], None]:
        def call() -> None:
            for ids, lengths in packed:
                runner.last_state(ids, lengths)

        return call

    theirs = transformers_model(base.state_dict())
    sizes = {size: Transformers(theirs, rows, size, compiled=False) for size in (256, 512, 1024)}
    best = min(sizes, key=lambda size: alternating({"": sizes[size]}, 2)[""])
    calls: dict[str, Callable[[], Any]] = {f"ours, {name}": ours(runner) for name, runner in runners.items()}
    calls[f"transformers SDPA, batches of {best}"] = sizes[best]
    plain = [*calls][-1]
    compiled = f"transformers SDPA compiled, batches of {best}"
    try:
        made = Transformers(theirs, rows, best, compiled=True)
        made()
        calls[compiled] = made
    except Exception as error:
        print(f"compiled: {type(error).__name__}: {str(error)[:300]}", flush=True)
    found = alternating(calls, rounds)
    made_rows = []
    for name, taken in found.items():
        row = {
            "what": f"BERT-base, {len(rows)} texts, {name}",
            "m_tokens_per_s": round(tokens / taken / 1e6, 3),
            "tflops": round(work / taken / 1e12, 1),
            "share_of_bf16_ceiling": round(work / taken / 1e12 / rates["bf16_tflops"], 3),
            "share_of_bf16_ceiling_held": round(work / taken / 1e12 / rates["bf16_tflops_held"], 3),
            "share_of_fp8_ceiling_held": round(work / taken / 1e12 / rates["fp8_tflops_held"], 3),
            "ratio_to_sdpa": round(found[plain] / taken, 2),
        }
        if compiled in found:
            row["ratio_to_compiled"] = round(found[compiled] / taken, 2)
        made_rows.append(row)
    return [{"what": "ceilings", **{name: round(value, 2) for name, value in rates.items()}}, *made_rows]


@torch.no_grad()
def accuracy(name: str, model: Any, runners: dict[str, Any], rows: list[list[int]]) -> list[dict[str, Any]]:
    packing = Packing.of([len(row) for row in rows], device="cuda")
    ids = torch.tensor([i for row in rows for i in row], device="cuda")
    wanted = model.float()(ids, cu_seqlens=packing.cu_seqlens).last_hidden_state
    made = []
    for dtype, runner in runners.items():
        got = runner.last_state(ids, packing.lengths)
        cosine = F.cosine_similarity(mean_vectors(got, packing), mean_vectors(wanted, packing))
        by_token = F.cosine_similarity(got.float(), wanted)
        made.append(
            {
                "what": f"{name} {dtype}: cosine to float32 over {len(rows)} texts not seen before",
                "mean": round(float(cosine.mean()), 6),
                "lowest": round(float(cosine.min()), 6),
                "tokens_mean": round(float(by_token.mean()), 6),
                "runner": runner.describe(),
            }
        )
    return made


def latency(name: str, runner: Any) -> list[dict[str, Any]]:
    """One text: the call until its states are there, ids on the GPU and in the computer's own memory."""
    made = []
    for length in (8, 32, 128, 512):
        on_gpu = torch.randint(1000, 30000, (length,), device="cuda")
        on_host = on_gpu.cpu().pin_memory()
        row: dict[str, Any] = {"what": f"one text of {length} tokens, {name}"}
        for where, ids in (("ms_from_gpu", on_gpu), ("ms_from_host", on_host)):
            call = lambda ids=ids, length=length: runner.last_state(ids, [length])  # noqa: E731
            for _ in range(20):
                call()
            row[where] = round(1e3 * statistics.median(seconds(call) for _ in range(200)), 3)
        made.append(row)
    return made


def growth(runner: Any) -> list[dict[str, Any]]:
    """Time against tokens (texts of 64), and against the length of texts (65,536 tokens of them)."""
    made = []
    for tokens in (64, 256, 1024, 4096, 8192, 16384, 32768, 65536, 131072):
        ids, lengths = torch.randint(1000, 30000, (tokens,), device="cuda"), [64] * (tokens // 64)
        made.append({"what": "tokens", "tokens": tokens, **_timed(runner, ids, lengths)})
    for length in (8, 16, 32, 64, 128, 256, 512):
        ids, lengths = torch.randint(1000, 30000, (65536,), device="cuda"), [length] * (65536 // length)
        made.append({"what": "length of texts", "length": length, **_timed(runner, ids, lengths)})
    return made


def _timed(runner: Any, ids: Any, lengths: list[int]) -> dict[str, float]:
    call = lambda: runner.last_state(ids, lengths)  # noqa: E731
    for _ in range(3):
        call()
    return {"ms": round(1e3 * statistics.median(seconds(call) for _ in range(9)), 4)}


def end_to_end(name: str, folder: Path, texts: list[str], rows: list[list[int]], rounds: int) -> list[dict[str, Any]]:
    """Texts to vectors, and our own model alone on tokens that are ready."""
    ours = bertie.Embedder(folder, device="cuda", dtype="bfloat16")
    theirs = SentenceTransformers(folder)
    tokens = sum(map(len, rows))
    packed = packed_batches(rows, BUDGET)
    runner: Any = bertie.engine.compile(
        bertie.BertModel.from_pretrained(folder, dtype="float32", add_pooling_layer=False),
        dtype="bfloat16",
        device="cuda",
    ).runner
    calls: dict[str, Callable[[], Any]] = {
        "ours, texts to vectors": lambda: ours.embed(texts),
        "ours, tokens to states": lambda: [runner.last_state(*batch) for batch in packed][-1],
    }
    found = alternating(calls, rounds) | alternating(
        {"sentence-transformers": lambda: theirs(texts)}, max(1, rounds // 3)
    )
    slow, ready = found["sentence-transformers"], found["ours, tokens to states"]
    return [
        {
            "what": f"{name}, {len(texts)} texts, {who}",
            "m_tokens_per_s": round(tokens / taken / 1e6, 3),
            "texts_per_s": round(len(texts) / taken),
            "ratio_to_sentence_transformers": round(slow / taken, 2),
            "share_of_our_rate_on_tokens": round(ready / taken, 3),
        }
        for who, taken in found.items()
    ]


def saved_base(model: bertie.BertModel, like: Path, folder: Path) -> Path:
    """BERT-base as a folder of sentence-transformers': the files of `like` around it, with the width changed."""
    model.save_pretrained(folder)
    for file in like.iterdir():
        if file.is_file() and file.name not in ("config.json", "model.safetensors"):
            shutil.copyfile(file, folder / file.name)
    pooling = json.loads((like / "1_Pooling" / "config.json").read_text())
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling | {"word_embedding_dimension": 768}))
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", metavar="SECTION", help="accuracy, latency, 'end to end', …")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/")
    given = parser.parse_args()
    machine = describe(("torch", "triton", "transformers", "sentence-transformers"))
    print(machine, flush=True)
    texts = json.loads(given.texts.read_text())
    rows = [list(row) for row in BertTokenizer.from_pretrained(given.model).encode_ids(texts, max_length=256)]
    seen, unseen = [row[:128] for row in rows[:96]], rows[1000:3000]
    out: list[dict[str, Any]] = []
    lengths = [len(row) for row in rows]
    floors = {
        "tokens": sum(lengths),
        "mean_length": round(statistics.mean(lengths), 1),
        "operations": arithmetic(lengths),
        # Read and written by a layer in bf16: qkv 1+3, attention 3+1, out 1+1, norm 2+1, up 1+4, down 4+1, norm 2+1.
        "bytes_a_token_and_layer": 2 * 768 * (4 + 4 + 2 + 3 + 5 + 5 + 3),
    }

    def section(name: str, make: Callable[[], list[dict[str, Any]]]) -> None:
        if given.only and name not in given.only:
            return
        started = time.perf_counter()
        try:
            made = make()
        except Exception as error:  # the others are still worth their time on the machine
            made = [{"what": name, "failed": f"{type(error).__name__}: {str(error)[:300]}"}]
        out.extend(made)
        for row in made:
            print(json.dumps(row), flush=True)
        print(f"-- {name}: {time.perf_counter() - started:.0f} s", flush=True)
        if given.save:  # after each: what is measured is kept
            command = "python -m benchmarks.gpu --texts texts.json --model all-MiniLM-L6-v2 --save"
            save_result("gpu", command, out, gpu=machine, expected=EXPECTED, floors=floors)

    base = base_model()
    compiled = {
        dtype: bertie.engine.compile(base, dtype=dtype, device="cuda", calibration=seen)
        for dtype in ("bfloat16", "fp8")
    }
    runners: dict[str, Any] = {dtype: model.runner for dtype, model in compiled.items()}  # type: ignore[attr-defined]
    section("accuracy", lambda: accuracy("BERT-base", base, runners, unseen))
    section("latency", lambda: [row for name, runner in runners.items() for row in latency(name, runner)])
    section("growth", lambda: growth(runners["bfloat16"]))
    mini: Any = bertie.BertModel.from_pretrained(given.model, dtype="float32", add_pooling_layer=False).eval().cuda()
    section(
        "MiniLM",
        lambda: accuracy(
            "MiniLM",
            mini,
            {
                dtype: bertie.engine.compile(mini, dtype=dtype, calibration=[row[:128] for row in rows[:256]]).runner
                for dtype in ("bfloat16", "float16", "fp8")
            },
            unseen,
        ),
    )
    section("end to end", lambda: end_to_end("MiniLM", given.model, texts, rows, given.rounds))
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        section(
            "end to end, BERT-base",
            lambda: end_to_end("BERT-base", saved_base(base, given.model, folder), texts, rows, given.rounds),
        )
    section("throughput", lambda: throughput(rows, runners, base, given.rounds))


if __name__ == "__main__":
    main()
