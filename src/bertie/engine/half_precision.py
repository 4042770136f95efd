"""What a GPU computes in where nobody says: float16 where a model's vectors stay the same, otherwise bfloat16.

float16 has three more bits of precision than bfloat16 and the same speed, but its numbers end at 65,504. Whether a
model stays within that is measured on the first texts of the page that int8 is fitted on (calibration.py). That takes
a few milliseconds, once for each model that is opened.
"""

from __future__ import annotations

import logging
from itertools import accumulate
from typing import TypeVar

import torch
from torch import Tensor

from bertie.engine.calibration import Rows, calibration_rows, mean_vectors, own_texts, packed
from bertie.engine.compile import compile as compile_model
from bertie.engine.fast import FastBert
from bertie.model import BertModel
from bertie.model.pretrained import BertPreTrainedModel
from bertie.text import BertTokenizer

logger = logging.getLogger("bertie.engine")

LEAST_COSINE = 0.99999
_TEXTS = 16

M = TypeVar("M", bound=BertPreTrainedModel)


def in_half_precision(model: M, tokenizer: BertTokenizer) -> M:
    """A compiled copy in float16 or bfloat16 of a float32 model; the model as it is where the engine has no runner."""
    rows = calibration_rows(model.base_model, tokenizer, own_texts("prose")[:_TEXTS])
    wanted = _vectors(model.eval().base_model, rows)
    made, cosine = model, -1.0
    for dtype in ("float16", "bfloat16"):
        made = compile_model(model, dtype=dtype, tokenizer=tokenizer, strict=False)
        if not isinstance(made.base_model, FastBert):
            return model
        found = _vectors(made.base_model, rows)
        cosine = float(torch.cosine_similarity(wanted, found).nan_to_num(nan=-1.0).min())
        if cosine >= LEAST_COSINE:
            break
    name = str(made.dtype).removeprefix("torch.")
    logger.info("%s: the least cosine to float32 is %.6f on %d texts; dtype= sets another", name, cosine, len(rows))
    return made


@torch.inference_mode()
def _vectors(base: BertModel, rows: Rows) -> Tensor:
    """`[texts, hidden]`: the means of the last states."""
    ids, packing = packed(rows, base.device)
    ends = torch.tensor([0, *accumulate(map(len, rows))])
    return mean_vectors(base(ids, cu_seqlens=ends, return_dict=True).last_hidden_state, packing)
