"""Rotary embeddings: no budget depends on them, but a type that nobody knows is refused."""

from __future__ import annotations

from typing import Any

from smelt_match.spec.huggingface.fields import Fields
from smelt_match.spec.huggingface.kinds import THETA
from smelt_match.spec.huggingface.strict import shown

TYPES = ("default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional", "axial", "su")
ROPE = {"rope_theta": None, "rope_scaling": None, "rope_parameters": None}


def rope_theta(f: Fields, default: float = 10_000.0) -> float:
    """The base of the rotary embedding, of the full-attention layers where layer types have their own."""
    theta = f["rope_theta"]
    for key in ("rope_scaling", "rope_parameters"):
        mapping = f[key]
        if not mapping:
            continue
        for name, part in parts(mapping):
            place = f"{key}.{name}" if name else key
            kind = part.get("rope_type", part.get("type", "default"))
            if kind not in TYPES:
                f.fault(f"{place}.rope_type", f"unknown type {shown(kind)}; known are {', '.join(TYPES)}")
            found = part.get("rope_theta")
            if found is None:
                continue
            if not THETA.holds(found):
                f.fault(f"{place}.rope_theta", f"{THETA.words} is wanted, found {shown(found)}")
            elif name in ("", "full_attention"):
                theta = found
    return float(default if theta is None else theta)


def parts(mapping: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The settings of each layer type, or the one for all."""
    parts = [(name, part) for name, part in mapping.items() if isinstance(part, dict)]
    return parts if parts else [("", mapping)]
