"""Who runs: ours and every peer, by name, with the precision each computes in.

A contestant is made in a process of its own (contest.py), so that thread pools, allocators and crashes stay apart; its
library is imported there and nowhere else. One that is not installed or does not work is reported with its error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.peers.batches import Padded
    from benchmarks.peers.ours import Packed

    Contestant = Padded | Packed

OURS_FP32, OURS_BF16, OURS_INT8 = "bertie", "bertie bf16", "bertie int8"
TRANSFORMERS, SENTENCE = "transformers", "sentence-transformers"


@dataclass(frozen=True)
class Entry:
    """`library` is the package whose version a report gives."""

    precision: str
    library: str


CONTESTANTS: dict[str, Entry] = {
    OURS_FP32: Entry("float32", "bertie"),
    OURS_BF16: Entry("bfloat16", "bertie"),
    OURS_INT8: Entry("int8", "bertie"),
    TRANSFORMERS: Entry("float32", "transformers"),
    "transformers compiled": Entry("float32", "transformers"),
    "transformers compiled bf16": Entry("bfloat16", "transformers"),
    SENTENCE: Entry("float32", "sentence-transformers"),
    "ONNX Runtime": Entry("float32", "onnxruntime"),
    "ONNX Runtime int8": Entry("int8", "onnxruntime"),
    "CTranslate2": Entry("float32", "ctranslate2"),
    "CTranslate2 int8": Entry("int8", "ctranslate2"),
    "OpenVINO": Entry("float32", "openvino"),
    "OpenVINO bf16": Entry("bfloat16", "openvino"),
    "OpenVINO int8": Entry("int8", "openvino"),
}


def is_ours(name: str) -> bool:
    return name in (OURS_FP32, OURS_BF16, OURS_INT8)


def make(name: str) -> Contestant:
    """The contestant, unprepared."""
    precision = CONTESTANTS[name].precision
    library = CONTESTANTS[name].library
    if library == "bertie":
        from benchmarks.peers.ours import Packed

        return Packed(precision)
    from benchmarks.peers.batches import Padded

    if library == "transformers":
        import torch

        from benchmarks.peers.hf import Transformers

        dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
        return Padded(Transformers(compiled="compiled" in name, dtype=dtype))
    if library == "sentence-transformers":
        from benchmarks.peers.sentence import SentenceTransformers

        return Padded(SentenceTransformers())
    if library == "onnxruntime":
        from benchmarks.peers.onnx_runtime import OnnxRuntime

        return Padded(OnnxRuntime(int8=precision == "int8"))
    if library == "ctranslate2":
        from benchmarks.peers.ctranslate import CTranslate2

        return Padded(CTranslate2(precision))
    from benchmarks.peers.open_vino import OpenVino

    return Padded(OpenVino(precision))
