"""How much of the device a run used: useful floating-point operations against the device's peak."""

from __future__ import annotations

import torch

from bertie.config import BertConfig

# Dense bfloat16 peaks of data sheets, in TFLOP/s, by a part of the device's name; the longest part that fits counts.
PEAKS = {
    "H200": 989.0, "H100": 989.0, "H100 PCIe": 756.0, "H800": 989.0, "A100": 312.0, "A800": 312.0, "A10G": 70.0,
    "A10": 125.0, "A30": 165.0, "A40": 150.0, "L4": 121.0, "L40": 181.0, "L40S": 362.0, "B200": 2250.0, "B100": 1750.0,
    "GB200": 2500.0, "RTX 4090": 165.0, "RTX 3090": 71.0, "RTX 5090": 210.0,
}  # fmt: skip


def step_flops(config: BertConfig, *, tokens: float, squares: float, predicted: float = 0.0) -> float:
    """Useful operations of forward and backward: two for each weight a token meets, three times.

    `squares` is Σ length² over the texts (attention), `predicted` the number of tokens that the vocabulary is scored
    for. Nothing is counted twice for recomputing, and nothing for padding.
    """
    width, layers = config.hidden_size, config.num_hidden_layers
    dense = layers * (4 * width**2 + 2 * width * config.intermediate_size)
    attention = layers * 2 * width  # q·kᵀ and probabilities·v, per pair of tokens
    head = width**2 + width * config.vocab_size
    return 6.0 * (tokens * dense + squares * attention + predicted * head)


def peak_flops(device: torch.device) -> float | None:
    """The bfloat16 peak of this device, in FLOP/s; None where it is not known."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    fitting = [part for part in PEAKS if part in name]
    return PEAKS[max(fitting, key=len)] * 1e12 if fitting else None
