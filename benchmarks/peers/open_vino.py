"""OpenVINO: float32, bfloat16, and int8 (weights int8 per channel by NNCF, activations rounded at run time).

The int8 settings tried are how many activations share a scale (128, or all of a row), with bfloat16 for what stays
in floating point where the processor has it. Static int8 by `nncf.quantize` was measured when this was written: slower
than this on short texts and less accurate, so it does not run.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.batches import Batch
from benchmarks.peers.onnx_export import exported

_ROW = str(2**64 - 1)
_GROUPS = {"scales of 128": "128", "a scale a row": _ROW}


class OpenVino:
    lanes = (1, 2)

    def __init__(self, precision: str) -> None:
        self.precision = precision
        self.variants = tuple(_GROUPS) if precision == "int8" else ("",)

    def prepare(self, folder: Path, workdir: Path, threads: int) -> str:
        import openvino

        self.threads = threads
        self.core = openvino.Core()
        path = exported(folder, workdir)
        if self.precision == "int8":
            path = _compressed(path, self.core)
        self.model = self.core.read_model(path)
        can = self.core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        if self.precision == "bfloat16" and "BF16" not in can:
            raise RuntimeError(f"this processor has no bfloat16 for OpenVINO (it has {', '.join(can)})")
        self.floating = "f32" if self.precision == "float32" or "BF16" not in can else "bf16"
        self.choose(self.variants[0], 1)
        return f"{self.precision}, floating point in {self.floating}"

    def choose(self, variant: str, lanes: int) -> None:
        properties: dict[str, Any] = {
            "INFERENCE_NUM_THREADS": self.threads,
            "NUM_STREAMS": lanes,
            "PERFORMANCE_HINT": "LATENCY" if lanes == 1 else "THROUGHPUT",
            "INFERENCE_PRECISION_HINT": self.floating,
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": _GROUPS.get(variant or self.variants[0], "0"),
        }
        self.compiled = self.core.compile_model(self.model, "CPU", properties)
        self.requests = [self.compiled.create_infer_request() for _ in range(lanes)]

    def start_lane(self) -> None:
        """A lane takes a request that is free; the streams belong to the compiled model."""

    def run(self, batch: Batch) -> NDArray[np.float32]:
        request = self.requests.pop()
        fed = {"input_ids": batch.ids, "attention_mask": batch.mask, "token_type_ids": np.zeros_like(batch.ids)}
        vectors: NDArray[np.float32] = request.infer(fed, share_inputs=True)[0]
        self.requests.append(request)
        return vectors


def _compressed(plain: Path, core: Any) -> Path:
    path = plain.with_name("openvino-int8.xml")
    if not path.is_file():
        logging.disable(logging.WARNING)
        import nncf
        import openvino

        weights = nncf.compress_weights(core.read_model(plain), mode=nncf.CompressWeightsMode.INT8_SYM)
        openvino.save_model(weights, path, compress_to_fp16=False)
    return path
