"""Jobs over many files: every row answered exactly once, on this machine or on a Ray cluster.

    inputs.py     names → files → one schema → pieces        stores.py    files on disks and in object stores
    manifest.py   what a job is, and how far                 questions.py the tasks, and typed columns of their answers
    reading.py    a piece's rows                             work.py      a piece, from its rows to its file
    local.py      this machine                               ray.py       the only file that knows Ray
    job.py        all of it in one call: `bertie.bulk`       progress.py  rates, time left, cost

This module can be called: `import bertie.bulk` puts the module where the function of the same name is expected.
"""

from __future__ import annotations

import sys
from types import ModuleType

from bertie.bulk.job import BulkReport, Prepared, bulk, prepare, run

__all__ = ["BulkReport", "Prepared", "bulk", "prepare", "run"]


class _Callable(ModuleType):
    __call__ = staticmethod(bulk)


sys.modules[__name__].__class__ = _Callable
