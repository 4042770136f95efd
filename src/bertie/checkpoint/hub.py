"""Hub names: fetch what a checkpoint needs, and nothing else, through `huggingface_hub` and its cache.

That package is imported only here and only when a hub name is used; its environment (HF_HOME, HF_ENDPOINT, HF_TOKEN,
HF_HUB_OFFLINE …) applies unchanged. What comes back is the snapshot folder in the cache, which is then read like any
other folder. The first file fetched fixes the revision of the rest, so that a push in between cannot mix two models.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from inspect import signature
from pathlib import Path
from typing import TypedDict, Unpack

from bertie.checkpoint.hostile.paths import inside, read_json_file
from bertie.checkpoint.shipped import SHIPPED, installed
from bertie.checkpoint.weight_files import (
    CONFIG_NAMES,
    MAX_FILES,
    WEIGHT_NAMES,
    allows,
    check_model_type,
    kind_of,
    read_modules,
    transformer_module,
    with_variant,
    wrong_kind,
)
from bertie.errors import CheckpointError, CheckpointNotFound, MissingExtra
from bertie.json_values import fields, text

_BUNDLE = ("bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001")
MODEL = (*CONFIG_NAMES, "modules.json")  # what there is of every model
TOKENIZER = (
    "tokenizer.json", "vocab.txt", "vocab.json", "merges.txt", "sentencepiece.bpe.model", "tokenizer_config.json",
    "special_tokens_map.json", "added_tokens.json",
)  # fmt: skip
_PATIENCE = 5.0  # seconds in which the hub has to take a connection
_SENTENCE = ("sentence_bert_config.json", "config_sentence_transformers.json")


class _AbsentError(Exception):
    """The repository is there and has no such file (or, offline, the cache has not)."""


class Fetching(TypedDict, total=False):
    """How files are fetched, under huggingface_hub's own names."""

    revision: str | None
    cache_dir: str | Path | None
    local_files_only: bool
    token: str | bool | None
    force_download: bool
    proxies: Mapping[str, str] | None


def fetch(
    repo_id: str,
    *,
    subfolder: str = "",
    variant: str | None = None,
    asked: str | None = None,
    wanted_type: str | None = None,
    also: tuple[str, ...] = (),
    with_companions: bool = False,
    **fetching: Unpack[Fetching],
) -> Path:
    """Download (or find in the cache) a model's configuration and weights; the folder they lie in.

    `asked` allows only some kinds of weights (folder.ASKED). What `also` names is brought from beside the configuration
    if it is there; `with_companions` brings the tokenizer's small files too, and sentence-transformers' own.
    """
    repository = _Repository(repo_id, **fetching)
    config, below = _fetch_config(repository, subfolder)
    if config.name == "config.json":
        check_model_type(read_json_file(config), f"{repo_id}/{config.name}", wanted=wanted_type)
    for name in also:
        repository.get_if_there(name, below)
    folder = _fetch_weights(repository, below, variant, asked)
    if with_companions:
        _fetch_companions(repository, subfolder)
    return folder


def _fetch_weights(repository: _Repository, subfolder: str, variant: str | None, asked: str | None) -> Path:
    for name in (name for name in WEIGHT_NAMES if allows(asked, kind_of(name))):
        try:
            path = repository.get(with_variant(name, variant), subfolder)
        except _AbsentError:
            continue
        if path.name.endswith(".json"):
            _fetch_shards(repository, path, subfolder)
        return path.parent
    if not allows(asked, "tensorflow"):
        raise repository.no_weights(variant, asked)
    try:
        for name in _BUNDLE:
            path = repository.get(name, subfolder)
        return path.parent
    except _AbsentError:
        raise repository.no_weights(variant, asked) from None


def fetch_config(repo_id: str, *, subfolder: str = "", **fetching: Unpack[Fetching]) -> Path:
    """A model's configuration alone."""
    return _fetch_config(_Repository(repo_id, **fetching), subfolder)[0]


def _fetch_config(repository: _Repository, subfolder: str) -> tuple[Path, str]:
    for name in CONFIG_NAMES:
        try:
            return repository.get(name, subfolder), subfolder
        except _AbsentError:
            continue
    try:  # older sentence-transformers repositories keep the model one folder down
        modules = repository.get("modules.json", subfolder)
        name = transformer_module(modules)
        inside(modules.parent, name, named_by=modules)
        below = f"{subfolder}/{name}" if subfolder else name
        return repository.get("config.json", below), below
    except _AbsentError:
        raise repository.no_config() from None


