"""A folder with a model of every kind and files to work on, where commands are run as a user runs them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from system.workshop import STAND_IN, build


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("workshop")
    build(folder)
    return folder


@pytest.fixture
def desk(workshop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder: links to the models, copies of the files, so that nothing a test does is left to the next.

    The default of fill, next and features is a tiny stand-in; what the real one answers is in test_mini.py.
    """
    folder = tmp_path / "desk"
    folder.mkdir()
    for source in workshop.iterdir():
        if source.is_dir():
            (folder / source.name).symlink_to(source)
        else:
            shutil.copy(source, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setattr("bertie.defaults.LANGUAGE_MODEL", workshop / STAND_IN)
    return folder
