"""Weights into a model: built empty, filled tensor by tensor, and a report of everything that did not simply fit.

The model is made without memory (on torch's meta device). Each parameter then becomes the checkpoint's tensor itself,
a view of the mapped file when dtype and device agree, so there is never a second copy of the model. What the
checkpoint does not have is initialised the way the model initialises itself. Only encoder weights may not be missing.
"""

from __future__ import annotations

import functools
import gc
import logging
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from bertie.checkpoint.names import is_core, match_names, num_layers
from bertie.checkpoint.read import Checkpoint, Tensors
from bertie.checkpoint.report import LoadingReport, Misshaped, NewlyInitialized, UnusedWeights, listed
from bertie.errors import ConfigError, InputError, WeightsMismatch

logger = logging.getLogger("bertie.checkpoint")


def usable_device(given: torch.device | str | int | None) -> torch.device:
    """The device that is meant; one that does not exist, or that this torch was not built for, is refused."""
    try:
        device = torch.device("cpu" if given is None else given)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        # torch says it with the list of all the back ends it has
        not_built = isinstance(error, NotImplementedError)
        reason = "this torch was not built for it" if not_built else str(error).splitlines()[0].rstrip(".")
        raise InputError(f"There is no device {given!r}: {reason}.", "It takes cpu, cuda, cuda:1 …") from None
    return device


def fill_new_model(
    make: Callable[[], nn.Module],
    checkpoint: Checkpoint,
    *,
    name: str,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str | int | None = None,
    ignore_mismatched_sizes: bool = False,
    stacklevel: int = 3,
) -> tuple[Any, LoadingReport]:
    """Build a model with `make` and give it the checkpoint's weights; it comes back in eval mode with its report."""
    tensors = checkpoint.tensors
    report = LoadingReport(
        source=checkpoint.source,
        model=name,
        format=checkpoint.format,
        files=tuple(str(file) for file in checkpoint.weights.files),
        ignored=list(tensors.ignored),
    )
    chosen = chosen_dtype(dtype, checkpoint.config, tensors)
    report.dtype = str(chosen).removeprefix("torch.")
    with _no_garbage_collection():
        with _WithoutMemory(), _no_resets():
            model = make()
        _fill(
            model,
            tensors,
            report,
            dtype=chosen,
            device=usable_device(device),
            ignore_mismatched_sizes=ignore_mismatched_sizes,
        )
    _tell(report, stacklevel=stacklevel + 1)
    return model, report


def check_num_layers(tensors: Tensors, wanted: int, *, source: str, prefix: str = "") -> None:
    """Compare before anything is built: a configuration may claim a billion layers."""
    found = num_layers(tensors.info, prefix)
    if found < wanted:
        kind = _described(tensors) if found == 0 else f"the weights have {found}"
        raise WeightsMismatch(
            f"{source}: config.num_hidden_layers is {wanted}; {kind}.",
            "The configuration belongs to other weights: use the one that came with these.",
        )
    if wanted > 100 and wanted * 8 > len(tensors.info):  # a layer has sixteen; building empty ones takes its time too
        raise WeightsMismatch(
            f"{source}: config.num_hidden_layers is {wanted}; {len(tensors.info)} tensors are too few for that.",
            "The configuration belongs to other weights: use the one that came with these.",
        )


def chosen_dtype(wanted: torch.dtype | str | None, config: Mapping[str, Any], tensors: Tensors) -> torch.dtype:
    """None is float32 like everywhere in torch; "auto" is what the configuration says, or else the file itself."""
    if wanted is None:
        return torch.get_default_dtype()
    if isinstance(wanted, str) and wanted == "auto":
        stated = config.get("dtype") or config.get("torch_dtype")
        if stated is not None:
            return named_dtype(stated, "config.dtype")
        stored = [info.dtype for info in tensors.info.values() if info.dtype.is_floating_point]
        return stored[0] if stored else torch.get_default_dtype()
    return named_dtype(wanted, "dtype")


