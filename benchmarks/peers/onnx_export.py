"""A BERT checkpoint as an ONNX graph that ends in pooled unit vectors; ONNX Runtime and OpenVINO both read it."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

INPUTS = ("input_ids", "attention_mask", "token_type_ids")


class Pooled(nn.Module):
    """The encoder with the mean over a text's tokens, of unit length."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        hidden = self.model(
            input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids
        ).last_hidden_state
        summed = torch.matmul(attention_mask[:, None].to(hidden.dtype), hidden)[:, 0]
        return summed / torch.sqrt((summed * summed).sum(1, keepdim=True))


def exported(folder: Path, workdir: Path) -> Path:
    """`workdir/model.onnx`, made when it is not there.

    Exported from eager attention, the form whose products, softmax and masks the graph optimizers know by shape.
    """
    path = workdir / "model.onnx"
    if path.is_file():
        return path
    import transformers

    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    model = transformers.BertModel.from_pretrained(folder, attn_implementation="eager", add_pooling_layer=False).eval()
    ids = torch.arange(1, 33).view(2, 16)
    mask = torch.ones_like(ids)
    mask[1, 10:] = 0
    axes = {name: {0: "batch", 1: "length"} for name in INPUTS} | {"vectors": {0: "batch"}}
    partial = workdir / "partial.onnx"
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Pooled(model),
            (ids, mask, torch.zeros_like(ids)),
            partial,
            dynamo=False,
            opset_version=17,
            input_names=list(INPUTS),
            output_names=["vectors"],
            dynamic_axes=axes,
        )
    return partial.rename(path)
