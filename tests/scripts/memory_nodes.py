"""The CPU engine on a machine with two memory nodes (NUMA), which QEMU emulates: where memory and threads really are.

    python tests/scripts/memory_nodes.py [--kernel FILE]

The driver beside this file is built with the engine's sources, and is the only program of a Linux that boots with two
nodes of two cores each. Emulated memory is equally fast everywhere, so nothing is timed. The last line is the figure:
checks, and findings. Needs g++, Debian's qemu-system-x86, and a kernel that has its drivers for NUMA and the serial
console built in, as Debian's linux-image-cloud-amd64 has.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from kernel_answers import build  # in this folder

from bertie.engine.cpu.cores import memory_nodes

EMULATOR = "qemu-system-x86_64"
PACKAGES = """\
Not found: {}. On Debian, as root:
    apt-get install qemu-system-x86 linux-image-cloud-amd64
or, with the kernel only unpacked:
    apt-get download $(apt-cache depends linux-image-cloud-amd64 | grep -o 'linux-image-[0-9].*')
    dpkg -x linux-image-*.deb kernel, and then --kernel kernel/boot/vmlinuz-…"""
MACHINE = [
    *("-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "4", "-m", "1024"),
    *("-object", "memory-backend-ram,id=first,size=512M", "-numa", "node,nodeid=0,cpus=0-1,memdev=first"),
    *("-object", "memory-backend-ram,id=second,size=512M", "-numa", "node,nodeid=1,cpus=2-3,memdev=second"),
    *("-display", "none", "-serial", "stdio", "-monitor", "none", "-nic", "none", "-no-reboot"),
]
# Pages stay where they were first put, as far as the kernel is concerned; after an error the machine ends.
COMMAND_LINE = "console=ttyS0 quiet panic=-1 numa_balancing=disable"


def newest_kernel() -> Path | None:
    return max(Path("/boot").glob("vmlinuz-*-cloud-amd64"), default=None, key=lambda file: file.stat().st_mtime)


def first_files(init: Path) -> bytes:
    """An archive with the first program and the console that it writes to (cpio, "newc")."""
    made = b""
    entries = [("dev", 0o40755, b"", 0), ("dev/console", 0o20600, b"", 1), ("init", 0o100755, init.read_bytes(), 0)]
    for number, (name, mode, content, console) in enumerate([*entries, ("TRAILER!!!", 0, b"", 0)]):
        # number, mode, owner, group, links, time, size, device it is on, device it is (5, 1: the console), name, sum
        fields = [number, mode, 0, 0, 1, 0, len(content), 0, 0, 5 * console, console, len(name) + 1, 0]
        made += b"070701" + "".join(f"{field:08x}" for field in fields).encode() + name.encode() + b"\0"
        for part in (b"", content):
            made += part
            made += bytes(-len(made) % 4)
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", type=Path, default=newest_kernel(), help="vmlinuz; the newest in /boot by default")
    options = parser.parse_args()
    missing = [EMULATOR] * (shutil.which(EMULATOR) is None) + ["a kernel"] * (options.kernel is None)
    if missing:
        print(PACKAGES.format(" and ".join(missing)), file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        driver = build(folder, Path(__file__).with_suffix(".cpp"), ["-O1", "-static"], whole=True)
        (folder / "files").write_bytes(first_files(driver))
        command = [EMULATOR, *MACHINE, "-kernel", options.kernel, "-initrd", folder / "files", "-append", COMMAND_LINE]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=1800)
        for number, cores in re.findall(r"^node(\d+) has cores (\S*)", done.stdout, re.MULTILINE):
            (folder / "system" / f"node{number}").mkdir(parents=True)
            (folder / "system" / f"node{number}" / "cpulist").write_text(cores + "\n")
        nodes = memory_nodes(folder / "system")
    print(done.stdout)
    checks = 1 + sum(map(int, re.findall(r"(\d+) checks,", done.stdout)))
    findings = (nodes != [{0, 1}, {2, 3}]) + done.stdout.count("FINDING: ")
    if not re.search(r"^done", done.stdout, re.MULTILINE):
        findings += 1
        print(f"The machine ended before its program did.\n{done.stderr}")
    print(f"{checks:,} checks, {findings} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
