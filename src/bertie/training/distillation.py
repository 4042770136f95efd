"""A small model learns from a large one: an objective around another, with a teacher beside the student.

    objective = Distillation(task.objective, teacher, weights=Weights(task=0.5, logits=0.5, hidden=1.0))

The teacher reads the same batch, without dropout and gradients, and the student is pulled towards

- logits: the teacher's probabilities, by KL divergence at a temperature T, times T² (Hinton et al. 2015); a score by
  squared error, several labels by binary cross-entropy;
- hidden: the states of the teacher's layers, by squared error, each of the student's layers to one of the teacher's.
  Where the widths differ the teacher's states are brought to the student's by a fixed map with orthonormal rows: what
  is random but fixed needs no training, and nothing of it has to be saved or resumed (TinyBERT, Jiao et al. 2020,
  trains it);
- attention: what tokens attend to, by KL divergence: "maps" are the layers' own attention probabilities (averaged over
  heads where their numbers differ); "relations" are softmax(H·Hᵀ/√d) of the last mapped states, which needs neither
  equal heads nor the maps themselves (after MiniLM, Wang et al. 2020).

All parts are means, multiplied by the batch's units: sums over units, as the loop takes them.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertie.arguments import number, one_of
from bertie.checkpoint.report import LoadingReport, NewlyInitialized
from bertie.errors import CheckpointNotFound, ConfigError, InputError
from bertie.loading import class_for
from bertie.model import BertModel
from bertie.model.losses import IGNORED
from bertie.model.outputs import ModelOutput
from bertie.model.pretrained import BertPreTrainedModel
from bertie.text import BertTokenizer
from bertie.training.contract import Batch, Examples, Item, Json, Objective
from bertie.training.run.distributed import World

AttentionLoss = Literal["maps", "relations"]
Model = TypeVar("Model", bound=BertPreTrainedModel)

TEMPERATURE = 2.0


@dataclass(frozen=True)
class Weights:
    """How much each part counts; a part that weighs 0 is not computed."""

    task: float = 0.5
    logits: float = 0.5
    hidden: float = 0.0
    attention: float = 0.0

    def __post_init__(self) -> None:
        values = list(vars(self).values())
        if any(not value >= 0 for value in values) or not any(values):
            raise ConfigError("{distillation:is} its weights must be at least 0, and not all 0.", distillation=values)


class Distillation(Objective[Item]):
    """`layers[i]` is the teacher's layer (from 1; 0 is the embeddings) that student layer i + 1 is pulled towards; by
    default they are spread evenly and the last goes to the last.
    """

    def __init__(
        self,
        objective: Objective[Item],
        teacher: BertPreTrainedModel,
        *,
        weights: Weights | None = None,
        temperature: float = TEMPERATURE,
        layers: Sequence[int] | None = None,
        attention: AttentionLoss = "maps",
        seed: int = 0,
    ) -> None:
        # What the loop asks of an objective is the inner one's.
        self.name, self.best_metric = objective.name, objective.best_metric
        self.greater_is_better, self.whole_batches = objective.greater_is_better, objective.whole_batches
        self.evaluates_like_training = objective.evaluates_like_training
        self.model = student = objective.model
        self.objective = objective
        self.teacher = teacher.eval().requires_grad_(False)
        self.weights = weights or Weights()
        self.temperature = temperature
        self.attention = attention
        _check(student, teacher, self.weights, temperature, attention)
        depths = student.config.num_hidden_layers, teacher.config.num_hidden_layers
        self.layers = tuple(layers) if layers is not None else even_layers(*depths)
        if len(self.layers) != depths[0] or not all(0 <= layer <= depths[1] for layer in self.layers):
            raise ConfigError(
                f"The layers to learn from are {list(self.layers)}; a student of {depths[0]} layers takes {depths[0]} "
                f"numbers from 0 (embeddings) to {depths[1]}."
            )
        self.projection = _projection(teacher.config.hidden_size, student.config.hidden_size, seed)

    def collate(self, examples: Sequence[Item]) -> Batch:
        return self.objective.collate(examples)

    def evaluate(
        self, model: nn.Module, examples: Examples[Item], *, token_budget: int, device: torch.device | str
    ) -> dict[str, float]:
        return self.objective.evaluate(model, examples, token_budget=token_budget, device=device)

    def metric_names(self, dev: Examples[Item]) -> tuple[str, ...]:
        return self.objective.metric_names(dev)

    def save_extras(self, folder: Path) -> None:
        self.objective.save_extras(folder)

    @cached_property
    def deciding(self) -> Json:
        return {
            "teacher": _model_hash(self.teacher),
            "distillation weights": asdict(self.weights),
            "temperature": self.temperature,
            "attention loss": self.attention,
            "layers to learn from": list(self.layers),
        }

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        weights = self.weights
        options = {
            "output_hidden_states": bool(weights.hidden or (weights.attention and self.attention == "relations")),
            "output_attentions": bool(weights.attention and self.attention == "maps"),
        }
        options = {name: True for name, wanted in options.items() if wanted}
        recorded = _Recorded(model, options)
        task, extras = self.objective.loss(recorded, batch)
        ids = batch.tensors["input_ids"]
        if self.teacher.device != ids.device:
            self.teacher.to(ids.device)
        with torch.no_grad():
            target: ModelOutput = self.teacher(*recorded.inputs, **recorded.options)
        output = recorded.output
        total = weights.task * task
        if weights.logits:
            total = total + weights.logits * batch.units * self._logit_loss(output, target, batch)
        if weights.hidden:
            total = total + weights.hidden * batch.units * self._hidden_loss(output, target)
        if weights.attention:
            total = total + weights.attention * batch.units * self._attention_loss(output, target, batch)
        return total, extras

    def _logit_loss(self, output: ModelOutput, target: ModelOutput, batch: Batch) -> Tensor:
        if "start_logits" in output:
            segments, number = batch.tensors["text_ids"], len(batch.tensors["cu_seqlens"]) - 1
            parts = [
                _segment_divergence(output[name], target[name], segments, number, self.temperature)
                for name in ("start_logits", "end_logits")
            ]
            return (parts[0] + parts[1]) / 2
        problem = self.model.config.problem_type
        if "prediction_logits" in output:
            words = _divergence(output["prediction_logits"], target["prediction_logits"], self.temperature)
            pairs = _divergence(output["seq_relationship_logits"], target["seq_relationship_logits"], self.temperature)
            return words + pairs
        ours, theirs = output["logits"].float(), target["logits"].float()
        if problem == "regression":
            return F.mse_loss(ours, theirs)
        if problem == "multi_label_classification":
            return F.binary_cross_entropy_with_logits(ours, theirs.sigmoid())
        labels = batch.tensors["labels"]
        if labels.shape == ours.shape[:1] and self.objective.name == "tag":
            kept = labels != IGNORED  # only the pieces that have a label
            ours, theirs = ours[kept], theirs[kept]
        return _divergence(ours, theirs, self.temperature)

    def _hidden_loss(self, output: ModelOutput, target: ModelOutput) -> Tensor:
        """The mean over the embeddings and all layers of mean squared differences."""
        pairs = [(0, 0), *((place, layer) for place, layer in enumerate(self.layers, start=1))]
        losses = []
        for ours, theirs in pairs:
            wanted = target["hidden_states"][theirs].float()
            if self.projection is not None:
                with torch.autocast(wanted.device.type, enabled=False):
                    wanted = wanted @ self.projection.to(wanted.device)
            losses.append(F.mse_loss(output["hidden_states"][ours].float(), wanted))
        return torch.stack(losses).mean()

    def _attention_loss(self, output: ModelOutput, target: ModelOutput, batch: Batch) -> Tensor:
        sizes = batch.tensors["cu_seqlens"].diff().tolist()
        if self.attention == "relations":
            ours = torch.split(output["hidden_states"][-1].float(), sizes)
            theirs = torch.split(target["hidden_states"][self.layers[-1]].float(), sizes)
            pairs = [(_relations(a), _relations(b).exp()) for a, b in zip(ours, theirs, strict=True)]
        else:
            pairs = []
            for place, layer in enumerate(self.layers):
                if layer == 0:
                    continue  # embeddings attend to nothing
                for a, b in zip(output["attentions"][place], target["attentions"][layer - 1], strict=True):
                    same = a.shape[0] == b.shape[0]
                    a, b = (a.float(), b.float()) if same else (a.float().mean(dim=0), b.float().mean(dim=0))
                    pairs.append((a.clamp_min(1e-9).log(), b))
        if not pairs:
            return batch.tensors["input_ids"].new_zeros((), dtype=torch.float32)
        # Every text counts alike, whatever its length.
        losses: list[Tensor] = [F.kl_div(a, b, reduction="sum") / (b.numel() // b.shape[-1]) for a, b in pairs]
        return torch.stack(losses).mean()


class _Recorded(nn.Module):
    """A model that remembers what it was given and what it answered, and gives more than it was asked for."""

    def __init__(self, model: nn.Module, more: Mapping[str, object]) -> None:
        super().__init__()
        self.call, self.more = model.__call__, more  # not the model itself, whose mode is its own
        self.inputs: tuple[object, ...] = ()
        self.options: dict[str, object] = {}
        self.output = ModelOutput()

    def forward(self, *inputs: object, **options: object) -> ModelOutput:
        self.inputs, self.options = inputs, {**options, **self.more}
        self.output = self.call(*inputs, **self.options)
        return self.output


def even_layers(student: int, teacher: int) -> tuple[int, ...]:
    """Layers of the teacher (from 1) for each of the student's, evenly, the last for the last.

    >>> even_layers(3, 12), even_layers(4, 6)
    ((4, 8, 12), (2, 3, 4, 6))
    """
    return tuple(max(1, round((layer + 1) * teacher / student)) for layer in range(student))


def make_student(teacher: Model, *, layers: Sequence[int] | None = None, num_layers: int | None = None) -> Model:
    """A copy of the teacher with some of its layers (from 1, in this order), or `num_layers` of them spread evenly."""
    depth = teacher.config.num_hidden_layers
    if (layers is None) == (num_layers is None):
        raise ConfigError("A student needs either layers or num_layers.", "Give one of them.")
    if num_layers is not None and not 1 <= num_layers <= depth:
        raise ConfigError(f"{{num_layers:is}} the teacher has {depth} layers.", num_layers=num_layers)
    chosen = tuple(layers) if layers is not None else even_layers(num_layers or 1, depth)
    if not chosen or not all(1 <= layer <= depth for layer in chosen):
        raise ConfigError(f"{{layers:is}} they must be numbers from 1 to {depth}.", layers=list(chosen))
    pruned = {
        place: teacher.config.pruned_heads[layer - 1]
        for place, layer in enumerate(chosen)
        if layer - 1 in teacher.config.pruned_heads
    }
    sizes = teacher.config.intermediate_sizes
    kept = {} if sizes is None else {"intermediate_sizes": [sizes[layer - 1] for layer in chosen]}
    config = teacher.config.replace(num_hidden_layers=len(chosen), pruned_heads=pruned, **kept)
    arguments = {} if not isinstance(teacher, BertModel) else {"add_pooling_layer": teacher.pooler is not None}
    student = type(teacher)(config, **arguments)
    weights = teacher.state_dict()
    taken = {}
    for name in student.state_dict():
        before, marker, rest = name.partition("encoder.layer.")
        if marker:
            place, _, inner = rest.partition(".")
            taken[name] = weights[f"{before}{marker}{chosen[int(place)] - 1}.{inner}"]
        else:
            taken[name] = weights[name]
    student.load_state_dict(taken)
    return student.to(teacher.device).train(teacher.training)


def load_with_head(source: str | os.PathLike[str], objective: Objective[Item]) -> tuple[BertPreTrainedModel, list[str]]:
    """A checkpoint as the class that this objective trains, and the weights of it that the checkpoint does not have."""
    kind = type(objective.model)
    options: dict[str, Any] = {"add_pooling_layer": False} if issubclass(kind, BertModel) else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NewlyInitialized)
        made: Any = class_for(kind, source).from_pretrained(source, output_loading_info=True, **options)
    report: LoadingReport = made[1]
    return made[0], sorted(report.newly_initialised)


def load_teacher(source: str | os.PathLike[str], objective: Objective[Item]) -> BertPreTrainedModel:
    """A teacher for this objective from files; refused where the checkpoint lacks the task's head."""
    teacher, missing = load_with_head(source, objective)
    if missing:
        raise InputError(
            f"The teacher {os.fspath(source)} has no weights for {', '.join(missing[:2])} "
            f"of a {type(objective.model).__name__}.",
            "Fine-tune it for the task first, or learn from its hidden states with a teacher of another kind.",
        )
    return teacher


