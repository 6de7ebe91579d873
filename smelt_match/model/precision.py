"""What autocast asks for, on devices that have it and on those that do not (meta)."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def product_dtype(x: Tensor) -> torch.dtype:
    """The dtype that matrix products of ``x`` run in: autocast's where it is on, else its own.

    Grouped products and operations of our own are unknown to autocast, so that the experts ask themselves.
    """
    device = x.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return x.dtype


def without_autocast(x: Tensor) -> AbstractContextManager[object]:
    """A context in which products keep the dtypes of their factors."""
    device = x.device.type
    return torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext()
