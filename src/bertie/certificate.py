"""The parity certificate of a checkpoint: does it load whole, is it sound, and does it compute what it should?

Known inputs go through the model three ways, padded with the plain attention formula, padded with the fused kernel, and
packed; the three must agree. A short fingerprint of the answer lets two machines, or two formats, be compared.
"""

from __future__ import annotations

import os
import time
import warnings
from dataclasses import asdict, dataclass, field

import torch
from torch import Tensor

from bertie.checkpoint.report import LoadingReport, listed
from bertie.config import BertConfig
from bertie.loading import load
from bertie.model.pretrained import BertPreTrainedModel

TOLERANCE = 1e-5
_TANH_GELUS = ("gelu_new", "gelu_fast", "gelu_accurate", "gelu_pytorch_tanh")


@dataclass(frozen=True)
class Check:
    name: str
    passed: bool
    detail: str


@dataclass
class Certificate:
    """What was checked, what came of it, and the numerics the checkpoint runs with."""

    source: str
    model: str
    checks: list[Check] = field(default_factory=list)
    numerics: list[str] = field(default_factory=list)
    fingerprint: list[float] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    def as_dict(self) -> dict[str, object]:
        return asdict(self) | {"passed": self.passed}


def certify(source: str | os.PathLike[str]) -> Certificate:
    """Load in float32, check, run. A checkpoint that cannot be loaded at all raises, with the reason."""
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what they would say is in the report
        model, report = load(source, output_loading_info=True)
    certificate = Certificate(os.fspath(source), type(model).__name__)
    certificate.checks += [_names(report), _finite(model)]
    if certificate.passed:
        certificate.checks += _answers(model, certificate)
    certificate.numerics = describe_numerics(model.config, report)
    certificate.seconds = time.perf_counter() - started
    return certificate


def describe_numerics(config: BertConfig, report: LoadingReport) -> list[str]:
    """Which formulas the numbers depend on, in words."""
    act = config.hidden_act if isinstance(config.hidden_act, str) else "a function"
    forms = {"gelu": "exact, with the error function", "gelu_python": "exact, with the error function"}
    form = forms.get(act, "the tanh approximation" if act in _TANH_GELUS else "")
    lines = [
        f"activation {act}" + (f" ({form})" if form else ""),
        f"LayerNorm eps {config.layer_norm_eps:g}",
        f"positions {config.position_embedding_type}, up to {config.max_input_length}",
    ]
    if report.format == "tensorflow" and act == "gelu":
        lines.append(
            "Google's later code approximates gelu with tanh, the hub's does not; this runs the exact one. "
            "For the other, load with hidden_act='gelu_new'."
        )
    if config.pruned_heads:
        gone = sum(map(len, config.pruned_heads.values()))
        lines.append(f"{gone} of {config.num_hidden_layers * config.num_attention_heads} heads are pruned")
    if config.intermediate_sizes is not None:
        lines.append(f"feed-forward neurons by layer: {', '.join(map(str, config.intermediate_sizes))}")
    return lines


def _names(report: LoadingReport) -> Check:
    if report.newly_initialised:
        return Check(
            "every weight is there", False, f"not in the checkpoint: {listed(report.newly_initialised, shown=4)}"
        )
    extra = [*report.unexpected, *report.untied]
    return Check("every weight is there", True, f"not used: {listed(extra, shown=4)}" if extra else "and nothing more")


def _finite(model: BertPreTrainedModel) -> Check:
    wrong = [name for name, tensor in model.state_dict().items() if not bool(torch.isfinite(tensor).all())]
    count = len(model.state_dict())
    return Check("every number is finite", not wrong, listed(wrong, shown=4) if wrong else f"{count} tensors")


def golden_ids(config: BertConfig) -> list[Tensor]:
    """Three texts of 1, 7 and up to 48 tokens whose ids walk through the vocabulary."""
    lengths = [1, min(7, config.max_input_length), min(48, config.max_input_length)]
    texts = []
    for number, length in enumerate(lengths):
        steps = torch.arange(length) * 7919 + 101 * (number + 1)
        texts.append(1 + steps % max(1, config.vocab_size - 1) if config.vocab_size > 1 else torch.zeros_like(steps))
    return texts


@torch.inference_mode()
def _answers(model: BertPreTrainedModel, certificate: Certificate) -> list[Check]:
    texts = golden_ids(model.config)
    lengths = torch.tensor([len(text) for text in texts])
    keep = torch.arange(int(lengths.max())) < lengths[:, None]
    ids = torch.zeros(keep.shape, dtype=torch.long)
    ids[keep] = torch.cat(texts)
    base = model.base_model
    model.set_attention_backend("eager")
    plain = base(ids, keep.long()).last_hidden_state[keep]
    model.set_attention_backend("auto")
    fused = base(ids, keep.long()).last_hidden_state[keep]
    ends = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])
    packed = base(torch.cat(texts), cu_seqlens=ends).last_hidden_state
    certificate.fingerprint = [round(float(x), 4) for x in plain.abs().mean(dim=-1)[:4]]
    finite = bool(torch.isfinite(plain).all())
    checks = [Check("known inputs give finite states", finite, f"fingerprint {certificate.fingerprint}")]
    for name, other in (("fused attention", fused), ("a packed batch", packed)):
        difference = float((plain - other).abs().max())
        checks.append(
            Check(f"{name} equals the formula", difference <= TOLERANCE, f"largest difference {difference:.1e}")
        )
    return checks
