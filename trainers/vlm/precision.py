"""In which precision the two towers run. Losses, logits and the optimizer are always fp32."""
from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def resolve_precision(name: str, device: torch.device) -> str:
    """`auto` is fp32 on CPU and fp16 autocast on CUDA."""
    if name != "auto":
        return name
    return "fp16" if device.type == "cuda" else "fp32"


def autocast(precision: str, device: torch.device) -> AbstractContextManager:
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, dtype=DTYPES[precision])
