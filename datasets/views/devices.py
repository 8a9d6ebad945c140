"""Small numbers on their way to where views are made."""
from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def sent(array: np.ndarray, device: torch.device) -> Tensor:
    """On the device. Nobody waits: to a GPU it goes by way of memory that is pinned."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
