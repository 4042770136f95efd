"""The engine: a loaded model in, the same model out, answering as fast as the machine allows.

`compile(model, dtype=…, device=…)` (compile.py) gives a model of the same class whose encoder runs on our kernels:
cpu/ has fp32 and int8 in C++, gpu/ has half precision and fp8 in Triton with CUDA graphs. fast.py is the seam between
the hub's call and a packed batch. The reference in model/ stays what it is; what a runner cannot do goes to it.
"""

from __future__ import annotations

from bertie.engine.compile import compile as compile  # noqa: A004
from bertie.engine.fast import FastBert as FastBert

__all__ = ["FastBert", "compile"]
