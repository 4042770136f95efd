"""Writing what makes a folder a sentence-transformers one: modules.json and its modules, beside the model.

A model that came from such a folder keeps its modules (dense layers, normalising, prompts) as they were: they are not
trained here, so their files are copied. The transformer itself lies in the folder, wherever it lay before.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from bertie.checkpoint.hostile.paths import inside, read_json_file
from bertie.errors import CheckpointError
from bertie.running.pooling import Pooling
from bertie.running.sentence_folder import find_sentence_folder

_PREFIX = "sentence_transformers.models."


def write_sentence_folder(
    folder: Path, *, hidden_size: int, pooling: Pooling, max_length: int | None, source: Path | None = None
) -> None:
    """`source` is the folder the transformer was loaded from, if it was one."""
    origin = None if source is None else find_sentence_folder(source)
    if origin is None:
        _write_plain(folder, hidden_size, pooling)
    else:
        _copy_modules(origin, folder)
    settings: dict[str, object] = {"do_lower_case": False}
    if source is not None and (source / "sentence_bert_config.json").is_file():
        settings |= read_json_file(source / "sentence_bert_config.json")
    if max_length is not None:
        settings["max_seq_length"] = max_length
    _write(folder / "sentence_bert_config.json", settings)


def _write_plain(folder: Path, hidden_size: int, pooling: Pooling) -> None:
    names = {
        "cls": "pooling_mode_cls_token",
        "mean": "pooling_mode_mean_tokens",
        "max": "pooling_mode_max_tokens",
        "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
        "weightedmean": "pooling_mode_weightedmean_tokens",
        "lasttoken": "pooling_mode_lasttoken",
    }
    modes = {key: mode in pooling.modes for mode, key in names.items()}
    _write(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": hidden_size, **modes})
    modules = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")]
    _write(
        folder / "modules.json",
        [
            {"idx": number, "name": str(number), "path": path, "type": _PREFIX + kind}
            for number, (kind, path) in enumerate(modules)
        ],
    )
    _write(folder / "config_sentence_transformers.json", {"similarity_fn_name": "cosine", "prompts": {}})


def _copy_modules(origin: Path, folder: Path) -> None:
    try:
        modules = json.loads((origin / "modules.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{origin / 'modules.json'} cannot be read again: {error!s:.100}.") from None
    for module in modules:
        path = str(module.get("path", ""))
        if str(module.get("type", "")).endswith(".Transformer"):
            module["path"] = ""
        elif path:
            place = inside(origin, path, named_by=origin / "modules.json")
            for file in sorted(place.iterdir()) if place.is_dir() else []:
                if file.is_file():
                    (folder / path).mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(file, folder / path / file.name)
    _write(folder / "modules.json", modules)
    shared = origin / "config_sentence_transformers.json"
    if shared.is_file():
        _write(folder / shared.name, read_json_file(shared))


def _write(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
