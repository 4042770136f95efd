"""Which bundle a path means."""

from pathlib import Path

import pytest

from bertie.checkpoint.tensorflow import bundles_in, find_bundle
from bertie.errors import CheckpointError, CheckpointNotFound


@pytest.fixture
def folder(tmp_path):
    for name in ("bert_model.ckpt", "model.ckpt-1000", "model.ckpt-2000"):
        (tmp_path / f"{name}.index").write_bytes(b"")
        (tmp_path / f"{name}.data-00000-of-00001").write_bytes(b"")
    return tmp_path


@pytest.mark.parametrize("ending", ["", ".index", ".data-00000-of-00001", ".meta"])
def test_a_prefix_or_any_of_its_files(folder, ending):
    assert find_bundle(folder / f"bert_model.ckpt{ending}") == str(folder / "bert_model.ckpt")


def test_bundles_are_listed(folder):
    assert bundles_in(folder) == ["bert_model.ckpt", "model.ckpt-1000", "model.ckpt-2000"]
    assert bundles_in(folder / "nowhere") == []


def test_a_folder_with_one_bundle(tmp_path):
    (tmp_path / "only.ckpt.index").write_bytes(b"")
    assert find_bundle(tmp_path) == str(tmp_path / "only.ckpt")


def test_a_folder_whose_state_file_names_one(folder):
    (folder / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-1000"\nall_model_checkpoint_paths: "x"\n')
    assert find_bundle(folder) == str(folder / "model.ckpt-1000")


@pytest.mark.parametrize(
    "stated",
    ["/elsewhere/model.ckpt-1000", "../../model.ckpt-1000", "C:\\runs\\model.ckpt-1000", "../model.ckpt-1000"],
)
def test_a_state_file_never_leads_out_of_its_folder(folder, stated):
    (folder / "checkpoint").write_text(f'model_checkpoint_path: "{stated}"\n')
    assert Path(find_bundle(folder)).parent == folder


@pytest.mark.parametrize("stated", ["gone.ckpt", "..", ".", "", "/", "a\\0b", "x" * 5000])
def test_a_state_file_that_names_nothing_is_not_followed(folder, stated):
    (folder / "checkpoint").write_text(f'model_checkpoint_path: "{stated}"\n')
    with pytest.raises(CheckpointError, match="holds 3 TensorFlow checkpoints"):
        find_bundle(folder)


def test_a_folder_with_several_bundles_asks_which(folder):
    with pytest.raises(CheckpointError, match=r"holds 3 TensorFlow checkpoints[\s\S]*model\.ckpt-2000"):
        find_bundle(folder)


def test_a_folder_with_none_says_so(tmp_path):
    with pytest.raises(CheckpointNotFound, match=r"no \.index file"):
        find_bundle(tmp_path)


def test_a_typo_gets_the_close_names(folder):
    with pytest.raises(CheckpointNotFound) as caught:
        find_bundle(folder / "bert_modle.ckpt")
    assert "bert_modle.ckpt.index does not exist" in caught.value.cause
    assert "Did you mean bert_model.ckpt?" in caught.value.remedy
    assert "model.ckpt-2000" in caught.value.remedy


def test_a_wrong_folder_is_named(tmp_path):
    with pytest.raises(CheckpointNotFound, match="there is no folder"):
        find_bundle(tmp_path / "nowhere" / "bert_model.ckpt")


def test_a_folder_without_any_bundle_says_how_they_are_named(tmp_path):
    with pytest.raises(CheckpointNotFound, match="named by its prefix"):
        find_bundle(tmp_path / "bert_model.ckpt")


def test_a_file_that_is_no_bundle_is_named(tmp_path):
    (tmp_path / "old.ckpt").write_bytes(b"one file")
    with pytest.raises(CheckpointNotFound, match="is a file, and there is no"):
        find_bundle(tmp_path / "old.ckpt")


@pytest.mark.parametrize("path", ["", "a\0b"])
def test_what_is_no_path_is_refused(path):
    with pytest.raises(CheckpointNotFound, match="not a path"):
        find_bundle(path)