def _model_hash(model: BertPreTrainedModel) -> str:
    """A hash of a model's configuration and of all its weights."""
    digest = hashlib.sha256(json.dumps(model.config.to_diff_dict(), sort_keys=True, default=str).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:32]


@dataclass(frozen=True)
class Teaching:
    """How to learn from a larger model: `student_layers` starts from this many of its layers."""

    teacher: str | os.PathLike[str] | None
    weights: Weights | None = None
    temperature: float = TEMPERATURE
    student_layers: int | None = None

    def check_student(self, model: object | None) -> None:
        """Refuse `student_layers` where there is no teacher to take them from, or a student already."""
        if self.student_layers is None:
            return
        if self.teacher is None:
            raise InputError(
                "{student_layers:is} there is no teacher to take them from.",
                _NAME_IT,
                student_layers=self.student_layers,
            )
        if model is not None:
            raise InputError(
                "Both {model} and {student_layers} were given.",
                "The student is either a model of its own or some layers of the teacher: leave one of them out.",
                model=...,
                student_layers=...,
            )

    def check(self) -> None:
        """Refuse a temperature that is none, and what says how to learn from a teacher where there is none."""
        number("temperature", self.temperature, above=0, finite=False, error=ConfigError)
        if self.teacher is not None:
            return
        said: dict[str, object] = {}
        if self.weights is not None and self.weights != Weights():
            said = {"distillation": list(vars(self.weights).values())}
        if self.temperature != TEMPERATURE:
            said = {"temperature": self.temperature}
        for name in said:
            raise InputError(f"{{{name}:is}} there is no teacher to learn from.", _NAME_IT, **said)

    def check_vocabulary(self, tokenizer: BertTokenizer) -> None:
        """Refuse a teacher to which the same ids are other words. One that comes without its vocabulary is believed."""
        if self.teacher is None:
            return
        teacher = os.fspath(self.teacher)
        try:
            theirs = BertTokenizer.from_pretrained(teacher).get_vocab()
        except CheckpointNotFound:
            if not os.path.isdir(teacher):
                raise
            return
        ours = tokenizer.get_vocab()
        if ours == theirs:
            return
        remedy = "Both read the same ids: use a student with the teacher's vocabulary."
        if len(ours) != len(theirs):
            sizes = f"{len(theirs)} tokens, the student's {len(ours)}"
            raise InputError(f"The vocabulary of the teacher {teacher} has {sizes}.", remedy)
        token = min(ours.items() - theirs.items(), key=lambda item: item[1])[0]
        there = f"token {theirs[token]} of" if token in theirs else "not in"
        raise InputError(
            f"The teacher {teacher} has another vocabulary than the student: {token!r} is token {ours[token]} "
            f"of the student's and {there} the teacher's.",
            remedy,
        )

    def around(self, objective: Objective[Item], here: World) -> Objective[Item]:
        """The objective itself, or distillation around it."""
        if self.teacher is None:
            return objective
        teacher = load_teacher(self.teacher, objective).to(here.device)
        return Distillation(objective, teacher, weights=self.weights, temperature=self.temperature)

    def reported(self) -> dict[str, object]:
        """What the report says of a teacher, if there is one."""
        if self.teacher is None:
            return {}
        weights = vars(self.weights or Weights())
        return {"teacher": os.fspath(self.teacher), "distillation": weights, "temperature": self.temperature}


