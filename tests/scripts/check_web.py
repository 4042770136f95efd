"""Is the committed page what its sources build? `make check` runs this; tests/system/test_web_build.py does too.

The page under src/bertie/explore/page/static is built from web/ by `make web`, with the packages of its lock.
Where there is no node the check is left out, and says so.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
WEB = ROOT / "web"
STATIC = ROOT / "src" / "bertie" / "explore" / "page" / "static"
INSTALL_SECONDS, BUILD_SECONDS = 300, 120


def has_node() -> bool:
    return shutil.which("node") is not None and shutil.which("npm") is not None


def install() -> None:
    """The packages of web/package-lock.json, if they are not there."""
    lock, done = WEB / "package-lock.json", WEB / "node_modules" / ".package-lock.json"
    if not done.exists() or done.stat().st_mtime < lock.stat().st_mtime:
        subprocess.run(
            ["npm", "ci", "--silent", "--ignore-scripts", "--no-audit", "--no-fund"],
            cwd=WEB,
            check=True,
            timeout=INSTALL_SECONDS,
        )


def differences() -> list[str]:
    """The files that a build makes otherwise than they are committed."""
    install()
    subprocess.run(["npx", "--no-install", "tsc", "--noEmit"], cwd=WEB, check=True, timeout=BUILD_SECONDS)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["node", "build.mjs", folder], cwd=WEB, check=True, timeout=BUILD_SECONDS)
        built = {file.name: file.read_bytes() for file in Path(folder).iterdir()}
    committed = {file.name: file.read_bytes() for file in STATIC.iterdir()}
    return sorted(name for name in built.keys() | committed.keys() if built.get(name) != committed.get(name))


def main() -> int:
    if not has_node():
        print("The built page was not compared with its sources: there is no node on this machine.")
        return 0
    found = differences()
    if found:
        print(f"The committed page differs from a build: {', '.join(found)}. Run `make web` and commit the result.")
        return 1
    print("The committed page is what its sources build.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
