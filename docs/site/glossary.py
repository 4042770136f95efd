"""What parameters mean that many functions share, or that a docstring does not explain: glossary.txt."""

from __future__ import annotations

from pathlib import Path


def _read() -> dict[str, str]:
    lines = (Path(__file__).parent / "glossary.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split(": ", 1) for line in lines if line and not line.startswith("#"))


GLOSSARY = _read()


def explanation(where: str, name: str) -> str:
    """What `name` means in `where` ("Embedder.encode", say); empty if nobody has said it."""
    kind = where.partition(".")[0]
    return GLOSSARY.get(f"{where}.{name}") or GLOSSARY.get(f"{kind}.{name}") or GLOSSARY.get(name, "")
