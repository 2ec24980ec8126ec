"""Where a network's arithmetic happens: the GPU of this process where there is one."""

from __future__ import annotations

import os

import torch


def own_device() -> torch.device:
    """The GPU that torchrun's LOCAL_RANK names (the first one otherwise), or the CPU."""
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if torch.cuda.is_available() and local < torch.cuda.device_count():
        return torch.device("cuda", local)
    return torch.device("cpu")
