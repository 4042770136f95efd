"""Being one of transformers' own, where transformers is there.

Its Trainer, its pipelines and the libraries around it ask `isinstance(model, PreTrainedModel)` before they save a
configuration beside the weights, handle tied weights or push a model, and `isinstance(output, ModelOutput)` before they
index one. Nothing but inheriting makes that true, and Bertie does not import transformers. So two bases, `Kin` of the
models and `ModelOutput` of the outputs, take transformers' for their own base as soon as a model is made in a program
that has imported it. Everything Bertie's classes define themselves comes first in the order of inheritance and stays as
it is; transformers' constructors are never run.
"""

from __future__ import annotations

import sys

from torch import nn

from bertie.model.outputs import ModelOutput


class Kin(nn.Module):
    """An `nn.Module`; a `transformers.PreTrainedModel` too, once transformers is imported."""

    def __init__(self) -> None:
        _join(Kin, "transformers.modeling_utils", "PreTrainedModel")
        _join(ModelOutput, "transformers.utils.generic", "ModelOutput")
        nn.Module.__init__(self)


def _join(ours: type, module: str, name: str) -> None:
    theirs = getattr(sys.modules.get(module), name, None)
    if theirs is not None and theirs not in ours.__bases__:
        ours.__bases__ = (theirs,)
