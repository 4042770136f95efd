"""The activations a config can name, as the hub names them.

Three forms of GELU (Hendrycks & Gimpel 2016, https://arxiv.org/abs/1606.08415) are in use. `gelu` is the exact one,
x·Φ(x) with the Gauss error function; `gelu_new` and similar ones approximate it with tanh; `quick_gelu` with a logistic
function. A checkpoint must run with the one it was trained with: they differ by up to 5e-4 (quick_gelu: 2e-2) in every
layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from bertie.errors import ConfigError

Activation = Callable[[Tensor], Tensor]


gelu_erf: Activation = F.gelu


def gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def gelu_10(x: Tensor) -> Tensor:
    """GELU cut off at ±10, so that it can be quantised to 8 bits (https://arxiv.org/abs/2004.09602)."""
    return F.gelu(x).clamp(-10, 10)


def quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def relu2(x: Tensor) -> Tensor:
    """Squared ReLU (https://arxiv.org/abs/2109.08668)."""
    return F.relu(x).square()


def laplace(x: Tensor, mu: float = 0.707107, sigma: float = 0.282095) -> Tensor:
    """A sigmoid from the Laplace distribution (https://arxiv.org/abs/2209.10655)."""
    return 0.5 * (1.0 + torch.erf((x - mu) / (sigma * math.sqrt(2.0))))


def linear(x: Tensor) -> Tensor:
    return x


ACTIVATIONS: dict[str, Activation] = {
    "gelu": gelu_erf,
    "gelu_python": gelu_erf,
    "gelu_10": gelu_10,
    "gelu_new": gelu_tanh,
    "gelu_fast": gelu_tanh,
    "gelu_accurate": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "quick_gelu": quick_gelu,
    "relu": F.relu,
    "relu2": relu2,
    "relu6": F.relu6,
    "leaky_relu": F.leaky_relu,
    "silu": F.silu,
    "swish": F.silu,
    "mish": F.mish,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "laplace": laplace,
    "linear": linear,
}


def activation(name_or_function: str | Activation) -> Activation:
    """The function a config's `hidden_act` means."""
    if callable(name_or_function):
        return name_or_function
    if name_or_function not in ACTIVATIONS:
        raise ConfigError(f"No activation is called {name_or_function!r}.", f"There are: {', '.join(ACTIVATIONS)}.")
    return ACTIVATIONS[name_or_function]
