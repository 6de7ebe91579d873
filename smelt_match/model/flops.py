"""What torch's FLOP counter should count for the experts: it knows neither our operations nor its own grouped GEMM.

Source: a product of (m, k) and (k, n) is 2·m·k·n FLOPs, as torch.utils.flop_counter counts every other one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.flop_counter import flop_registry, register_flop_formula

import smelt_match.model.router
import smelt_match.model.segments  # noqa: F401


@register_flop_formula(torch.ops.smelt_match.experts)
def experts_flops(_x: Any, _weights: Any, experts: Any, up: Any, down: Any, *_: Any, **__: Any) -> int:
    """Two products for each assignment of a token to an expert."""
    return 2 * int(experts[0] * experts[1]) * int(up[1] * up[2] + down[1] * down[2])


@register_flop_formula(torch.ops.smelt_match.experts_backward)
def experts_backward_flops(_grad: Any, *forward: Any, **__: Any) -> int:
    """Twice the forward pass: states before the activation were kept, and nothing is computed again."""
    return 2 * experts_flops(*forward)


@register_flop_formula(torch.ops.smelt_match.top)
def top_flops(*_: Any, **__: Any) -> int:
    """Comparisons only."""
    return 0


def grouped_mm_flops(a: Any, b: Any, *_: Any, **__: Any) -> int:
    """Rows are split among groups, or the contracted dimension is: either way each row meets one matrix."""
    return 2 * int(a[-2] * a[-1] * b[-1])


if torch.ops.aten._grouped_mm not in flop_registry:  # torch 2.13 has no formula, so that it would count as nothing
    register_flop_formula(torch.ops.aten._grouped_mm)(grouped_mm_flops)
