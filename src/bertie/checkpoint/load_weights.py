"""Weights into a model: built empty, filled tensor by tensor, and a report of everything that did not simply fit.

The model is made without memory (model/empty.py says which parts of a subclass are not). Each parameter then becomes
the checkpoint's tensor itself, a view of the mapped file when dtype and device agree, so there is never a second copy
of the model. What the checkpoint does not have is what its constructor made of it, and then initialised the way the
model initialises itself. Only encoder weights may not be missing.
"""

from __future__ import annotations

import gc
import logging
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import nn

from bertie.checkpoint.names import is_core, is_required, match_names, num_layers
from bertie.checkpoint.open_checkpoint import Checkpoint, Tensors
from bertie.checkpoint.report import LoadingReport, Misshaped, NewlyInitialized, UnusedWeights, listed
from bertie.errors import ConfigError, InputError, WeightsMismatch

logger = logging.getLogger("bertie.checkpoint")


def usable_device(given: torch.device | str | int | None) -> torch.device:
    """The device that is meant; one that does not exist, or that this torch was not built for, is refused."""
    try:
        device = torch.get_default_device() if given is None else torch.device(given)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        # torch says it with the list of all the back ends it has
        not_built = isinstance(error, NotImplementedError)
        reason = "this torch was not built for it" if not_built else str(error).splitlines()[0].rstrip(".")
        raise InputError(f"There is no device {given!r}: {reason}.", "Use cpu, cuda, cuda:1 …") from None
    return device


