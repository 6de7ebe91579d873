"""Pieces that architectures share: attention sizes, dense and routed feed-forwards, windows, as spec fields."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from smelt_match.spec.huggingface.fields import Fields
from smelt_match.spec.huggingface.rope import rope_theta
from smelt_match.spec.layout import block_names

FULL = ("full_attention",)
SLIDING = ("sliding_attention",)


def attention(f: Fields, theta: float = 10_000.0) -> dict[str, Any]:
    """Sizes of grouped-query attention, vocabulary and ends, under the names that most configs use."""
    heads = f["num_attention_heads"]
    groups = f.values.get("num_key_value_heads") or heads
    if heads % groups:
        f.fault("num_key_value_heads", f"{groups} does not divide num_attention_heads {heads}")
    return {
        "hidden_size": f["hidden_size"],
        "num_layers": f["num_hidden_layers"],
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "head_dim": head_dim(f),
        "vocab_size": f["vocab_size"],
        "tie_word_embeddings": f["tie_word_embeddings"],
        "rms_norm_eps": float(f.values.get("rms_norm_eps") or 1e-5),
        "rope_theta": rope_theta(f, theta),
    }


def head_dim(f: Fields) -> int:
    """The stated head size, or H / n_q."""
    heads = "num_attention_heads"
    stated: int | None = f.values.get("head_dim")
    if stated is None:
        stated, rest = divmod(f["hidden_size"], f[heads])
        if rest:
            f.fault(heads, f"{f[heads]} does not divide hidden_size {f['hidden_size']}")
            return 2
    if stated % 2:
        f.fault("head_dim" if f.values.get("head_dim") else heads, f"heads of size {stated}, which is odd")
        return 2
    return stated


def biases(f: Fields, output: bool = True) -> dict[str, bool]:
    """``attention_bias``: on queries, keys and values, and mostly on the output too."""
    return {"attention_bias": f["attention_bias"], "attention_output_bias": output and f["attention_bias"]}


def dense(width: int, num_layers: int) -> dict[str, Any]:
    """A model without experts."""
    return {
        "num_experts": 0, "experts_per_token": 0, "expert_intermediate_size": 0,
        "dense_layers": f"1-{num_layers}", "dense_intermediate_size": width,
    }  # fmt: skip


def routed(
    f: Fields, experts: str, width: int, dense_layers: Iterable[int] = (), dense_width: int = 0
) -> dict[str, Any]:
    """A model with ``experts`` (the name of the field that counts them) of some width, and perhaps dense layers."""
    total, active, layers = f[experts], f["num_experts_per_tok"], f["num_hidden_layers"]
    plain = sorted(set(dense_layers)) if total else list(range(layers))
    if len(plain) == layers:
        return dense(dense_width or width, layers)
    if active > total:
        f.fault("num_experts_per_tok", f"{active} is more than {experts} {total}")
    found = {"num_experts": total, "experts_per_token": active, "expert_intermediate_size": width}
    if plain:
        found |= {"dense_layers": block_names(plain), "dense_intermediate_size": dense_width}
    return found


def windows(f: Fields, layers: Iterable[int] | None = None, key: str = "sliding_window") -> dict[str, Any]:
    """A sliding window in some layers, or in all of them; nothing where the window is null."""
    width = f[key]
    if width is None:
        return {}
    if not width and (layers is None or list(layers)):
        f.fault(key, "a window of 0 tokens leaves a token without itself")
        return {}
    if layers is None:
        return {"sliding_window": width}
    chosen = sorted(set(layers))
    return {"sliding_window": width, "sliding_window_layers": block_names(chosen)} if chosen else {}


def typed_windows(
    f: Fields,
    default: Iterable[int],
    key: str = "sliding_window",
    full: tuple[str, ...] = FULL,
    sliding: tuple[str, ...] = SLIDING,
) -> dict[str, Any]:
    """Windows in the layers that ``layer_types`` names, or in ``default`` where it is left out."""
    types, depth = f["layer_types"], f["num_hidden_layers"]
    if types is None:
        return windows(f, default, key)
    unknown = sorted({kind for kind in types if kind not in (*full, *sliding)})
    if unknown:
        f.fault("layer_types", f"unknown type {unknown[0][:40]!r}; known are {', '.join((*full, *sliding))}")
    if len(types) != depth:
        f.fault("layer_types", f"{len(types)} entries, num_hidden_layers is {depth}")
        return {}
    chosen = [index for index, kind in enumerate(types) if kind in sliding]
    if chosen and f[key] is None:
        f.fault("layer_types", f"layer {chosen[0] + 1} is {sliding[0]}, but {key} is null")
    return windows(f, chosen, key)


def optional_windows(f: Fields, default: Iterable[int] | None) -> dict[str, Any]:
    """Windows that ``use_sliding_window`` switches on; None as default means every layer."""
    types = f.values.get("layer_types")
    if f["use_sliding_window"]:
        return windows(f) if default is None else typed_windows(f, default)
    if types is not None:
        if set(types) - set(FULL):
            f.fault("layer_types", "has layers that are not full_attention, but use_sliding_window is false")
        elif len(types) != f["num_hidden_layers"]:
            f.fault("layer_types", f"{len(types)} entries, num_hidden_layers is {f['num_hidden_layers']}")
    return {}


def within(f: Fields, key: str, layers: Iterable[int]) -> set[int]:
    """Layer numbers from 0 that a field lists, those that exist."""
    found = set(layers)
    if any(index < 0 for index in found):
        f.fault(key, "layers are counted from 0; one is negative")
    return {index for index in found if 0 <= index < f["num_hidden_layers"]}
