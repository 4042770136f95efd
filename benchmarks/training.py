"""One training step of the masked language model: ours beside transformers, on the same useful tokens.

    python -m benchmarks.training [--cases NAME …] [--rounds 7] [--steps 5] [--save]

A step is forward, backward, clipping and AdamW. Ours is the training loop's own step on packed batches, with the
vocabulary scored at masked words only; theirs is `BertForMaskedLM` on padded batches with SDPA attention, PyTorch's
fused AdamW, and on a GPU torch.compile; both in bfloat16 autocast there. Batches are made beforehand for both.

"mix" draws lengths as texts have them (log-normal, half of the longest on average); "full" has no padding at all. The
two alternate in one process; times are medians of rounds, the ratio is theirs over ours. Useful FLOPs count every real
token and masked word once; on a GPU they are compared with what a large bfloat16 product reaches in the same run, in a
few milliseconds and held for a second.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.machine import describe, save_result
from bertie import BertConfig, BertForMaskedLM
from bertie.training.contract import Batch, Examples, Objective
from bertie.training.pretraining.objective import word_loss
from bertie.training.run.distributed import World
from bertie.training.run.journal import step_flops
from bertie.training.run.loop import Training
from bertie.training.settings import Settings

VOCABULARY = 30522


@dataclass(frozen=True)
class Case:
    """`batch` texts of at most `length` tokens; `wanted` is the bar for the ratio."""

    size: str
    batch: int
    length: int
    mix: bool
    device: str
    wanted: float | None = None
    vocab_size: int = VOCABULARY


CASES = {
    "mini 32x128 mix": Case("mini", 32, 128, True, "cpu", wanted=1.3),
    "mini 32x128 full": Case("mini", 32, 128, False, "cpu"),
    "base 256x128 mix": Case("base", 256, 128, True, "cuda", wanted=1.7),
    "base 256x128 full": Case("base", 256, 128, False, "cuda"),
    "base 64x512 mix": Case("base", 64, 512, True, "cuda", wanted=1.7),
    "base 64x512 full": Case("base", 64, 512, False, "cuda"),
    "large 64x512 full": Case("large", 64, 512, False, "cuda", wanted=1.25),
    "large 64x512 mix": Case("large", 64, 512, True, "cuda"),
}


class Texts(Examples[int]):
    """Random ids of given lengths, 15 % of them masked; what both sides are given."""

    def __init__(self, case: Case, steps: int) -> None:
        chance = np.random.default_rng(0)
        number = case.batch * steps
        if case.mix:
            drawn = chance.lognormal(np.log(0.5 * case.length), 0.5, number)
            lengths = np.clip(drawn.round(), 8, case.length).astype(int)
        else:
            lengths = np.full(number, case.length)
        self.ids = [torch.from_numpy(chance.integers(5, case.vocab_size, size=n)) for n in lengths]
        self.masked = [torch.from_numpy(np.sort(chance.permutation(n)[: max(1, round(0.15 * n))])) for n in lengths]

    def __len__(self) -> int:
        return len(self.ids)

    def length(self, index: int) -> int:
        return len(self.ids[index])

    def get(self, index: int, epoch: int) -> int:
        return index

    def fingerprint(self) -> str:
        return "benchmark"


class MaskedWords(Objective[int]):
    """The objective as the pretraining task has it, over Texts."""

    name = "pretrain"
    best_metric = "loss"
    greater_is_better = False

    def __init__(self, texts: Texts, model: BertForMaskedLM) -> None:
        self.texts, self.model = texts, model

    def collate(self, examples: Any) -> Batch:
        ids = [self.texts.ids[index] for index in examples]
        ends = np.cumsum([0, *(len(text) for text in ids)])
        flat = torch.cat(ids)
        positions = torch.cat(
            [self.texts.masked[index] + start for index, start in zip(examples, ends[:-1].tolist(), strict=True)]
        )
        tensors = {
            "input_ids": flat,
            "token_type_ids": torch.zeros_like(flat),
            "cu_seqlens": torch.from_numpy(ends),
            "masked_positions": positions,
            "labels": flat[positions],
        }
        return Batch(tensors, float(len(positions)), len(flat), len(ids))

    def loss(self, model: Any, batch: Batch) -> Any:
        tensors = batch.tensors
        output = model(
            tensors["input_ids"],
            token_type_ids=tensors["token_type_ids"],
            cu_seqlens=tensors["cu_seqlens"],
            masked_positions=tensors["masked_positions"],
        )
        return word_loss(output.logits, tensors["labels"]), {}

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        return {}

    def save_extras(self, folder: Path) -> None:
        pass


def ours(case: Case, texts: Texts, steps: int, attention_dropout: float, folder: str) -> tuple[Callable[[], None], Any]:
    device = torch.device(case.device)
    torch.manual_seed(0)
    config = BertConfig.preset(case.size, vocab_size=case.vocab_size, attention_probs_dropout_prob=attention_dropout)
    settings = Settings(
        max_steps=10**6,
        batch_size=case.batch,
        micro_batch_tokens=case.batch * case.length,
        learning_rate=1e-4,
        warmup=0,
        schedule="constant",
    )
    training = Training(
        MaskedWords(texts, BertForMaskedLM(config)), texts, None, settings, Path(folder),
        world=World(device=device), run=None, resume=False, show=False,
    )  # fmt: skip
    shares = [training.batches.share(step) for step in range(steps)]
    if device.type == "cuda":
        shares = [share.pin_memory() for share in shares]
    tally = training._fresh_tally()

    def step_all() -> None:
        for share in shares:
            if not training._attempt(share, tally):
                raise MemoryError("out of memory")

    return step_all, (training, shares)


def theirs(case: Case, training: Any, shares: Any, attention_dropout: float) -> Callable[[], None]:
    """The same texts and masks as padded rectangles."""
    import transformers

    transformers.logging.set_verbosity_error()
    device = torch.device(case.device)
    torch.manual_seed(0)
    own = training.model.config
    config = transformers.BertConfig(
        vocab_size=own.vocab_size, hidden_size=own.hidden_size, num_hidden_layers=own.num_hidden_layers,
        num_attention_heads=own.num_attention_heads, intermediate_size=own.intermediate_size,
        attention_probs_dropout_prob=attention_dropout, attn_implementation="sdpa",
    )  # fmt: skip
    model: Any = transformers.BertForMaskedLM(config).to(device).train()
    decayed = [p for n, p in model.named_parameters() if not (n.endswith("bias") or "LayerNorm" in n)]
    others = [p for n, p in model.named_parameters() if n.endswith("bias") or "LayerNorm" in n]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}], lr=1e-4, fused=True
    )
    forward = torch.compile(model) if device.type == "cuda" else model
    batches = [_padded(share.micro_batches[0], case, device) for share in shares]

    def step_all() -> None:
        for batch in batches:
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
                loss = forward(**batch).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

    return step_all


def _padded(batch: Batch, case: Case, device: torch.device) -> dict[str, torch.Tensor]:
    """Padded to the longest text on a CPU, and always to the same length on a GPU, as compiled code likes it."""
    lengths = batch.tensors["cu_seqlens"].diff()
    width = case.length if device.type == "cuda" else int(lengths.max())
    keep = torch.arange(width) < lengths[:, None]
    ids = torch.zeros(keep.shape, dtype=torch.long)
    ids[keep] = batch.tensors["input_ids"]
    flat = torch.full_like(batch.tensors["input_ids"], -100)
    flat[batch.tensors["masked_positions"]] = batch.tensors["labels"]
    labels = torch.full(keep.shape, -100)
    labels[keep] = flat
    made = {"input_ids": ids, "labels": labels}
    if not bool(keep.all()):
        made["attention_mask"] = keep.long()
    return {name: tensor.to(device) for name, tensor in made.items()}


def measure(
    name: str, case: Case, rounds: int, steps: int, attention_dropout: float, peaks: dict[str, float] | None
) -> dict[str, Any]:
    device = torch.device(case.device)
    wait: Callable[[], None] = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    texts = Texts(case, steps)
    with tempfile.TemporaryDirectory() as folder:
        run_ours, (training, shares) = ours(case, texts, steps, attention_dropout, folder)
        calls = {"ours": run_ours, "theirs": theirs(case, training, shares, attention_dropout)}
        times: dict[str, list[float]] = {"ours": [], "theirs": []}
        for call in calls.values():  # compiling, and the optimizer's first state
            for _ in range(3):
                call()
        for _ in range(rounds):
            for who, call in calls.items():
                wait()
                start = time.perf_counter()
                call()
                wait()
                times[who].append(time.perf_counter() - start)
        tokens = sum(share.num_tokens for share in shares)
        flops = step_flops(
            training.model.config,
            tokens=tokens,
            squares=sum(share.squares for share in shares),
            predicted=sum(share.units for share in shares),
        )
        training.journal.close()
    seconds = {who: statistics.median(values) for who, values in times.items()}
    ratio = statistics.median(b / a for a, b in zip(times["ours"], times["theirs"], strict=True))
    row: dict[str, Any] = {
        "case": name,
        "ours_tokens_per_s": round(tokens / seconds["ours"]),
        "theirs_tokens_per_s": round(tokens / seconds["theirs"]),
        "ratio": round(ratio, 3),
        "wanted": case.wanted,
        "real_tokens": round(tokens / (steps * case.batch * case.length), 3),
        "ours_ms_per_step": round(1e3 * seconds["ours"] / steps, 2),
        "useful_tflops": round(flops / seconds["ours"] / 1e12, 2),
    }
    if peaks is not None:
        row["share_of_bf16_ceiling"] = round(row["useful_tflops"] / peaks["bf16_tflops"], 3)
        row["share_of_bf16_ceiling_held"] = round(row["useful_tflops"] / peaks["bf16_tflops_held"], 3)
        row["peak_memory_gb"] = round(torch.cuda.max_memory_allocated() / 1e9, 1)
        row["ceiling_tflops"], row["ceiling_held_tflops"] = peaks["bf16_tflops"], peaks["bf16_tflops_held"]
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = "cuda" if torch.cuda.is_available() else "cpu"
    known = [name for name, case in CASES.items() if case.device == here]
    parser.add_argument("--cases", nargs="+", choices=known, default=known, metavar="NAME", help=", ".join(known))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=10 if here == "cuda" else 2, help="steps in one timing")
    parser.add_argument("--attention-dropout", type=float, default=0.0, help="of both")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/")
    arguments = parser.parse_args()
    print(describe())
    peaks = None
    if here == "cuda":
        from benchmarks.gpu_kernels import ceilings

        peaks = {name: round(rate) for name, rate in ceilings().items() if name.startswith("bf16")}
        print(f"bfloat16 ceiling: {peaks['bf16_tflops']} TFLOP/s, held for a second {peaks['bf16_tflops_held']}")
    rows = []
    for name in arguments.cases:
        if here == "cuda":
            torch.compiler.reset()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        row = measure(name, CASES[name], arguments.rounds, arguments.steps, arguments.attention_dropout, peaks)
        rows.append(row)
        print(json.dumps(row), flush=True)
    if arguments.save:
        save_result(f"training-{here}", "python -m benchmarks.training", rows)
    barred = [row for row in rows if row["wanted"]]
    if barred:
        worst = min(barred, key=lambda row: row["ratio"] / row["wanted"])
        print(f"worst against its bar: {worst['case']} {worst['ratio']}x (wanted {worst['wanted']}x)")


if __name__ == "__main__":
    main()