def fill_new_model(
    make: Callable[[], nn.Module],
    checkpoint: Checkpoint,
    *,
    name: str,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str | int | None = None,
    ignore_mismatched_sizes: bool = False,
    key_mapping: Mapping[str, str] | None = None,
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
    place = usable_device(device)
    if place.type == "meta":
        raise InputError(
            "from_pretrained was called for the meta device, on which weights have no values.",
            "Build an empty model from its configuration instead, or load outside of torch.device('meta').",
        )
    with _no_garbage_collection():
        model = make()
        _fill(
            model,
            tensors,
            report,
            dtype=chosen,
            device=place,
            ignore_mismatched_sizes=ignore_mismatched_sizes,
            key_mapping=key_mapping or {},
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


def chosen_dtype(wanted: torch.dtype | str | None, config: Mapping[str, object], tensors: Tensors) -> torch.dtype:
    """None is float32 like everywhere in torch; "auto" is what the configuration says, or else the file itself."""
    if wanted is None:
        return torch.get_default_dtype()
    if wanted == "auto":
        stated = config.get("dtype") or config.get("torch_dtype")
        if stated is not None:
            return named_dtype(stated, "config.dtype")
        stored = [info.dtype for info in tensors.info.values() if info.dtype.is_floating_point]
        return stored[0] if stored else torch.get_default_dtype()
    return named_dtype(wanted, "dtype")


def named_dtype(value: object, where: str) -> torch.dtype:
    found = value
    if isinstance(value, str):
        short = value.removeprefix("torch.")
        # Not getattr: torch imports some of its modules when they are asked for, and here a file does the asking.
        found = vars(torch).get({"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}.get(short, short))
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise ConfigError(
            f"{where} is {value!r:.80}.", "Use 'auto', 'float32', 'bfloat16', 'float16' or another dtype of PyTorch."
        )
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


def _fill(
    model: nn.Module,
    tensors: Tensors,
    report: LoadingReport,
    *,
    dtype: torch.dtype,
    device: torch.device,
    ignore_mismatched_sizes: bool,
    key_mapping: Mapping[str, str],
) -> None:
    modules = dict(model.named_modules())
    wanted = named_tensors(modules)
    groups = _tied_groups(wanted)
    prefix = f"{getattr(model, 'base_model_prefix', 'bert')}."
    in_files = getattr(model, "names_in_files", ())
    matching = match_names(tensors.info, wanted, prefix=prefix, key_mapping=key_mapping, in_files=in_files)
    report.unexpected, report.renamed = matching.unexpected, matching.renamed
    report.ignored += matching.ignored
    # First by names and shapes alone, so that an error comes before gigabytes are touched.
    sources: list[tuple[list[str], str]] = []
    fresh: list[list[str]] = []
    for names in groups:
        stored = next((name for name in names if name in matching.places), None)
        one = wanted[names[0]]
        if stored is None:
            report.missing.append(names[0])
            fresh.append(names)
            continue
        info = tensors.info[matching.places[stored]]
        if info.shape != tuple(one.shape):
            report.misshaped.append(Misshaped(stored, info.shape, tuple(one.shape)))
            fresh.append(names)
        elif one.is_floating_point() and not info.dtype.is_floating_point:
            raise WeightsMismatch(
                f"{report.source}: {stored} is stored as {str(info.dtype).removeprefix('torch.')}: a quantised model.",
                "Load the original, unquantised weights.",
            )
        else:
            sources.append((names, stored))
    _refuse(report, tensors, prefix, any_found=bool(matching.places), ignore_mismatched_sizes=ignore_mismatched_sizes)

    for module in modules.values():
        _convert_made(module, dtype, device)
    for names, stored in sources:
        others = [name for name in names if name in matching.places and name != stored]
        _note_untied(tensors, matching.places, stored, others, report)
        source = matching.places[stored]
        stored_tensor = tensors.read(source)
        old = wanted[names[0]]
        tensor = stored_tensor.to(device=device, dtype=dtype if old.is_floating_point() else old.dtype)
        if tensor is not stored_tensor:
            del stored_tensor
            tensors.release(source)
        _give_values(modules, names, old, tensor)
    _initialise(model, modules, wanted, fresh, dtype=dtype, device=device)
    report.newly_initialised = [names[0] for names in fresh]
    _leave_out_ignored(model, report)
    for module in modules.values():
        module.__dict__["training"] = False  # what eval() does, without its checks at every step
        if callable(make := getattr(type(module), "make_default_ids", None)) and module.position_ids.is_meta:
            make(module)
        if device.type != "cpu" and isinstance(module, nn.RNNBase):
            module.flatten_parameters()  # cuDNN wants them side by side


def named_tensors(modules: Mapping[str, nn.Module]) -> dict[str, torch.Tensor]:
    """What a checkpoint holds of a model: parameters and persistent buffers, shared ones under all of their names."""
    return {
        f"{path}.{leaf}" if path else leaf: tensor
        for path, module in modules.items()
        for leaf, tensor in (*module._parameters.items(), *module._buffers.items())
        if tensor is not None and leaf not in module._non_persistent_buffers_set
    }


def _convert_made(module: nn.Module, dtype: torch.dtype, device: torch.device) -> None:
    """What a subclass's constructor made goes where the weights go. The tensors stay the same objects: an LSTM, or its
    author, may hold them under other names."""
    for tensor in (*module._parameters.values(), *module._buffers.values()):
        if tensor is not None and not tensor.is_meta:
            tensor.data = tensor.data.to(device=device, dtype=dtype if tensor.is_floating_point() else tensor.dtype)


def _give_values(modules: Mapping[str, nn.Module], names: list[str], old: torch.Tensor, values: torch.Tensor) -> None:
    """Let a (perhaps shared) parameter or buffer be these values, without a copy."""
    if not old.is_meta:
        old.data = values
        return
    new = nn.Parameter(values, requires_grad=old.requires_grad) if isinstance(old, nn.Parameter) else values
    for name in names:
        owner, _, leaf = name.rpartition(".")
        place: dict[str, Any] = modules[owner]._parameters
        (place if leaf in place else modules[owner]._buffers)[leaf] = new


def _tied_groups(wanted: Mapping[str, torch.Tensor]) -> list[list[str]]:
    """The tensors' names, those of one shared tensor together; the first is where it is stored."""
    groups: dict[int, list[str]] = {}
    for name, tensor in wanted.items():
        groups.setdefault(id(tensor), []).append(name)
    return list(groups.values())


def _refuse(
    report: LoadingReport, tensors: Tensors, prefix: str, *, any_found: bool, ignore_mismatched_sizes: bool
) -> None:
    if not any_found:
        raise WeightsMismatch(
            f"{report.source}: {_described(tensors)}.", "Is this the right checkpoint? Its names are not BERT's."
        )
    core = [name for name in report.missing if is_required(name, prefix)]
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
    """A tied weight is sometimes stored twice; one that differs is skipped, as on the hub, and reported."""
    for other in others:
        first, second = tensors.read(places[stored]), tensors.read(places[other])
        if first.data_ptr() != second.data_ptr() and not (first.shape == second.shape and torch.equal(first, second)):
            report.untied.append(other)
        del first, second
        if places[other] != places[stored]:
            tensors.release(places[other])


def _initialise(
    model: nn.Module,
    modules: Mapping[str, nn.Module],
    wanted: Mapping[str, torch.Tensor],
    fresh: list[list[str]],
    *,
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    """Fresh numbers for some (perhaps shared) parameters, by the model's own rule for the layers they are in."""
    owners: dict[str, None] = {}
    for names in fresh:
        if (old := wanted[names[0]]).is_meta:
            _give_values(modules, names, old, torch.zeros(old.shape, dtype=dtype, device=device))
        # Of a shared parameter's owners, the one whose kind has a rule: a head's `bias` is its decoder's.
        paths = [name.rpartition(".")[0] for name in names]
        known = (nn.Linear, nn.Embedding, nn.LayerNorm)
        owners[next((path for path in paths if isinstance(modules[path], known)), paths[0])] = None
    new = {name for names in fresh for name in names}
    for path in (*owners, *_wholly_new(modules, owners, new)):
        loaded = [
            tensor
            for leaf, tensor in modules[path]._parameters.items()
            if tensor is not None and (f"{path}.{leaf}" if path else leaf) not in new
        ]
        values = [tensor.data for tensor in loaded]
        for tensor in loaded:  # the rule fills a whole layer: what was loaded is put aside for it
            tensor.data = tensor.data.clone()
        _rule(model, path)(modules[path])
        for tensor, before in zip(loaded, values, strict=True):
            tensor.data = before


def _wholly_new(modules: Mapping[str, nn.Module], owners: Iterable[str], new: set[str]) -> list[str]:
    """The modules around new layers that hold nothing else, inner ones first: a rule may be about a whole head."""
    around = {path.rsplit(".", n)[0] for path in owners for n in range(1, path.count(".") + 1)} - set(owners)
    whole = [path for path in around if {f"{path}.{name}" for name, _ in modules[path].named_parameters()} <= new]
    return sorted(whole, key=lambda path: (-path.count("."), path))


def _rule(model: nn.Module, path: str) -> Callable[[nn.Module], None]:
    """The `_init_weights` of the innermost model around a layer; the last model's for a layer between models."""
    candidates = [module for module in model.modules() if hasattr(module, "_init_weights")][-1:]
    around: nn.Module = model
    for part in ["", *path.split(".")]:
        around = around.get_submodule(part)
        if hasattr(around, "_init_weights"):
            candidates.append(around)
    return cast(Callable[[nn.Module], None], candidates[-1]._init_weights)


def _leave_out_ignored(model: nn.Module, report: LoadingReport) -> None:
    """Names a class says may be missing or left over are not reported."""
    for names, patterns in (
        (report.missing, getattr(model, "_keys_to_ignore_on_load_missing", None)),
        (report.newly_initialised, getattr(model, "_keys_to_ignore_on_load_missing", None)),
        (report.unexpected, getattr(model, "_keys_to_ignore_on_load_unexpected", None)),
    ):
        names[:] = [name for name in names if not any(re.search(pattern, name) for pattern in patterns or ())]


def _tell(report: LoadingReport, *, stacklevel: int) -> None:
    new, sizes = report.newly_initialised, [str(one) for one in report.misshaped]
    left_over = [name for name in report.unexpected if is_core(name)]
    told = f" ({listed(sizes)})" if sizes else ""
    for names, kind, what in (
        (
            new,
            NewlyInitialized,
            f"{len(new)} weights are not in the checkpoint and start from random numbers: {listed(new)}{told}. "
            "Train the model before using what they compute.",
        ),
        (
            left_over,
            UnusedWeights,
            f"{len(left_over)} of the checkpoint's encoder weights have no place in the model: {listed(left_over)}.",
        ),
        (
            report.untied,
            UnusedWeights,
            f"{listed(report.untied)} differs from the weight it is tied to and is not used; "
            "set tie_word_embeddings=False to keep both.",
        ),
    ):
        if names:
            warnings.warn(f"{report.model} from {report.source}: {what}", kind, stacklevel=stacklevel + 1)
    logger.info("%s", report)
