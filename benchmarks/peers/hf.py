"""transformers' BertModel: SDPA attention as it comes, and compiled with Inductor's freezing; float32 and bfloat16.

Compiled once with dynamic shapes: a static compilation would need half a minute for every batch shape. Freezing folds
the weights into the graph, packs them for oneDNN and fuses what follows a product into it.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.peers.batches import Batch


class Transformers:
    variants = ("",)

    def __init__(self, *, compiled: bool, dtype: torch.dtype) -> None:
        self.compiled, self.dtype = compiled, dtype
        # Inductor writes the number of threads into its code, so a compiled model has one lane.
        self.lanes = (1,) if compiled else (1, 2)

    def prepare(self, folder: Path, workdir: Path, threads: int) -> str:
        import transformers

        warnings.simplefilter("ignore")
        transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
        self.threads = self.lane_threads = threads
        torch.set_num_threads(threads)
        self.model: Any = transformers.BertModel.from_pretrained(
            folder, dtype=self.dtype, attn_implementation="sdpa", add_pooling_layer=False
        ).eval()
        if self.compiled:
            import torch._inductor.config as inductor

            inductor.freezing = True
            self.model = torch.compile(self.model, dynamic=True)
        how = "Inductor, freezing, dynamic shapes" if self.compiled else "eager"
        return f"SDPA, {how}, {str(self.dtype).removeprefix('torch.')}"

    def choose(self, variant: str, lanes: int) -> None:
        self.lane_threads = max(1, self.threads // lanes)
        torch.set_num_threads(self.lane_threads)

    def start_lane(self) -> None:
        torch.set_num_threads(self.lane_threads)

    def run(self, batch: Batch) -> NDArray[np.float32]:
        # Not inference_mode: frozen graphs are only made under no_grad.
        with torch.no_grad():
            ids, mask = torch.from_numpy(batch.ids), torch.from_numpy(batch.mask)
            hidden: Tensor = self.model(input_ids=ids, attention_mask=mask).last_hidden_state.float()
            summed = torch.bmm(mask[:, None].float(), hidden)[:, 0]
            found: NDArray[np.float32] = F.normalize(summed).numpy()
            return found
