"""What `make check` finds wrong with dependencies."""

from __future__ import annotations

from packaging.requirements import Requirement
from packaging.version import Version

from scripts.check_dependencies import bad, read_bad, read_pins, unpinned

ASKED = [("bertie", Requirement("torch>=2.5")), ("torch", Requirement("sympy")), ("torch", Requirement("nvidia==1.2"))]
INSTALLED = {"torch": Version("2.13.0+cpu"), "sympy": Version("1.14"), "nvidia": Version("1.2")}


def test_what_nobody_pins_is_found_and_what_its_user_pins_is_not() -> None:
    pins = read_pins("# ours\ntorch==2.13.0\n")
    assert unpinned(ASKED, pins, INSTALLED) == ["sympy 1.14 is not pinned: add sympy==1.14 to constraints.txt"]


def test_another_version_than_the_pinned_one_is_found() -> None:
    found = unpinned(ASKED, read_pins("torch==2.12\nSymPy==1.14\n"), INSTALLED)
    assert found == ["torch 2.13.0+cpu is installed, and constraints.txt says 2.12"]


def test_known_flaws_are_found_in_what_is_installed_and_in_what_we_allow() -> None:
    known = read_bad("# a list\nsympy<1.15  # evaluates\ntorch<2.6  # runs code\n")
    assert bad(ASKED, INSTALLED, known) == [
        "sympy 1.14 is installed: evaluates",
        "pyproject.toml allows torch<2.6: runs code",
    ]
    assert not bad([("bertie", Requirement("torch>=2.6"))], INSTALLED, known[1:])
