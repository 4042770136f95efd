"""`bertie doctor`: versions, processor, GPU, kernels, where models are looked for."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import click

from bertie import __version__
from bertie.checkpoint.shipped import BESIDE, shipped_folder
from bertie.cli.support.show import console
from bertie.defaults import default_language_model
from bertie.errors import CheckpointNotFound
from bertie.text.wordpiece.native import load_library

_PACKAGES = ("torch", "tokenizers", "safetensors", "huggingface_hub", "numpy", "click", "rich", "pyarrow")
_FEATURES = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16", "asimddp", "bf16", "i8mm")


@click.command("doctor", epilog="\b\nExamples:\n  bertie doctor\n  bertie doctor --json")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
def command(as_json: bool) -> None:
    """Show versions, processor, GPU, the attention kernels in use, and where models are looked for."""
    facts = _facts()
    if as_json:
        click.echo(json.dumps(facts, indent=2, ensure_ascii=False))
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False, title="bertie doctor", title_justify="left")
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(name, Text(value))
    console().print(table)


def _facts() -> dict[str, str]:
    import torch

    from bertie.engine.cpu.describe import kernels_line, threads_line
    from bertie.ops.attention import BACKENDS

    facts = {}
    facts["bertie"] = f"{__version__}, Python {platform.python_version()}, {platform.platform()}"
    facts["packages"] = ", ".join(f"{name} {_version(name)}" for name in _PACKAGES)
    facts["processor"] = f"{_processor()}, {os.cpu_count()} cores, {torch.get_num_threads()} used by torch"
    if torch.cuda.is_available():
        cards = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        facts["GPU"] = f"{', '.join(cards)} (CUDA {torch.version.cuda})"
    else:
        facts["GPU"] = "none that torch can use"
    packed = "varlen (half precision), else sdpa by groups" if torch.cuda.is_available() else "sdpa by groups"
    facts["attention"] = f"padded batches: sdpa; packed: {packed}; also: {', '.join(BACKENDS)}"
    gpu = "no GPU"
    if torch.cuda.is_available():
        gpu = "bfloat16, float16 and fp8; by default float16 where cosine to float32 is ≥ 0.99999, else bfloat16"
    facts["engine"] = f"CPU: {kernels_line()}; GPU: {gpu}"
    facts["CPU threads"] = threads_line()
    facts["tokenizer"] = "Rust, and C++ for many texts" if load_library() else "Rust; the C++ form was not built"
    facts["default model"] = _found(BESIDE, lambda: str(shipped_folder(BESIDE)))  # not fetched for this
    facts["default language model"] = _found("bertie-mini (fill, next, features)", default_language_model)
    facts["hub cache"] = _hub_cache()
    return facts


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    try:
        info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    lines = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
    fields = {key.strip(): value.strip() for key, value in lines.items()}
    has = set(fields.get("flags", fields.get("Features", "")).split())  # the second on ARM
    return f"{fields.get('model name', platform.machine())} ({' '.join(f for f in _FEATURES if f in has)})"


def _found(name: str, folder: Callable[[], str]) -> str:
    try:
        return f"{name} at {folder()}"
    except CheckpointNotFound as error:
        return f"not installed. {error.remedy}"


def _hub_cache() -> str:
    try:
        from huggingface_hub import constants
    except ImportError:
        return "huggingface_hub is not installed"
    return f"{constants.HF_HUB_CACHE}{' (offline)' if constants.HF_HUB_OFFLINE else ''}"