def _fetch_shards(repository: _Repository, index: Path, subfolder: str) -> None:
    named = map(text, fields(read_json_file(index).get("weight_map")).values())
    files = dict.fromkeys(file for file in named if file is not None)
    for file in files if len(files) <= MAX_FILES else ():  # read_index says what is wrong with the others
        inside(index.parent, file, named_by=index)
        try:
            repository.get(file, subfolder)
        except _AbsentError:
            continue  # read_index names all that are missing, together


def _fetch_companions(repository: _Repository, subfolder: str) -> None:
    for name in TOKENIZER:
        repository.get_if_there(name, subfolder)
    modules = repository.get_if_there("modules.json", "")
    for name in _SENTENCE:
        repository.get_if_there(name, "")
    with suppress(CheckpointError):  # a list that cannot be read is for whoever needs it to complain of
        paths = [text(module.get("path")) or "" for module in (read_modules(modules) if modules else ())]
        for folder in (path for path in paths if path.replace("_", "").isalnum()):  # pooling, dense …
            for part in ("config.json", "model.safetensors", "pytorch_model.bin"):
                repository.get_if_there(part, folder)


def fetch_tokenizer(repo_id: str, *, subfolder: str = "", **fetching: Unpack[Fetching]) -> Path:
    """A tokenizer's files alone; the folder they lie in."""
    repository = _Repository(repo_id, **fetching)
    found = [path for name in TOKENIZER if (path := repository.get_if_there(name, subfolder)) is not None]
    repository.get_if_there("chat_template.jinja", subfolder)
    if not found:
        raise CheckpointNotFound(
            f"{repo_id} is not a folder here, and the hub and its cache have no tokenizer of that name.",
            f"{_meant(repo_id)} the spelling, or give a folder with tokenizer.json or vocab.txt.{_without_hub(None)}",
        )
    return found[0].parent


def has_any(repo_id: str, names: tuple[str, ...], **fetching: Unpack[Fetching]) -> bool:
    """Whether a model on the hub (out of reach: in the cache) has one of these files."""
    try:
        repository = _Repository(repo_id, **fetching)
        return any(repository.get_if_there(name, "") is not None for name in names)
    except (CheckpointNotFound, MissingExtra):
        return False


