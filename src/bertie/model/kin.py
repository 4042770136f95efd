"""Being one of transformers' own, where transformers is there.

Its Trainer, its pipelines and the libraries around it ask `isinstance(model, PreTrainedModel)` before they save a
configuration beside the weights, handle tied weights or push a model. Nothing but inheriting makes that true, and
Bertie does not import transformers. So the one base below takes `PreTrainedModel` for its own base as soon as a model
is made in a program that has imported it. Everything Bertie's classes define themselves comes first in the order of
inheritance and stays as it is; transformers' constructor is never run.
"""

from __future__ import annotations

import sys

from torch import nn


class Kin(nn.Module):
    """An `nn.Module`; a `transformers.PreTrainedModel` too, once transformers is imported."""

    def __init__(self) -> None:
        _join()
        nn.Module.__init__(self)


def _join() -> None:
    hub = getattr(sys.modules.get("transformers.modeling_utils"), "PreTrainedModel", None)
    if hub is not None and hub not in Kin.__bases__:
        Kin.__bases__ = (hub,)