def named_dtype(value: Any, where: str) -> torch.dtype:
    found = value
    if isinstance(value, str):
        short = value.removeprefix("torch.")
        # Not getattr: torch imports some of its modules when they are asked for, and here a file does the asking.
        found = vars(torch).get({"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}.get(short, short))
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise ConfigError(f"{where} is {value!r:.80}.", "It takes 'auto', 'float32', 'bfloat16', 'float16' or such.")
    return found


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Thousands of small objects that all stay would set the collector off, and it walks all of torch: 100 ms."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


_RESETTING = (nn.Linear, nn.Embedding, nn.LayerNorm)
_patching = threading.Lock()
_builders: set[int] = set()  # threads that are building a model to be filled


@contextmanager
def _no_resets() -> Iterator[None]:
    """In this thread, new layers do not initialise themselves: a fifth of the time a model takes to load.

    torch has no switch for it, so the layers' own method is exchanged as long as any thread is building a model; in
    other threads it does what it always does.
    """
    thread = threading.get_ident()
    with _patching:
        if not _builders:
            for kind in _RESETTING:
                kind.reset_parameters = _reset_unless_building(kind.reset_parameters)  # type: ignore[method-assign,assignment]
        _builders.add(thread)
    try:
        yield
    finally:
        with _patching:
            _builders.discard(thread)
            if not _builders:
                for kind in _RESETTING:
                    kind.reset_parameters = kind.reset_parameters.__wrapped__  # type: ignore


def _reset_unless_building(original: Callable[[Any], None]) -> Callable[[Any], None]:
    @functools.wraps(original)
    def reset_parameters(self: Any) -> None:
        if threading.get_ident() not in _builders:
            original(self)

    return reset_parameters


class _WithoutMemory(TorchFunctionMode):
    """Tensors made in this mode have shapes and no values, and initialisation, which would be thrown away, is skipped.

    `torch.device("meta")` does the first half, with kernels that import a compiler when first used: a second and more.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        if func is torch.empty:
            return torch.empty(*args, **{**(kwargs or {}), "device": "meta"})
        if func is torch.arange and len(args) <= 2:
            length = args[-1] - (args[0] if len(args) == 2 else 0)
            return torch.empty(length, dtype=torch.int64, device="meta")
        if func is torch.zeros_like:
            return torch.empty(args[0].shape, dtype=args[0].dtype, device="meta")
        return func(*args, **(kwargs or {}))


def _fill(
    model: nn.Module,
    tensors: Tensors,
    report: LoadingReport,
    *,
    dtype: torch.dtype,
    device: torch.device,
    ignore_mismatched_sizes: bool,
) -> None:
    modules = dict(model.named_modules())
    parameters = {
        f"{path}.{leaf}" if path else leaf: parameter
        for path, module in modules.items()
        for leaf, parameter in module._parameters.items()
        if parameter is not None
    }
    groups = _tied_groups(parameters)
    matching = match_names(tensors.info, parameters)
    report.unexpected, report.renamed = matching.unexpected, matching.renamed
    report.ignored += matching.ignored
    # First by names and shapes alone, so that an error comes before gigabytes are touched.
    sources: list[tuple[list[str], str]] = []
    fresh: list[list[str]] = []
    for names in groups:
        stored = next((name for name in names if name in matching.places), None)
        wanted = tuple(parameters[names[0]].shape)
        if stored is None:
            report.missing.append(names[0])
            fresh.append(names)
            continue
        info = tensors.info[matching.places[stored]]
        if info.shape != wanted:
            report.misshaped.append(Misshaped(stored, info.shape, wanted))
            fresh.append(names)
        elif not info.dtype.is_floating_point:
            raise WeightsMismatch(
                f"{report.source}: {stored} is stored as {str(info.dtype).removeprefix('torch.')}: a quantised model.",
                "Load the original, unquantised weights.",
            )
        else:
            sources.append((names, stored))
    _refuse(report, tensors, any_found=bool(matching.places), ignore_mismatched_sizes=ignore_mismatched_sizes)

    for names, stored in sources:
        others = [name for name in names if name in matching.places and name != stored]
        _note_untied(tensors, matching.places, stored, others, report)
        source = matching.places[stored]
        stored_tensor = tensors.read(source)
        tensor = stored_tensor.to(device=device, dtype=dtype)
        if tensor is not stored_tensor:
            del stored_tensor
            tensors.release(source)
        _assign(modules, names, nn.Parameter(tensor, requires_grad=parameters[names[0]].requires_grad))
    _initialise(model, modules, fresh, dtype=dtype, device=device)
    report.newly_initialised = [names[0] for names in fresh]
    for module in modules.values():
        module.__dict__["training"] = False  # what eval() does, without its checks at every step
        if callable(make := getattr(type(module), "make_default_ids", None)):
            make(module)


def _tied_groups(parameters: Mapping[str, nn.Parameter]) -> list[list[str]]:
    """The parameters' names, those of one shared parameter together; the first is where it is stored."""
    groups: dict[int, list[str]] = {}
    for name, parameter in parameters.items():
        groups.setdefault(id(parameter), []).append(name)
    return list(groups.values())


def _refuse(report: LoadingReport, tensors: Tensors, *, any_found: bool, ignore_mismatched_sizes: bool) -> None:
    if not any_found:
        raise WeightsMismatch(
            f"{report.source}: {_described(tensors)}.", "Is this the right checkpoint? Its names are not BERT's."
        )
    core = [name for name in report.missing if is_core(name)]
    if core:
        raise WeightsMismatch(
            f"{report.source} lacks {len(core)} of the encoder's weights: {listed(core)}.",
            "The configuration belongs to other weights, or the checkpoint is not whole.",
        )
    if report.misshaped and not ignore_mismatched_sizes:
        raise WeightsMismatch(
            f"{report.source}: {len(report.misshaped)} weights have another size than the configuration says: "
            f"{listed([str(one) for one in report.misshaped])}.",
            _size_remedy(report.misshaped),
        )


def _size_remedy(misshaped: list[Misshaped]) -> str:
    for one in misshaped:
        if one.name.endswith("word_embeddings.weight") and one.found[1:] == one.wanted[1:]:
            return (
                f"config.vocab_size is {one.wanted[0]} and the weights have {one.found[0]} words: use the "
                "configuration that came with the weights, or load with it and call resize_token_embeddings()."
            )
    if all(not is_core(one.name) for one in misshaped):
        return "For a fresh head of the size you want, pass ignore_mismatched_sizes=True."
    return "Use the configuration that came with the weights."


def _described(tensors: Tensors) -> str:
    return (
        f"none of its {len(tensors.info)} tensors is a BERT's (it has {listed(list(tensors.info), shown=3) or 'none'})"
    )


def _note_untied(
    tensors: Tensors, places: Mapping[str, str], stored: str, others: list[str], report: LoadingReport
) -> None:
    """A tied weight is sometimes stored twice; one that differs is passed over, as the hub does, and reported."""
    for other in others:
        first, second = tensors.read(places[stored]), tensors.read(places[other])
        if first.data_ptr() != second.data_ptr() and not (first.shape == second.shape and torch.equal(first, second)):
            report.untied.append(other)
        del first, second
        if places[other] != places[stored]:
            tensors.release(places[other])


def _assign(modules: Mapping[str, nn.Module], names: list[str], parameter: nn.Parameter) -> None:
    for name in names:
        owner, _, leaf = name.rpartition(".")
        modules[owner]._parameters[leaf] = parameter


def _initialise(
    model: nn.Module,
    modules: Mapping[str, nn.Module],
    fresh: list[list[str]],
    *,
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    """Fresh numbers for some (perhaps shared) parameters, by the model's own rule for the layers they are in."""
    layers: dict[str, dict[str, list[str]]] = {}
    for names in fresh:
        # Of a shared parameter's owners, the one whose kind has a rule: a head's `bias` is its decoder's.
        owners = [name.rpartition(".")[0] for name in names]
        known = (nn.Linear, nn.Embedding, nn.LayerNorm)
        place = next((i for i, owner in enumerate(owners) if isinstance(modules[owner], known)), 0)
        layers.setdefault(owners[place], {})[names[place].rpartition(".")[2]] = names
    for path, leaves in layers.items():
        owner = modules[path]
        before = dict(owner._parameters)
        for leaf, parameter in before.items():
            if parameter is not None:  # the rule fills a whole layer: what was loaded is put aside for it
                empty = torch.zeros(parameter.shape, dtype=dtype, device=device)
                owner._parameters[leaf] = nn.Parameter(empty, requires_grad=parameter.requires_grad)
        _rule(model, path)(owner)
        made = dict(owner._parameters)
        owner._parameters.update(before)
        for leaf, names in leaves.items():
            if (parameter := made[leaf]) is not None:
                _assign(modules, names, parameter)


def _rule(model: nn.Module, path: str) -> Callable[[nn.Module], None]:
    """The `_init_module` of the innermost model around a layer; the last model's for a layer between models."""
    candidates = [module for module in model.modules() if hasattr(module, "_init_module")][-1:]
    around: nn.Module = model
    for part in ["", *path.split(".")]:
        around = around.get_submodule(part)
        if hasattr(around, "_init_module"):
            candidates.append(around)
    rule: Callable[[nn.Module], None] = candidates[-1]._init_module  # type: ignore[assignment]
    return rule


def _tell(report: LoadingReport, *, stacklevel: int) -> None:
    if report.newly_initialised:
        names, sizes = report.newly_initialised, [str(one) for one in report.misshaped]
        told = f" ({listed(sizes)})" if sizes else ""
        warnings.warn(
            f"{report.model} from {report.source}: {len(names)} weights are not in the checkpoint and start from "
            f"random numbers: {listed(names)}{told}. Train the model before using what they compute.",
            NewlyInitialized,
            stacklevel=stacklevel + 1,
        )
    left_over = [name for name in report.unexpected if is_core(name)]
    if left_over:
        warnings.warn(
            f"{report.model} from {report.source}: {len(left_over)} of the checkpoint's encoder weights have no place "
            f"in the model: {listed(left_over)}.",
            UnusedWeights,
            stacklevel=stacklevel + 1,
        )
    if report.untied:
        warnings.warn(
            f"{report.model} from {report.source}: {listed(report.untied)} differs from the weight it is tied to and "
            "is not used; set tie_word_embeddings=False to keep both.",
            UnusedWeights,
            stacklevel=stacklevel + 1,
        )
    logger.info("%s", report)
