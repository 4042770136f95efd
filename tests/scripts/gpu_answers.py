"""On a CUDA machine: the model's answers there equal those on the CPU, in every dtype, mask, position type and layout.

    PYTHONPATH=src python tests/scripts/gpu_answers.py

Needs torch ≥ 2.11 and nothing else. The last line is the largest difference per dtype, or the first failure.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

import bertie

POSITIONS = ["absolute", "relative_key", "relative_key_query"]
# Rounding of the weights themselves to half precision moves answers by about this much.
TOLERANCE = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1.5e-1}


def model_of(positions: str, **config: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"vocab_size": 500, "hidden_size": 128, "num_attention_heads": 2, "num_hidden_layers": 3}
    more = {"intermediate_size": 256, "initializer_range": 0.08, "position_embedding_type": positions}
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return bertie.BertModel(bertie.BertConfig.from_dict(sizes | more | dropout | config)).eval()


def padded_inputs(mask: str, batch: int, length: int) -> dict[str, Tensor]:
    inputs = {"input_ids": torch.randint(1, 500, (batch, length))}
    lengths = torch.linspace(1, length, batch).long()
    if mask == "2-D":
        inputs["attention_mask"] = (torch.arange(length) < lengths[:, None]).long()
    elif mask == "3-D":
        inputs["attention_mask"] = torch.ones(batch, length, length).tril()
    elif mask == "whole rows":
        inputs["attention_mask"] = torch.zeros(batch, length).long()
        inputs["attention_mask"][0] = 1
    return inputs


def to_gpu(inputs: dict[str, Any]) -> dict[str, Any]:
    return {k: v.cuda() if isinstance(v, Tensor) else v for k, v in inputs.items()}


def main() -> None:
    print(torch.__version__, torch.cuda.get_device_name())
    torch.backends.cuda.matmul.allow_tf32 = False
    worst = dict.fromkeys(TOLERANCE, 0.0)
    cases = 0

    def compare(name: str, dtype: torch.dtype, wanted: Tensor, got: Tensor) -> None:
        nonlocal cases
        cases += 1
        assert torch.isfinite(got).all(), f"{name} {dtype}: not finite"
        difference = float((wanted.double() - got.double().cpu()).abs().max())
        assert difference <= TOLERANCE[dtype], f"{name} {dtype}: {difference}"
        worst[dtype] = max(worst[dtype], difference)

    for positions, decoder in itertools.product(POSITIONS, (False, True)):
        model = model_of(positions, is_decoder=decoder, use_cache=False)
        for dtype in TOLERANCE:
            fast = model_of(positions, is_decoder=decoder, use_cache=False).to("cuda", dtype)
            for mask, (batch, length) in itertools.product(("none", "2-D", "3-D"), ((1, 1), (3, 37), (2, 512))):
                inputs = padded_inputs(mask, batch, length)
                extra: dict[str, Any] = {"head_mask": torch.rand(3, 2)} if length == 37 else {}
                with torch.no_grad():
                    wanted, got = model(**inputs, **extra)[0], fast(**to_gpu(inputs | extra))[0]
                keep = inputs.get("attention_mask")
                if keep is not None and keep.dim() == 2:
                    wanted, got = wanted[keep.bool()], got[keep.bool().cuda()]
                compare(f"{positions} {mask} {batch}x{length}", dtype, wanted, got)
            with torch.no_grad():
                whole = fast(**to_gpu(padded_inputs("whole rows", 3, 40)))[0]
                assert torch.isfinite(whole).all(), f"{positions} {dtype}: whole rows masked"
            lengths = [1, 512, 7, 33, 120, 1]
            tokens = torch.randint(1, 500, (sum(lengths),))
            ends = torch.tensor([0, *lengths]).cumsum(0)
            with torch.no_grad():
                wanted = model(tokens, cu_seqlens=ends)[0]
                got = fast(tokens.cuda(), cu_seqlens=ends.cuda())[0]
            compare(f"{positions} packed", dtype, wanted, got)
        # Gradients, in fp32, padded and packed.
        fast = model_of(positions, is_decoder=decoder, use_cache=False).cuda()
        for inputs in (padded_inputs("2-D", 3, 70), {"input_ids": tokens, "cu_seqlens": ends}):
            gradients = []
            for which, given in ((model, inputs), (fast, to_gpu(inputs))):
                which.zero_grad()
                output = which(**given)[0]
                output.pow(3).mean().backward()
                gradients.append({n: p.grad.cpu() for n, p in which.named_parameters() if p.grad is not None})
            for name, gradient in gradients[0].items():
                compare(f"{positions} gradient of {name}", torch.float32, gradient, gradients[1][name])
    figures = ", ".join(f"{str(dtype).removeprefix('torch.')} {value:.1e}" for dtype, value in worst.items())
    print(f"{cases} comparisons, largest difference: {figures}")


if __name__ == "__main__":
    main()
