"""Inkling 2 Loop, the text model: a looped middle whose later passes get messages from the pass before.

Source: transformers, models/inkling2_loop/modeling_inkling2_loop.py. What the ledger has no component for is priced
as extras: short convolutions, the relative position bias, sink projections, residual attention over the outputs of
earlier blocks of layers, and message gates, which run in every pass but the first.
"""

from __future__ import annotations

from typing import Any

from smelt_match.spec.huggingface.fields import REQUIRED, Architecture, Fields
from smelt_match.spec.huggingface.kinds import SOME_LAYERS, VISITS, WIDTH
from smelt_match.spec.huggingface.looped import loop
from smelt_match.spec.huggingface.pieces import routed, typed_windows
from smelt_match.spec.huggingface.strict import shown
from smelt_match.spec.layout import block_names

FULL, SLIDING = ("hybrid", "full_attention"), ("hybrid_sliding", "sliding_attention")
LOOP_CONFIG = {
    "core_start": ("loop_layer_index_start", SOME_LAYERS), "core_end": ("loop_layer_index_end", SOME_LAYERS),
    "num_passes": ("loop_num_passes", VISITS), "gate_rank": ("loop_gate_rank", WIDTH),
}  # fmt: skip
Extras = list[dict[str, Any]]


def inkling2_loop(f: Fields) -> dict[str, Any]:
    """The text model, with one geometry in sliding and full layers."""
    _loop_config(f)
    depth, start, end = f["num_hidden_layers"], f["loop_layer_index_start"], f["loop_layer_index_end"]
    size = f["n_layers_per_attn_res_block"]
    if not 0 < start < end <= depth:
        f.fault("loop_layer_index_end", f"a loop of layers {start} to {end}; it must lie within 1 to {depth}")
    for key in ("loop_layer_index_start", "loop_layer_index_end"):
        if f[key] % size:
            f.fault(key, f"{f[key]} is not a multiple of n_layers_per_attn_res_block {size}")
    for ours, theirs in (("swa_num_attention_heads", "num_attention_heads"), ("swa_head_dim", "head_dim"),
                         ("swa_num_key_value_heads", "num_key_value_heads")):  # fmt: skip
        if f[ours] != f[theirs]:
            f.fault(ours, f"{f[ours]}, but {theirs} is {f[theirs]}: layers of two geometries cannot be counted")
    local = [index for index in range(depth) if (index + 1) % 6]
    window = typed_windows(f, local, "sliding_window_size", FULL, SLIDING)
    f.check()
    sliding = _sliding(f, local)
    return {
        "hidden_size": f["hidden_size"], "num_layers": depth, "num_attention_heads": f["num_attention_heads"],
        "num_key_value_heads": f["num_key_value_heads"], "head_dim": f["head_dim"], "vocab_size": f["vocab_size"],
        "head_vocab_size": f["unpadded_vocab_size"], "rms_norm_eps": float(f["rms_norm_eps"]), "attention_gate": True,
        "layout": loop(f, "loop_num_passes", start, end - start, depth - end),
        **routed(f, "n_routed_experts", f["moe_intermediate_size"]),
        **window,
        "extras": [*_blocks(f, sliding), *_residuals(f, sliding), *_messages(f)],
    }  # fmt: skip


def _loop_config(f: Fields) -> None:
    """An older spelling of the four fields of the loop, which has the last word."""
    for name, value in (f["loop_config"] or {}).items():
        if name not in LOOP_CONFIG:
            f.fault(f"loop_config.{name}", "unknown field")
            continue
        key, kind = LOOP_CONFIG[name]
        if kind.holds(value):
            f.values[key] = value
        else:
            f.fault(f"loop_config.{name}", f"{kind.words} is wanted, found {shown(value)}")
    f.check()


def _sliding(f: Fields, default: list[int]) -> set[int]:
    types = f["layer_types"]
    return set(default) if types is None else {index for index, kind in enumerate(types) if kind in SLIDING}


def _extra(name: str, layers: list[int] | set[int] | None, *factors: int, **fields: Any) -> Extras:
    """One extra whose parameters are a product; none where no layer has it."""
    params = 1
    for factor in factors:
        params *= factor
    formula = "·".join(str(factor) for factor in factors)
    if layers is not None and not layers:
        return []
    where = {} if layers is None else {"layers": block_names(sorted(layers))}
    return [{"name": name, "params": params, "formula": formula, **where, **fields}]