_NAME_IT = "Name a teacher: --teacher ./my-large-bert."


def _check(
    student: BertPreTrainedModel,
    teacher: BertPreTrainedModel,
    weights: Weights,
    temperature: float,
    attention: AttentionLoss,
) -> None:
    number("temperature", temperature, above=0, finite=False, error=ConfigError)
    one_of("attention", attention, get_args(AttentionLoss), ConfigError)
    ours, theirs = student.config, teacher.config
    if ours.vocab_size != theirs.vocab_size:
        raise InputError(
            f"The teacher's vocabulary has {theirs.vocab_size} tokens, the student's {ours.vocab_size}.",
            "Both read the same ids: use a student with the teacher's tokenizer.",
        )
    if not weights.logits:
        return
    if isinstance(student, BertModel):
        raise InputError(
            "A model without a head has no logits to learn.",
            "Use {distillation}.",
            distillation=Weights(logits=0, hidden=1),
        )
    if type(student) is not type(teacher) or ours.id2label != theirs.id2label:
        raise InputError(
            f"The student is a {type(student).__name__} with the labels {list(ours.id2label.values())[:5]}, "
            f"the teacher a {type(teacher).__name__} with {list(theirs.id2label.values())[:5]}.",
            "Train the teacher on the same task and labels, or use {distillation}.",
            distillation=Weights(logits=0),
        )


