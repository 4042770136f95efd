"""ONNX Runtime: float32 and dynamic int8 (weights per channel, activations at run time).

Two graphs are tried: as exported, which the session optimises by itself at its highest level, and fused beforehand by
`onnxruntime.transformers.optimizer` into Attention, BiasGelu, SkipLayerNormalization and EmbedLayerNormalization.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.batches import Batch
from benchmarks.peers.onnx_export import exported


class OnnxRuntime:
    variants: tuple[str, ...] = ("exported graph", "fused graph")
    lanes = (1, 2)

    def __init__(self, *, int8: bool) -> None:
        self.int8 = int8

    def prepare(self, folder: Path, workdir: Path, threads: int) -> str:
        logging.disable(logging.WARNING)
        self.threads = threads
        self.paths: dict[str, Path] = {}
        missing = ""
        for variant in self.variants:
            try:
                self.paths[variant] = _graph(variant, folder, workdir, int8=self.int8)
            except ImportError as error:  # the graphs are changed by other packages, and may have been brought
                missing = f"; no {variant}: {error}"
        if not self.paths:
            raise RuntimeError(f"no graph can be made{missing}")
        self.variants = tuple(self.paths)
        self.sessions: dict[tuple[str, int], Any] = {}
        self.choose(self.variants[0], 1)
        return ("dynamic int8, weights per channel" if self.int8 else "float32, all graph optimisations") + missing

    def choose(self, variant: str, lanes: int) -> None:
        import onnxruntime

        key = (variant or self.variants[0], lanes)
        if key not in self.sessions:
            self.sessions = {}  # one at a time: a session holds the weights
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = max(1, self.threads // lanes)
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
            self.sessions[key] = onnxruntime.InferenceSession(
                str(self.paths[key[0]]), options, providers=["CPUExecutionProvider"]
            )
        self.session = self.sessions[key]

    def start_lane(self) -> None:
        """Lanes share one session; each call runs in its caller's thread."""

    def run(self, batch: Batch) -> NDArray[np.float32]:
        fed = {"input_ids": batch.ids, "attention_mask": batch.mask, "token_type_ids": np.zeros_like(batch.ids)}
        vectors: NDArray[np.float32] = self.session.run(None, fed)[0]
        return vectors


def _graph(variant: str, folder: Path, workdir: Path, *, int8: bool) -> Path:
    plain = workdir / ("model.onnx" if variant == "exported graph" else "fused.onnx")
    path = plain.with_name(f"{plain.stem}-int8.onnx") if int8 else plain
    if path.is_file():
        return path
    source = exported(folder, workdir)
    if variant == "fused graph":
        source = _fused(source, folder)
    return _quantised(source) if int8 else source


def _fused(plain: Path, folder: Path) -> Path:
    path = plain.with_name("fused.onnx")
    if not path.is_file():
        from onnxruntime.transformers import optimizer

        config = json.loads((folder / "config.json").read_text())
        graph = optimizer.optimize_model(
            str(plain),
            model_type="bert",
            num_heads=config["num_attention_heads"],
            hidden_size=config["hidden_size"],
            opt_level=1,
        )
        graph.save_model_to_file(str(path))
    return path


def _quantised(source: Path) -> Path:
    path = source.with_name(f"{source.stem}-int8.onnx")
    if not path.is_file():
        from onnx import TensorProto
        from onnxruntime.quantization import QuantType, quantize_dynamic

        quantize_dynamic(
            source,
            path,
            per_channel=True,
            weight_type=QuantType.QInt8,
            # The types behind fused operators cannot be inferred; they are all float32.
            extra_options={"MatMulConstBOnly": True, "DefaultTensorType": TensorProto.FLOAT},
        )
    return path
