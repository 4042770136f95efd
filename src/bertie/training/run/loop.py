"""The loop: batches in, a trained model out, and nothing lost on the way.

One step is one global batch. Its micro-batches are run one after the other; losses and gradients are *sums*, and what
they are a mean over (labelled tokens, texts) is added up beside them, over micro-batches and processes. So the update
is by the exact mean over the global batch, however it was cut.

On a GPU nothing in the step waits for the device: the gradient's norm, the clipping and the decision to skip a step
whose gradient is not finite are all made there. Numbers come back when they are logged.

    skipped steps     a gradient with NaN or infinity changes nothing and is counted; ten in a row end the run
    out of memory     the step is done again in micro-batches half as large; the global batch stays what it was
    Ctrl-C, SIGTERM   the step is finished, everything is saved, and the message says how to go on
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from bertie.errors import ConfigError, InputError
from bertie.training.contract import Diverged, Examples, Interrupted, Item, Json, Objective, Result
from bertie.training.optim import Average, Optimizer, global_norm, make_schedule
from bertie.training.run.batches import BatchMaker, DataOrder, Share, made_ahead, made_by_processes
from bertie.training.run.checkpoint import Best, RunFolder, check_output, seed_everything
from bertie.training.run.distributed import World, local, parallel, reshard, sync_gradients
from bertie.training.run.distributed import world as started_world
from bertie.training.run.faster_layers import compile_layers, fuse_layers
from bertie.training.run.journal import Journal, Tally, step_flops
from bertie.training.run.state import MOST_SKIPPED, best_folder, remove_old_bests, resume_run, save_model, save_run
from bertie.training.run.stopping import StopRequest
from bertie.training.settings import Settings

if TYPE_CHECKING:
    from bertie.engine.gpu.training.fuse import Fusion

_LOOK_EVERY = 10  # steps between two looks at the device's flags, where a look means waiting


def train(
    objective: Objective[Item],
    examples: Examples[Item],
    dev: Examples[Item] | None,
    settings: Settings,
    output: str | os.PathLike[str],
    *,
    world: World | None = None,
    resume: bool = False,
    show: bool | None = None,
    notes: Sequence[str] = (),
    options: Json | None = None,
) -> Result:
    """Train `objective.model` on `examples`; the best model on `dev` (or the last one) ends up in `output`.

    `settings` are those of the run. `world` are the processes that train, by default those that torchrun started, or
    this one. `resume` continues the run in `output`, `show` prints progress, and `notes` go into the report. `options`,
    which JSON can hold, decide the run's numbers besides `settings`: a run is not resumed with others.
    """
    if world is None:
        with started_world(shard=settings.shard) as here:
            return train(
                objective, examples, dev, settings, output,
                world=here, resume=resume, show=show, notes=notes, options=options,
            )  # fmt: skip
    folder = Path(output)
    if world.is_main:
        check_output(folder, resume=resume)
    run = RunFolder(folder, keep=settings.keep) if world.is_main else None
    try:
        training = Training(
            objective, examples, dev, settings, folder, world=world, run=run, resume=resume, show=show, options=options
        )
        for note in notes:
            training.journal.say(note)
        return training.run()
    finally:
        if run is not None:
            run.close()


class Training:
    """One run, from its first step (or the checkpoint it goes on from) to its end."""

    def __init__(
        self,
        objective: Objective[Any],
        examples: Examples[Any],
        dev: Examples[Any] | None,
        settings: Settings,
        output: Path,
        *,
        world: World,
        run: RunFolder | None,
        resume: bool,
        show: bool | None,
        options: Json | None = None,
    ) -> None:
        self.options = dict(options or {})
        self.objective, self.dev, self.settings, self.output = objective, dev, settings, output
        self.world, self.folder, self.device = world, run, world.device
        self.fingerprint = examples.fingerprint()
        self.order = DataOrder(examples, settings)
        self.schedule = make_schedule(settings, self.order.num_steps)

        model = objective.model.to(self.device)
        model.train()
        model.check_inputs = False  # batches are checked where they are made
        if settings.gradient_checkpointing:
            model.gradient_checkpointing_enable()
        self.architecture = getattr(model, "architecture", type(model).__name__)  # FSDP changes the class
        world.share_parameters(model)
        parallel(model, world)
        self.model = model
        self.parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._fusion: Fusion | None = None
        if settings.compile_layers:
            compile_layers(model)
        elif settings.fused and self.uses_bfloat16 and self.device.type == "cuda" and not world.shard:
            self._fusion = fuse_layers(model, alone=world.size == 1)
        self.optimizer = Optimizer(
            self.parameters,
            settings,
            num_layers=model.config.num_hidden_layers,
            local=local,
            total=world.sum_of_shards,
            rounded=self._fusion.rounded if self._fusion is not None else {},
        )
        self.average = Average(self.parameters, settings.ema) if settings.ema else None
        vocab_size = model.get_input_embeddings().num_embeddings
        self.batches = BatchMaker(
            self.order, examples, objective, settings.micro_batch_tokens, world.rank, world.size, vocab_size=vocab_size
        )

        # What a checkpoint holds besides tensors.
        self.step = 0
        self.best: Best = {"step": None, "metrics": {}}
        self.without_better = 0
        self.skipped, self.halvings = 0, 0
        self.seconds, self.tokens, self.flops = 0.0, 0, 0.0
        self.in_row = torch.zeros((), device=self.device)
        self.num_bad = torch.zeros((), device=self.device)
        self.stop = StopRequest()
        self.saved_step = -1

        seed_everything(settings.seed + 1000003 * world.rank)
        if resume:
            resume_run(self)
        place = output if world.is_main else None
        self.journal = Journal(place, tensorboard=settings.tensorboard, show=show, from_step=self.step)

    # -- the run -----------------------------------------------------------------------------------------------------

    def run(self) -> Result:
        settings, num_steps = self.settings, self.order.num_steps
        early = self._out_of_patience()
        self.journal.start(step=self.step, num_steps=num_steps, what=self.objective.name)
        feed = self._feed()
        tally = self._fresh_tally()
        try:
            with self.stop.listening(self.journal.say):
                while self.step < num_steps and not early:
                    share = next(feed)
                    if not self._attempt(share, tally):  # out of memory: the same step again, in smaller pieces
                        feed.close()
                        feed = self._feed()
                        continue
                    self.step += 1
                    self.journal.at(self.step)
                    last = self.step == num_steps
                    if self.step % settings.log_every == 0 or last:
                        tally = self._log(tally)
                    stop = self._look(tally)
                    if self.dev is not None and (last or self._due(settings.evaluate_every)):
                        tally = self._paused(tally, self._evaluate)
                        early = self._out_of_patience()
                    if stop or last or early or self._due(settings.save_every or settings.evaluate_every):
                        tally = self._paused(tally, lambda: save_run(self))
                    if stop and not last and not early:
                        raise Interrupted(
                            f"Stopped at step {self.step} of {num_steps}; everything is saved in {self.output}.",
                            "Continue with the same command and {resume}.",
                            resume=True,
                        )
            return self._finish(early)
        finally:
            feed.close()
            self.journal.close()
            if self._fusion is not None:
                self._fusion.undo()

    def _feed(self) -> Generator[Share, None, None]:
        steps, pin = range(self.step, self.order.num_steps), self.device.type == "cuda"
        if self.settings.workers:
            return made_by_processes(self.batches.share, steps, workers=self.settings.workers, pin=pin)
        return made_ahead(self.batches.share, steps, pin=pin)

    def _due(self, every: int | None) -> bool:
        return self.order.ends_epoch(self.step - 1) if every is None else self.step % every == 0

    def _attempt(self, share: Share, tally: Tally) -> bool:
        """Do one step; False when memory did not suffice and nothing was changed but the size of micro-batches."""
        loss_before = tally.loss.clone()
        try:
            self._forward_and_backward(share, tally)
        except torch.OutOfMemoryError as error:
            tally.loss = loss_before
            self._free()
            largest = max(batch.num_tokens for batch in share.micro_batches)
            self._refuse_to_halve(share, largest, error)
            self.halvings += 1
            self.batches.pieces = max(1, min(self.batches.pieces or largest, largest) // 2)
            self.journal.say(f"out of memory: micro-batches are {self.batches.pieces} tokens from here on")
            return False
        self._update(share, tally)
        return True

    def _refuse_to_halve(self, share: Share, largest: int, error: torch.OutOfMemoryError) -> None:
        """Where memory did not suffice, and smaller micro-batches are no help."""
        settings: dict[str, object] = {"gradient_checkpointing": True, "max_length": ...}
        if self.world.shard:
            longest = max(int(self.order.lengths[row]) for row in self.order.indices(share.place))
            cause = f"Rank {self.world.rank} ran out of memory with micro-batches of {largest} tokens."
            remedy = "Use {micro_batch_tokens}, or {gradient_checkpointing}."
            settings["micro_batch_tokens"] = max(longest, largest // 2)
        elif self.objective.whole_batches:
            cause = (
                f"A batch of {largest} tokens does not fit into the memory of {self.device}, and its loss compares "
                "all examples of a batch, which cannot be cut."
            )
            remedy = "Use a smaller {batch_size}, {gradient_checkpointing} or a smaller {max_length}."
            settings["batch_size"] = ...
        elif all(batch.num_examples <= 1 for batch in share.micro_batches):
            cause = f"One example of {largest} tokens does not fit into the memory of {self.device}."
            remedy = "Use {gradient_checkpointing}, a smaller {max_length} or a smaller model."
        else:
            return
        raise InputError(cause, remedy, **settings) from error

    def _forward_and_backward(self, share: Share, tally: Tally) -> None:
        for number, batch in enumerate(share.micro_batches):
            sync_gradients(self.model, self.world, number == len(share.micro_batches) - 1)
            moved = batch.to(self.device, non_blocking=True)
            with self._precision():
                loss, extras = self.objective.loss(self.model, moved)
            if not batch.num_examples:
                loss = loss * 0.0
            torch.autograd.backward(loss)
            tally.loss += loss.detach().to(tally.loss.dtype)
            tally.extras = extras or tally.extras

    def _update(self, share: Share, tally: Tally) -> None:
        self.world.sum_gradients(list(self.parameters.values()))
        counts = torch.tensor(
            [share.units, share.num_tokens, share.num_examples, share.squares, float(self.stop.asked)],
            dtype=torch.float64,
        )
        if self.world.size > 1:
            counts = self.world.sum(counts.to(self.device))
        tally.counts += counts
        units = counts[0].clamp(min=1e-9).to(torch.float32)
        if self.world.size == 1:
            units = torch.full((), float(units), device=self.device)

        norm = global_norm(self.optimizer.grads(), self.world.sum_of_shards, self.device) / units
        # Once there were ten in a row, nothing changes any more: what is saved is the last good state.
        bad = ((~torch.isfinite(norm)) | (self.in_row >= MOST_SKIPPED)).float()
        self.in_row = (self.in_row + bad) * bad
        self.num_bad += bad
        self._norm = norm
        scale = units
        if self.settings.clip:
            scale = units * (norm / self.settings.clip).clamp(min=1.0)
        wrote = self.optimizer.step(learning_rate=self.schedule(self.step), grad_scale=scale, found_inf=bad)
        if self._fusion is not None:
            self._fusion.copies_are_current(wrote)
        self.model.zero_grad()
        if self.average is not None:
            self.average.update(keep=bad)

    def _precision(self, as_set: bool = True) -> contextlib.AbstractContextManager[object]:
        if as_set and self.uses_bfloat16:
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return contextlib.nullcontext()

    @property
    def uses_bfloat16(self) -> bool:
        if self.settings.precision == "auto":
            return self.device.type == "cuda" and torch.cuda.is_bf16_supported()
        return self.settings.precision == "bfloat16"

    def _free(self) -> None:
        self.model.zero_grad()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    # -- numbers -----------------------------------------------------------------------------------------------------

    def _fresh_tally(self) -> Tally:
        where = self.device if self.world.size > 1 else torch.device("cpu")
        exact = torch.float64 if self.device.type == "cpu" else torch.float32
        loss = torch.zeros((), dtype=exact, device=self.device)
        return Tally(loss, torch.zeros(5, dtype=torch.float64, device=where))

    def _log(self, tally: Tally) -> Tally:
        loss = float(self.world.sum(tally.loss))
        units, tokens, examples, squares, _ = tally.counts.tolist()
        seconds = time.perf_counter() - tally.since
        self.seconds += seconds
        self.tokens += int(tokens)
        predicted = units if self.model.get_output_embeddings() is not None else 0.0
        self.flops += step_flops(self.model.config, tokens=tokens, squares=squares, predicted=predicted)
        place = self.order.place(self.step - 1)
        epoch = place.epoch + place.end / len(self.order.lengths)
        values = {
            "loss": loss / units if units else 0.0,
            "lr": self.schedule(self.step - 1),
            "grad_norm": float(self._norm),
            "epoch": epoch,
            "tokens_per_s": tokens / seconds if seconds else 0.0,
            "examples": examples,
            "seconds": self.seconds,
            "skipped": int(self.num_bad),
            **{name: float(value) for name, value in tally.extras.items()},
        }
        per_step = self.seconds / max(1, self.step)
        self.journal.log(self.step, values, left=per_step * (self.order.num_steps - self.step))
        return self._fresh_tally()

    def _paused(self, tally: Tally, work: Callable[[], None]) -> Tally:
        """Do something that is no training, and leave its time out."""
        if float(tally.counts[0]):
            tally = self._log(tally)
        work()
        tally.since = time.perf_counter()
        return tally

    def _look(self, tally: Tally) -> bool:
        """Whether someone asked to stop; ends the run when gradients have not been finite for too long."""
        if self.device.type != "cpu" and self.step % _LOOK_EVERY and self.step != self.order.num_steps:
            return self.stop.asked and self.world.size == 1
        self.skipped = int(self.num_bad)
        if int(self.in_row) >= MOST_SKIPPED:
            save_run(self)
            raise Diverged(
                f"The gradient was not finite {MOST_SKIPPED} times in a row, up to step {self.step}.",
                f"The last good weights are saved in {self.output}. Try a lower {{learning_rate}}, more warmup or "
                "{precision}.",
                learning_rate=...,
                precision="float32",
            )
        if self.world.size == 1:
            return self.stop.asked
        # A stop that one process was asked for must be known to all, at the same step.
        return bool(self.world.sum(torch.tensor([float(self.stop.asked)], device=self.device)) > 0)

    # -- evaluating --------------------------------------------------------------------------------------------------

    def _evaluate(self) -> None:
        assert self.dev is not None
        with self._averaged(), self._precision(self.objective.evaluates_like_training):
            self.model.eval()
            try:
                metrics = self.objective.evaluate(
                    self.model, self.dev, token_budget=self.settings.micro_batch_tokens, device=self.device
                )
            finally:
                self.model.train()
                reshard(self.model, self.world)
        metrics = self.world.main_says({name: float(value) for name, value in metrics.items()})
        better = self._compared(metrics)
        self.without_better = 0 if better > 0 else self.without_better + 1
        # Of equally good ones the least loss is kept: a metric that counts right answers has few values to differ by.
        kept = better > 0 or (better == 0 and metrics.get("loss", 0.0) < self.best["metrics"].get("loss", 0.0))
        if kept:
            self.best = {"step": self.step, "metrics": metrics}
            save_model(self, best_folder(self))
            remove_old_bests(self)
        self.journal.evaluated(self.step, metrics, best=kept)

    def _compared(self, metrics: Mapping[str, float]) -> int:
        """1 where these are better than the best so far by the metric that decides, −1 where worse, 0 where equal."""
        name = self.objective.best_metric
        if name not in metrics:
            raise ConfigError(f"The objective {self.objective.name} gave no {name!r}, only {', '.join(metrics)}.")
        if self.best["step"] is None:
            return 1
        old, new = self.best["metrics"][name], metrics[name]
        if math.isnan(old) or math.isnan(new):
            return math.isnan(old) - math.isnan(new)
        risen = int(new > old) - int(new < old)
        return risen if self.objective.greater_is_better else -risen

    def _out_of_patience(self) -> bool:
        return self.settings.patience is not None and self.without_better >= self.settings.patience

    @contextlib.contextmanager
    def _averaged(self) -> Iterator[None]:
        """With the averaged weights in the model, where they are kept."""
        if self.average is None:
            yield
            return
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        assert self.average is not None
        self.average.swap()
        if self._fusion is not None:
            self._fusion.copies_are_current(False)

    # -- the end -----------------------------------------------------------------------------------------------------

    def _finish(self, early: bool) -> Result:
        """The best model, or without dev data the last one, into the run's folder itself."""
        best = best_folder(self)
        if self.best["step"] is None:
            with self._averaged():
                save_model(self, best)
        if self.world.is_main and best.is_dir():
            # config.json last: a folder with it is a whole model.
            for path in sorted(best.iterdir(), key=lambda path: path.name == "config.json"):
                if path.is_dir():  # a folder (1_Pooling, say) takes no other's place
                    shutil.rmtree(self.output / path.name, ignore_errors=True)
                os.replace(path, self.output / path.name)
        if self.world.is_main:
            shutil.rmtree(best.parent, ignore_errors=True)
        self.world.wait_for_all()
        return Result(
            output=self.output,
            steps=self.step,
            metrics=self.best["metrics"],
            best_step=self.best["step"],
            stopped_early=early,
            skipped=int(self.num_bad),
            seconds=self.seconds,
            tokens=self.tokens,
            flops=self.flops,
            oom_halvings=self.halvings,
        )
