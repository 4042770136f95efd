"""QUALITY 5: names in a checkpoint's files, and in a caller's arguments, that lead out of its folder.

    inside/     the checkpoint that is opened
    outside/    a whole checkpoint of its own, every weight 7 and every word CANARY: what must never be read

A trial fails when anything outside is opened, listed or written, or a seven is loaded.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from bertie.checkpoint.tensorflow import save_tf_checkpoint
from bertie.convert import convert
from bertie.loading import load
from bertie.model import BertForPreTraining
from bertie.text import BertTokenizer, train_vocabulary
from hostile.corpus import CONFIG, TEXTS, config_json, weights
from hostile.isolation import Trial

CANARY = 7.0
# OUT stands for the outside folder's absolute path.
FILE_NAMES = (
    "../outside/model.safetensors", "OUT/model.safetensors", "./../outside/model.safetensors",
    "sub/../../outside/model.safetensors", "/../OUT/model.safetensors", "//OUT/model.safetensors",
    "..\\outside\\model.safetensors", "C:\\outside\\model.safetensors", "C:model.safetensors",
    "\\\\?\\C:\\model.safetensors", "\\\\server\\share\\model.safetensors", "file://OUT/model.safetensors",
    "http://localhost/model.safetensors", "~/model.safetensors", "~root/model.safetensors", "$HOME/model.safetensors",
    "%2e%2e/outside/model.safetensors", "․․/outside/model.safetensors", "．．／outside／model.safetensors",
    "..\x00/outside/model.safetensors", "a.safetensors\x00", "link.safetensors", "chain.safetensors",
    "linked/model.safetensors", "a.safetensors/", "a.safetensors/.", ".", "..", "", " ", "/", "CON", "NUL", "aux.txt",
    "a.safetensors:stream", "x" * 300, "../" * 500 + "etc/passwd", "/dev/zero", "/dev/stdin", "/proc/self/environ",
    "pipe.safetensors", "\ud800", "a\n.safetensors", " ../outside/model.safetensors",
)  # fmt: skip
FOLDER_NAMES = (
    "../outside", "OUT", "./../outside", "sub/../../outside", "..\\outside", "C:\\outside", "file://OUT", "~", "~root",
    "linked", "linked/", "..", "/", "․․/outside", "..\x00", "x" * 300, "../" * 500, "%2e%2e/outside", "chained",
)  # fmt: skip
VARIANTS = (
    "../../outside/model", "/../../outside/model", "x/../../../outside/model", "..", "OUT/model", "\x00", "fp16/",
    "a\\b", "x" * 300, "",
)  # fmt: skip
SOURCES = (
    "x" * 5000,
    "a/" * 3000,
    "~nobody-of-that-name/x",
    "\ud800",
    "\x00",
    "",
    "a\nb",
    "../" * 2000,
    "file:///x",
    "C:\\x",
)
TOKENIZER_KEYS = ("vocab_file", "tokenizer_file", "special_tokens_map_file", "merges_file", "name_or_path")

CASES = tuple(
    f"{where}|{json.dumps(name)}"
    for where, names in (
        ("safetensors index", FILE_NAMES),
        ("bin index", FILE_NAMES[:12]),
        ("modules.json", FOLDER_NAMES),
        ("subfolder", FOLDER_NAMES),
        ("variant", VARIANTS),
        ("saved variant", VARIANTS),
        ("tokenizer config", TOKENIZER_KEYS),
        ("checkpoint state", FOLDER_NAMES + FILE_NAMES[:8]),
        ("convert", ("1_Pooling", "vocab.txt")),
        ("source", SOURCES),
        ("tokenizer source", SOURCES),
    )
    for name in names
)

_seen: list[str] | None = None
_EVENTS = ("open", "os.listdir", "os.scandir", "os.mkdir", "os.rename", "os.symlink", "os.link", "os.remove", "mmap")


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _seen is not None and (event.startswith("shutil.") or event in _EVENTS):
        for argument in arguments[:2]:
            if isinstance(argument, (str, bytes)):
                _seen.append(os.fsdecode(argument))


_hooked = False


def _watch() -> None:
    """An audit hook stays for the life of a process, so it is set in the worker alone."""
    global _hooked
    if not _hooked:
        sys.addaudithook(_hook)
        _hooked = True


def _whole_checkpoint(folder: Path, fill: float | None) -> None:
    folder.mkdir()
    tensors = {name: tensor if fill is None else torch.full_like(tensor, fill) for name, tensor in weights().items()}
    (folder / "config.json").write_bytes(config_json())
    for name in ("model.safetensors", "model.fp16.safetensors", "a.safetensors"):
        (folder / name).write_bytes(safetensors.torch.save(tensors))
    torch.save(tensors, folder / "pytorch_model.bin")
    save_tf_checkpoint(folder / "bert_model.ckpt", tensors)


def _make_outside(folder: Path) -> Path:
    outside = folder / "outside"
    if not outside.exists():
        _whole_checkpoint(outside, CANARY)
        (outside / "vocab.txt").write_text("[UNK]\n[CLS]\n[SEP]\n[PAD]\n[MASK]\nCANARY\n")
        (outside / "bert_config.json").write_text(json.dumps(CONFIG.to_google_dict()))
        (outside / "secret").write_text("CANARY")
    return outside


def trial(case: str, folder: Path) -> Trial:
    where, _, quoted = case.partition("|")
    outside = _make_outside(folder)
    inside = folder / "inside"
    shutil.rmtree(inside, ignore_errors=True)
    shutil.rmtree(folder / "converted", ignore_errors=True)
    sound = folder / "sound"
    if not sound.exists():
        _whole_checkpoint(sound, None)
    shutil.copytree(sound, inside)
    (inside / "sub").mkdir()
    (inside / "link.safetensors").symlink_to(outside / "model.safetensors")
    (inside / "chain.safetensors").symlink_to("link.safetensors")
    (inside / "linked").symlink_to(outside)
    (inside / "chained").symlink_to("linked")
    os.mkfifo(inside / "pipe.safetensors")
    name = json.loads(quoted).replace("OUT", str(outside))
    before = _everything(outside)
    listing = sorted(os.listdir(folder))
    loader = _LOADERS[where](inside, name)
    _watch()

    def watched() -> Any:
        global _seen
        _seen = []
        return loader()

    def harmless() -> None:
        global _seen
        seen, _seen = _seen or [], None
        escaped = [path for path in seen if _leads_to(path, outside)]
        assert not escaped, f"opened {escaped}"
        assert _everything(outside) == before, "something outside was changed"
        left = [new for new in sorted(os.listdir(folder)) if new not in listing and new != "converted"]
        assert not left, f"written beside: {left}"
        for path in (folder / "converted").rglob("*"):
            assert not path.is_file() or b"CANARY" not in path.read_bytes(), f"{path} holds the canary"

    def check(loaded: Any) -> None:
        if isinstance(loaded, BertTokenizer):
            assert "CANARY" not in loaded.get_vocab()
        elif isinstance(loaded, torch.nn.Module):
            assert not any((parameter == CANARY).all() for parameter in loaded.parameters())
        else:
            assert where == "convert", "a hostile name was accepted"

    return Trial(watched, check, harmless)


def _leads_to(path: str, outside: Path) -> bool:
    if "\x00" in path:
        return False
    real = os.path.realpath(path)
    return real == str(outside) or real.startswith(f"{outside}{os.sep}")


def _everything(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


# -- where the name stands --------------------------------------------------------------------------------------------


def _index(kind: str) -> Callable[[Path, str], Callable[[], Any]]:
    def make(inside: Path, name: str) -> Callable[[], Any]:
        good = "a.safetensors" if kind == "model.safetensors" else "pytorch_model.bin"
        for path in ("model.safetensors", "model.fp16.safetensors"):
            (inside / path).unlink()
        if kind == "pytorch_model.bin":
            (inside / "a.safetensors").unlink()
            os.rename(inside / "pytorch_model.bin", inside / "a.bin")
            good = "a.bin"
        names = list(weights())
        weight_map = dict.fromkeys(names, name) if name != "pipe.safetensors" else dict.fromkeys(names, good)
        weight_map[names[-1]] = name
        (inside / f"{kind}.index.json").write_text(json.dumps({"weight_map": weight_map}))
        return lambda: load(inside)

    return make


def _modules(inside: Path, name: str) -> Callable[[], Any]:
    (inside / "config.json").unlink()
    modules = [{"idx": 0, "name": "0", "path": name, "type": "sentence_transformers.models.Transformer"}]
    (inside / "modules.json").write_text(json.dumps(modules))
    return lambda: load(inside)


def _state(inside: Path, name: str) -> Callable[[], Any]:
    for path in (*inside.glob("*.safetensors"), inside / "pytorch_model.bin"):
        path.unlink()
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    text = f'model_checkpoint_path: "{escaped}/bert_model.ckpt"\n'
    (inside / "checkpoint").write_bytes(text.encode("utf-8", "surrogatepass"))
    return lambda: load(inside)


def _tokenizer_config(inside: Path, key: str) -> Callable[[], Any]:
    train_vocabulary(TEXTS, vocab_size=120).save_pretrained(inside)
    (inside / "tokenizer.json").unlink()
    config = json.loads((inside / "tokenizer_config.json").read_text())
    config[key] = str(inside.parent / "outside" / "vocab.txt")
    (inside / "tokenizer_config.json").write_text(json.dumps(config))
    return lambda: BertTokenizer.from_pretrained(inside)


def _convert(inside: Path, name: str) -> Callable[[], Any]:
    """What lies beside the weights is copied; a link out of the folder is no reason to copy what it leads to."""
    if name == "vocab.txt":
        (inside / name).symlink_to(inside.parent / "outside" / "vocab.txt")
    else:
        (inside / name).mkdir()
        (inside / name / "config.json").write_text("{}")
        (inside / name / "notes").symlink_to(inside.parent / "outside" / "secret")
    return lambda: convert(inside, inside.parent / "converted")


def _saved_variant(inside: Path, name: str) -> Callable[[], Any]:
    model = BertForPreTraining(CONFIG)
    return lambda: model.save_pretrained(inside, variant=name)


_LOADERS: dict[str, Callable[[Path, str], Callable[[], Any]]] = {
    "safetensors index": _index("model.safetensors"),
    "bin index": _index("pytorch_model.bin"),
    "modules.json": _modules,
    "subfolder": lambda inside, name: lambda: load(inside, subfolder=name),
    "variant": lambda inside, name: lambda: load(inside, variant=name),
    "saved variant": _saved_variant,
    "tokenizer config": _tokenizer_config,
    "checkpoint state": _state,
    "convert": _convert,
    "source": lambda inside, name: lambda: load(name),
    "tokenizer source": lambda inside, name: lambda: BertTokenizer.from_pretrained(name),
}
