"""What `make check` can know about dependencies without a network. `make audit` asks the advisory databases.

    python tests/scripts/check_dependencies.py

Every package that the tests' installation needs, directly or not, is installed in the version that constraints.txt pins
(or that the package which needs it pins), no two of them disagree (`pip check`), and none of them, nor any version that
pyproject.toml allows, is one that tests/scripts/bad_versions.txt names.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
EXTRAS = (
    "dev",
    "docs",
    "parity",
    "compat",
    "minilm",
    "data",
    "serve",
    "train",
    "ray",
)  # what the Makefile installs for the tests


def needed(package: str, extras: tuple[str, ...]) -> Iterator[tuple[str, Requirement]]:
    """(who needs it, what), for everything that a package needs on this machine."""
    seen: set[tuple[str, str]] = set()
    waiting = [(package, extra) for extra in ("", *extras)]
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        for line in distribution(name).requires or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                yield name, requirement
                waiting += [(canonicalize_name(requirement.name), extra) for extra in ("", *requirement.extras)]


def read_pins(text: str) -> dict[str, Version]:
    lines = [line.partition("#")[0].strip().partition("==") for line in text.splitlines()]
    return {canonicalize_name(name): Version(version) for name, _, version in lines if version}


def read_bad(text: str) -> list[tuple[Requirement, str]]:
    """(versions, why): `name<version  # why` to a line."""
    lines = [line.partition("#") for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(Requirement(what.strip()), why.strip()) for what, _, why in lines]


def unpinned(
    asked: list[tuple[str, Requirement]], pins: dict[str, Version], installed: dict[str, Version]
) -> list[str]:
    """Packages that are in another version than they are pinned to, or pinned by nobody."""
    exact = {canonicalize_name(one.name) for _, one in asked if any(part.operator == "==" for part in one.specifier)}
    found = []
    for name, version in sorted(installed.items()):
        if name in pins and version.public != pins[name].public:
            found.append(f"{name} {version} is installed, and constraints.txt says {pins[name]}")
        elif name not in pins and name not in exact:
            found.append(f"{name} {version} is not pinned: add {name}=={version.public} to constraints.txt")
    return found


def bad(
    asked: list[tuple[str, Requirement]], installed: dict[str, Version], known: list[tuple[Requirement, str]]
) -> list[str]:
    """Installed versions that are known to be bad, and lower bounds of ours that would allow them."""
    found = []
    for versions, why in known:
        name = canonicalize_name(versions.name)
        if name in installed and installed[name] in versions.specifier:
            found.append(f"{name} {installed[name]} is installed: {why}")
        for who, requirement in asked:
            if (
                who == "bertie"
                and canonicalize_name(requirement.name) == name
                and allows(requirement, versions.specifier)
            ):
                found.append(f"pyproject.toml allows {requirement.name}{versions.specifier}: {why}")
    return found


def allows(requirement: Requirement, versions: SpecifierSet) -> bool:
    lowest = [Version(part.version) for part in requirement.specifier if part.operator in (">=", "==", "~=")]
    return not lowest or max(lowest) in versions


def main() -> int:
    asked = [(who, one) for who, one in needed("bertie", EXTRAS)]
    installed = {}
    for _, requirement in asked:
        try:
            installed[canonicalize_name(requirement.name)] = Version(distribution(requirement.name).version)
        except PackageNotFoundError:
            print(f"{requirement.name} is not installed: run make test once")
            return 1
    pins = read_pins((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    known = read_bad((ROOT / "tests/scripts/bad_versions.txt").read_text(encoding="utf-8"))
    problems = unpinned(asked, pins, installed) + bad(asked, installed, known)
    checked = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True)
    if checked.returncode:
        problems += re.sub(r"(?m)^", "pip check: ", checked.stdout.strip()).splitlines()
    print("\n".join([*problems, f"{len(installed)} packages checked, {len(problems)} problems"]))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
