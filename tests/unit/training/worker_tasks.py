"""What workers are given to do in tests: little modules, for a worker imports the module of its function."""

from __future__ import annotations

import os
import time

from bertie.errors import DataError


def pause(seconds: float) -> tuple[float, int]:
    time.sleep(seconds)
    return seconds, os.getpid()


def multiply(item: int, factor: int) -> int:
    return item * factor


def refuse(item: int) -> int:
    if item == 3:
        raise DataError("The item 3 is no good.", "Leave it out.")
    return item


def die(item: int) -> int:
    if item == 3:
        os.kill(os.getpid(), 9)
    return item