class _Repository:
    """One model on the hub at one revision."""

    def __init__(self, repo_id: str, **fetching: Unpack[Fetching]) -> None:
        try:
            import huggingface_hub
        except ImportError:
            raise MissingExtra("huggingface_hub", "hub", f"Fetching {repo_id!r} from the hub") from None
        self._download: Callable[..., str] = huggingface_hub.hf_hub_download
        self.repo_id = repo_id
        self.revision = fetching.pop("revision", None)
        proxies = fetching.pop("proxies", None)
        if proxies:
            if "proxies" not in signature(self._download).parameters:
                raise CheckpointError(
                    f"{{proxies}} was given, and huggingface_hub {huggingface_hub.__version__} takes none.",
                    "Set the environment variable HTTPS_PROXY instead.",
                    proxies=...,
                )
            fetching["proxies"] = dict(proxies)
        self._offline = bool(fetching.get("local_files_only") or huggingface_hub.constants.HF_HUB_OFFLINE)
        reached = self._offline or bool(proxies) or _answers(huggingface_hub.constants.ENDPOINT)
        self._out_of_reach = not reached
        if fetching.get("force_download") and (self._out_of_reach or self._offline):
            why = "the hub cannot be reached" if self._out_of_reach else "HF_HUB_OFFLINE or local_files_only"
            raise CheckpointError(
                f"{repo_id} cannot be downloaded again: the network is off ({why}).",
                "Leave {force_download} out, or turn the network on.",
                force_download=...,
            )
        if self._out_of_reach:  # the package would try six times over half a minute
            fetching["local_files_only"] = True
        self._fetching = fetching

    def get(self, name: str, subfolder: str) -> Path:
        """One file's path in the cache."""
        from huggingface_hub import errors

        try:
            path = Path(
                self._download(
                    self.repo_id, name, subfolder=subfolder or None, revision=self.revision, **self._fetching
                )
            )
        except errors.LocalEntryNotFoundError as error:
            raise self._not_cached(name) from error
        except errors.EntryNotFoundError:
            raise _AbsentError(name) from None
        except errors.GatedRepoError as error:
            raise CheckpointError(
                f"{self.repo_id} on the hub is gated: only people who accepted its terms can download it.",
                "Accept them on the model's page, then log in (`hf auth login`) or pass token=….",
            ) from error
        except errors.RevisionNotFoundError as error:
            raise CheckpointNotFound(
                f"{self.repo_id} on the hub has no revision {self.revision!r}.",
                "Give a branch, a tag or a commit that exists; without revision it is 'main'.",
            ) from error
        except errors.RepositoryNotFoundError as error:
            raise self._not_found() from error
        except errors.HFValidationError as error:
            raise CheckpointNotFound(
                f"{self.repo_id!r} is neither a path that exists nor a hub name.",
                "Give a folder, a weights file, or a hub name such as 'org/name'.",
            ) from error
        except errors.HfHubHTTPError as error:
            first = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise CheckpointError(
                f"The hub refused {self.repo_id}/{name}: {first}.", "Try again later, or give a local folder."
            ) from error
        except OSError as error:
            raise CheckpointError(
                f"{self.repo_id}/{name} could not be fetched: {error}.",
                "Check the network and the disk, then try again.",
            ) from error
        # …/snapshots/<commit>/[subfolder/]name: from now on that commit and no other
        folder = path.parents[len(Path(subfolder).parts)]
        if folder.parent.name == "snapshots":
            self.revision = folder.name
        return path

    def get_if_there(self, name: str, subfolder: str) -> Path | None:
        """A file that a checkpoint may have or not."""
        try:
            return self.get(name, subfolder)
        except _AbsentError:
            return None

    def _not_found(self) -> CheckpointNotFound:
        return CheckpointNotFound(
            f"There is no folder {self.repo_id!r} here and no such model on the hub, or it is private.",
            f"{_meant(self.repo_id)} the spelling; for a private one log in (`hf auth login`) or pass token=…."
            f"{_without_hub(self.revision)}",
        )

    def _not_cached(self, name: str) -> Exception:
        """Without the network, a file that is not in the cache may simply not exist; the next candidate decides."""
        if self._offline or self._out_of_reach:
            return _AbsentError(name)
        return CheckpointError(
            f"The hub stopped answering, and {self.repo_id}/{name} is not in the cache.",
            "Check the network and try again, or give a local folder.",
        )

    def _unreachable(self) -> CheckpointError:
        return CheckpointError(
            f"{self.repo_id!r} is neither a folder here nor in the hub's cache, and the hub cannot be reached.",
            f"{_meant(self.repo_id)} the spelling or the network, or give a local folder.{_without_hub(self.revision)}",
        )

    def no_config(self) -> CheckpointError:
        if self._out_of_reach:
            return self._unreachable()
        if self._offline:
            revision = "" if self.revision is None else f" at revision {self.revision!r}"
            return CheckpointNotFound(
                f"{self.repo_id!r} is neither a folder here nor in the hub's cache{revision}, and the network is off "
                "(HF_HUB_OFFLINE or local_files_only).",
                f"{_meant(self.repo_id)} the spelling, fetch it once with the network on, or give a local folder."
                f"{_without_hub(self.revision)}",
            )
        return CheckpointNotFound(
            f"{self.repo_id} on the hub has no config.json.", "Is it a model of transformers or sentence-transformers?"
        )

    def no_weights(self, variant: str | None, asked: str | None = None) -> CheckpointError:
        if self._out_of_reach:
            return self._unreachable()
        if asked is not None:
            return wrong_kind(self.repo_id, asked)
        where = "the hub's cache has" if self._offline else "the repository has"
        which = "no weights" if variant is None else f"no weights of the variant {variant!r}"
        remedy = "Looked for safetensors, .bin and a TensorFlow checkpoint; ONNX, HDF5 and Flax files are not read."
        if self._offline:
            remedy = "Fetch it once with the network on (it is off by HF_HUB_OFFLINE or local_files_only)."
        return CheckpointNotFound(f"{self.repo_id}: {where} {which} that Bertie reads.", remedy)


def _meant(name: str) -> str:
    """The beginning of a remedy: what the name resembles, if anything."""
    import difflib

    known = {shipped: shipped for shipped in SHIPPED}
    with suppress(OSError):  # a working folder that was deleted
        known |= {entry.name: f"the folder ./{entry.name}" for entry in Path().iterdir() if entry.is_dir()}
    near = [one for one in difflib.get_close_matches(name, known, 2) if one != name]
    return f"Did you mean {known[near[0]]}? Otherwise check" if near else "Check"


def _without_hub(revision: str | None) -> str:
    """The end of a remedy: the models that are here anyway."""
    names = " and ".join(installed())
    note = "" if revision is None else ", without revisions"
    return f" Here without the hub: {names}{note}." if names else ""


def _answers(endpoint: str) -> bool:
    """Whether anyone listens at the hub's address. Behind a proxy only the proxy knows."""
    if any(name.lower() in ("https_proxy", "http_proxy", "all_proxy") and value for name, value in os.environ.items()):
        return True
    import socket
    from urllib.parse import urlsplit

    address = urlsplit(endpoint)
    try:
        port = address.port or (80 if address.scheme == "http" else 443)
        socket.create_connection((address.hostname or "", port), timeout=_PATIENCE).close()
    except (OSError, ValueError):
        return False
    return True
