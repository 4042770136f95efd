"""CTranslate2: its BERT converter and encoder, float32 and int8. It leaves padding out by itself."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.batches import Batch, mean_pool


class CTranslate2:
    variants = ("",)
    lanes = (2, 1)

    def __init__(self, compute_type: str) -> None:
        self.compute_type = compute_type

    def prepare(self, folder: Path, workdir: Path, threads: int) -> str:
        warnings.simplefilter("ignore")
        import ctranslate2

        self.threads = threads
        self.path = workdir / "ctranslate2"
        if not (self.path / "model.bin").is_file():
            ctranslate2.converters.TransformersConverter(str(folder)).convert(str(self.path), force=True)
        self.choose("", 1)
        return f"compute type {self.encoder.compute_type}"

    def choose(self, variant: str, lanes: int) -> None:
        import ctranslate2

        self.encoder = ctranslate2.Encoder(
            str(self.path),
            device="cpu",
            compute_type=self.compute_type,
            inter_threads=lanes,
            intra_threads=max(1, self.threads // lanes),
        )

    def start_lane(self) -> None:
        """The encoder has workers of its own; a lane's thread only waits for one."""

    def run(self, batch: Batch) -> NDArray[np.float32]:
        import ctranslate2

        view = ctranslate2.StorageView.from_array
        output = self.encoder.forward_batch(view(batch.ids.astype(np.int32)), view(batch.lengths.astype(np.int32)))
        return mean_pool(np.asarray(output.last_hidden_state), batch)
