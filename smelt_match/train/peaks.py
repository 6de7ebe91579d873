"""How much of a GPU's peak a run uses.

Model FLOPs utilisation as in PaLM (arXiv 2204.02311, App. B): training FLOPs per token by a counting convention, times
tokens per second, over the peak of dense bf16 products. Ours takes the convention ``paper`` at the spec's mean attended
context: no embedding, no output head, nothing for visits that are computed twice.
"""

from __future__ import annotations

import torch

from smelt_match.budget.conventions import convention
from smelt_match.budget.count import context_of
from smelt_match.budget.ledger import ledger
from smelt_match.spec.model import ModelSpec
from smelt_match.units import short_fraction

# Dense bf16 FLOPs per second of one GPU by a part of its name, the first that fits; from NVIDIA's data sheets, which
# print most with sparsity, twice as much: H100 SXM 1,979 TFLOPS, H200 NVL 1,671, HGX B200 4,500, GB200 5,000 a GPU.
_PEAKS = (
    ("GB200", 2.5e15),
    ("B200", 2.25e15),
    ("H200 NVL", 8.36e14),
    ("H200", 9.89e14),
    ("H100 PCIe", 7.56e14),
    ("H100 NVL", 8.35e14),
    ("GH200", 9.89e14),
    ("H100", 9.89e14),
    ("A100", 3.12e14),
    ("L40S", 3.62e14),
    ("L40", 1.81e14),
    ("L4", 1.21e14),
)


def peak_flops(device: torch.device, dtype: str) -> float | None:
    """The peak of a device, or None where it is not known, as for CPUs and float32."""
    if device.type != "cuda" or dtype != "bfloat16":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for part, peak in _PEAKS if part in name), None)


def train_flops_per_token(spec: ModelSpec) -> float:
    """By the convention ``paper``."""
    return float(ledger(spec, convention("paper"), context_of(spec)).budget.flops)


def mfu_convention(spec: ModelSpec) -> str:
    """What a utilisation was counted by, in words."""
    return f"convention paper, c = {short_fraction(context_of(spec).mean)}, dense bf16 peak"