def _blocks(f: Fields, sliding: set[int]) -> Extras:
    """Convolutions, relative positions, sinks and scales of each block."""
    H, heads, groups, d = f["hidden_size"], f["num_attention_heads"], f["num_key_value_heads"], f["head_dim"]
    taps, rank = f["conv_kernel_size"], f["d_rel"]
    every = set(range(f["num_hidden_layers"]))
    full = every - sliding
    return [
        *_extra("attention sink projection", every, H, heads),
        *_extra("query scale", every, heads, d, cost="gain"),
        *_extra("key and value convolutions", every, 2, groups, d, taps),
        *_extra("projection of convolution taps", full, 2, H, groups, taps),
        *_extra("output convolutions", every, 2, H, taps),
        *_extra("relative position projection", every, H, heads, rank),
        *_extra("relative position scale", every, heads, rank, cost="gain"),
        *_extra("relative position profiles", sliding, rank, f["sliding_window_size"] or 1, executions=heads),
        *_extra("relative position profiles", full, rank, f["rel_extent"], executions=heads),
        *_extra("key and value norms", full, 2, H, cost="gain"),
        *_extra("embedding norm", None, H, cost="gain"),
    ]


def _residuals(f: Fields, sliding: set[int]) -> Extras:
    """Learned queries over the outputs of earlier blocks of layers: scores and weighted sum, for each source."""
    H, depth, size = f["hidden_size"], f["num_hidden_layers"], f["n_layers_per_attn_res_block"]
    found: dict[tuple[int, int], set[int]] = {}
    for layer in range(depth):
        inputs = 1 if layer in sliding else 3
        before, at_mlp = -(-layer // size) + 1, layer // size + 2
        if layer and before == at_mlp:
            found.setdefault((before, inputs + 1), set()).add(layer)
            continue
        if layer:
            found.setdefault((before, inputs), set()).add(layer)
        found.setdefault((at_mlp, 1), set()).add(layer)
    extras: Extras = []
    for (sources, queries), layers in sorted(found.items()):
        extras += _extra(f"residual attention, {sources} sources", layers, queries, H, executions=2 * sources)
    last = -(-depth // size) + 1
    return extras + _extra(f"final residual attention, {last} sources", None, H, executions=2 * last)


def _messages(f: Fields) -> Extras:
    """What the passes after the first add: queries over the previous pass, and four low-rank gates a layer."""
    H, rank, size = f["hidden_size"], f["loop_gate_rank"], f["n_layers_per_attn_res_block"]
    layers, later = f["loop_layer_index_end"] - f["loop_layer_index_start"], f["loop_num_passes"] - 1
    if not later:
        return [
            *_extra("message queries, unused", None, layers, 4, H, cost="lookup"),
            *_extra("message gates, unused", None, layers, 4, 4, H, rank, cost="lookup"),
        ]
    return [
        *_extra("message queries", None, layers, 4, H, executions=2 * (layers // size) * later),
        *_extra("message gates", None, layers, 4, 4, H, rank, executions=later),
    ]


_DEFAULTS = {
    **dict.fromkeys(("hidden_size", "num_hidden_layers", "vocab_size"), REQUIRED),
    "unpadded_vocab_size": 200_058, "num_attention_heads": 24, "num_key_value_heads": 8, "head_dim": 128,
    "swa_num_attention_heads": 24, "swa_num_key_value_heads": 8, "swa_head_dim": 128, "sliding_window_size": 1024,
    "d_rel": 16, "rel_extent": 1024, "layer_types": None, "rms_norm_eps": 1e-6, "conv_kernel_size": 4,
    "moe_intermediate_size": 1152, "n_routed_experts": 128, "num_experts_per_tok": 8, "n_layers_per_attn_res_block": 6,
    "loop_layer_index_start": 6, "loop_layer_index_end": 18, "loop_num_passes": 3, "loop_gate_rank": 64,
    "loop_config": None,
}  # fmt: skip
_IGNORED = dict.fromkeys(
    ("log_scaling_n_floor", "log_scaling_alpha", "qk_l2_clip_threshold", "rel_l2_clip_threshold", "mlp_gate_softcap",
     "mlp_up_softcap", "final_logit_softcapping", "scoring_func", "route_scale", "number_of_conv_states"), "",
)  # fmt: skip

INKLING = {
    "inkling2_loop_text": Architecture(
        inkling2_loop, _DEFAULTS, _IGNORED,
        {"tie_word_embeddings": ((False,), "its embedding and output head are never tied")},
        {"sliding_window": "sliding_window_size", "num_local_experts": "n_routed_experts",
         "intermediate_size": "moe_intermediate_size", "sconv_kernel_size": "conv_kernel_size"},
    ),
    "inkling2_loop": Architecture(
        inkling2_loop, {}, {"vision_config": "the vision tower is left out", "image_token_id": ""},
        {"tie_word_embeddings": ((False,), "its embedding and output head are never tied")},
        within=("text_config", "inkling2_loop_text"),
    ),
}  # fmt: skip
