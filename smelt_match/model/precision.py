"""What autocast asks for, on devices that have it and on those that do not (meta); where own gradients are worth it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_in_torch_dispatch_mode


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


def is_eager_float(x: Tensor) -> bool:
    """Whether ``x`` is a float32 or float64 tensor on a CPU, and nothing records the operations on it for later.

    There, each operation reads and writes all of its tensors, and a gradient written as few operations is faster than
    what autograd derives. Compilers fuse by themselves, and GPUs have fused kernels.
    """
    if is_in_torch_dispatch_mode():  # such as a FLOP counter, which knows torch's norms and not their parts
        return False
    recorded = torch.compiler.is_compiling() or torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    return x.is_cpu and x.dtype in (torch.float32, torch.float64) and not recorded
