"""sentence-transformers: its own forward pass over prepared token ids, and `encode` from text to vectors."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.peers.batches import Batch, unit


class SentenceTransformers:
    variants = ("",)
    lanes = (1, 2)

    def prepare(self, folder: Path, workdir: Path, threads: int) -> str:
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        import sentence_transformers

        self.threads = self.lane_threads = threads
        torch.set_num_threads(threads)
        self.model: Any = sentence_transformers.SentenceTransformer(str(folder), device="cpu").eval()
        self.model.max_seq_length = min(self.model.max_seq_length or 256, 256)
        return "torch backend, float32"

    def choose(self, variant: str, lanes: int) -> None:
        self.lane_threads = max(1, self.threads // lanes)
        torch.set_num_threads(self.lane_threads)

    def start_lane(self) -> None:
        torch.set_num_threads(self.lane_threads)

    def run(self, batch: Batch) -> NDArray[np.float32]:
        with torch.inference_mode():
            features = {"input_ids": torch.from_numpy(batch.ids), "attention_mask": torch.from_numpy(batch.mask)}
            return unit(self.model(features)["sentence_embedding"].numpy())

    def encode(self, texts: list[str], batch_size: int) -> NDArray[Any]:
        found: NDArray[Any] = self.model.encode(texts, batch_size=batch_size, show_progress_bar=False)
        return found
