"""What the five scripts share: arguments, loading, the loop over epochs, states to resume from, and saving.

They do what transformers' `run_…_no_trainer.py` examples do for their users, with the same library calls in the
same order; the code is our own. Data come from local files, and nothing is fetched.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from datasets import load_dataset
from torch.utils.data import DataLoader
from transformers import SchedulerType, get_scheduler


def parse(argv: Sequence[str] | None, **more: dict[str, Any]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--train_file", required=True)
    parser.add_argument("--validation_file", required=True)
    parser.add_argument("--model_name_or_path")
    parser.add_argument("--config_name")
    parser.add_argument("--tokenizer_name")
    parser.add_argument("--model_type")
    parser.add_argument("--output_dir", required=True)
    parser.add_argument("--max_length", type=int, default=48)
    parser.add_argument("--pad_to_max_length", action="store_true")
    parser.add_argument("--use_slow_tokenizer", action="store_true")
    parser.add_argument("--trust_remote_code", action="store_true")
    parser.add_argument("--ignore_mismatched_sizes", action="store_true")
    parser.add_argument("--per_device_train_batch_size", type=int, default=4)
    parser.add_argument("--per_device_eval_batch_size", type=int, default=4)
    parser.add_argument("--learning_rate", type=float, default=5e-3)
    parser.add_argument("--weight_decay", type=float, default=0.1)
    parser.add_argument("--num_train_epochs", type=int, default=2)
    parser.add_argument("--max_train_steps", type=int)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
    parser.add_argument("--lr_scheduler_type", type=SchedulerType, default=SchedulerType("linear"))
    parser.add_argument("--num_warmup_steps", type=int, default=1)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--checkpointing_steps")
    parser.add_argument("--resume_from_checkpoint")
    for name, settings in more.items():
        parser.add_argument(f"--{name}", **settings)
    return parser.parse_args(argv)


def begin(args: argparse.Namespace) -> Accelerator:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=args.gradient_accumulation_steps)
    set_seed(args.seed)
    Path(args.output_dir).mkdir(parents=True, exist_ok=True)
    accelerator.wait_for_everyone()
    return accelerator


def read(args: argparse.Namespace, **options: Any) -> Any:
    files = {"train": args.train_file, "validation": args.validation_file}
    kind = Path(args.train_file).suffix[1:]
    return load_dataset("text" if kind == "txt" else kind, data_files=files, **options)


def fit_vocabulary(model: Any, tokenizer: Any) -> None:
    if len(tokenizer) > model.get_input_embeddings().weight.shape[0]:
        model.resize_token_embeddings(len(tokenizer))


def multiple_of(accelerator: Accelerator) -> int | None:
    return {"no": None, "fp8": 16}.get(accelerator.mixed_precision, 8)


def train(
    args: argparse.Namespace,
    accelerator: Accelerator,
    model: Any,
    tokenizer: Any,
    train_dataset: Any,
    eval_dataset: Any,
    data_collator: Callable[[Any], Any],
    evaluate: Callable[[Any, DataLoader[Any]], dict[str, float]],
) -> dict[str, Any]:
    """Train, evaluate after each epoch, save; gives the losses of all steps and the last evaluation."""
    train_dataloader = DataLoader(
        train_dataset, shuffle=True, collate_fn=data_collator, batch_size=args.per_device_train_batch_size
    )
    eval_dataloader = DataLoader(eval_dataset, collate_fn=data_collator, batch_size=args.per_device_eval_batch_size)

    no_decay = ["bias", "LayerNorm.weight"]
    groups: list[dict[str, Any]] = [
        {"params": [], "weight_decay": args.weight_decay},
        {"params": [], "weight_decay": 0.0},
    ]
    for name, parameter in model.named_parameters():
        groups[any(part in name for part in no_decay)]["params"].append(parameter)
    optimizer = torch.optim.AdamW(groups, lr=args.learning_rate)
    model.to(accelerator.device)

    def steps_per_epoch() -> int:
        return math.ceil(len(train_dataloader) / args.gradient_accumulation_steps)

    max_train_steps = args.max_train_steps or args.num_train_epochs * steps_per_epoch()
    lr_scheduler = get_scheduler(
        name=args.lr_scheduler_type,
        optimizer=optimizer,
        num_warmup_steps=args.num_warmup_steps * accelerator.num_processes,
        num_training_steps=max_train_steps * accelerator.num_processes,
    )
    model, optimizer, train_dataloader, eval_dataloader, lr_scheduler = accelerator.prepare(
        model, optimizer, train_dataloader, eval_dataloader, lr_scheduler
    )
    max_train_steps = args.max_train_steps or args.num_train_epochs * steps_per_epoch()

    starting_epoch = resume_step = completed_steps = 0
    if args.resume_from_checkpoint:
        accelerator.load_state(args.resume_from_checkpoint)
        kind, number = Path(args.resume_from_checkpoint).name.split("_")
        if kind == "epoch":
            starting_epoch = int(number) + 1
        else:
            starting_epoch, resume_step = divmod(int(number) * args.gradient_accumulation_steps, len(train_dataloader))
        completed_steps = int(number) if kind == "step" else starting_epoch * steps_per_epoch()

    losses: list[float] = []
    metrics: dict[str, float] = {}
    for epoch in range(starting_epoch, math.ceil(max_train_steps / steps_per_epoch())):
        model.train()
        batches = train_dataloader
        if epoch == starting_epoch and resume_step:
            batches = accelerator.skip_first_batches(train_dataloader, resume_step)
        for batch in batches:
            with accelerator.accumulate(model):
                outputs = model(**batch)
                loss = outputs.loss
                losses.append(loss.detach().float().item())
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 10.0)
                optimizer.step()
                lr_scheduler.step()
                optimizer.zero_grad()
            completed_steps += accelerator.sync_gradients
            every = args.checkpointing_steps
            if every and every.isdigit() and accelerator.sync_gradients and completed_steps % int(every) == 0:
                accelerator.save_state(str(Path(args.output_dir) / f"step_{completed_steps}"))
            if completed_steps >= max_train_steps:
                break
        model.eval()
        metrics = evaluate(model, eval_dataloader)
        if args.checkpointing_steps == "epoch":
            accelerator.save_state(str(Path(args.output_dir) / f"epoch_{epoch}"))

    accelerator.wait_for_everyone()
    unwrapped_model = accelerator.unwrap_model(model)
    unwrapped_model.save_pretrained(
        args.output_dir, is_main_process=accelerator.is_main_process, save_function=accelerator.save
    )
    results = {"losses": losses, "metrics": metrics}
    if accelerator.is_main_process:
        tokenizer.save_pretrained(args.output_dir)
        (Path(args.output_dir) / "all_results.json").write_text(json.dumps(results))
    return results