def _projection(teacher: int, student: int, seed: int) -> Tensor | None:
    """`[teacher, student]` with orthonormal columns (or rows, for a wider student); None for equal widths."""
    if teacher == student:
        return None
    generator = torch.Generator().manual_seed(seed)
    wide, narrow = max(teacher, student), min(teacher, student)
    basis: Tensor = torch.linalg.qr(torch.randn(wide, narrow, generator=generator)).Q
    return basis if teacher == wide else basis.T.contiguous()


def _divergence(ours: Tensor, theirs: Tensor, temperature: float) -> Tensor:
    """T² · KL(teacher ‖ student), the mean over rows of `[rows, classes]`."""
    logs = [F.log_softmax(logits.float() / temperature, dim=-1) for logits in (ours, theirs)]
    return F.kl_div(logs[0], logs[1], log_target=True, reduction="sum") * temperature**2 / max(1, len(ours))


def _segment_divergence(ours: Tensor, theirs: Tensor, segments: Tensor, number: int, temperature: float) -> Tensor:
    """The same over packed `[T]` logits, each text's own tokens being its classes."""

    def log_softmax(logits: Tensor) -> Tensor:
        logits = logits.float() / temperature
        highest = logits.new_full((number,), -torch.inf).scatter_reduce(0, segments, logits.detach(), "amax")
        moved = logits - highest[segments]
        return moved - logits.new_zeros(number).index_add(0, segments, moved.exp()).log()[segments]

    mine, wanted = log_softmax(ours), log_softmax(theirs)
    return (wanted.exp() * (wanted - mine)).sum() * temperature**2 / number


def _relations(states: Tensor) -> Tensor:
    """`[length, hidden]` → log of `[length, length]`: how every token relates to every other."""
    with torch.autocast(states.device.type, enabled=False):
        return F.log_softmax(states @ states.T / states.shape[-1] ** 0.5, dim=-1)
