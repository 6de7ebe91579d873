"""Looped decoders: Ouro (arXiv 2510.25741), Huginn (arXiv 2502.05171) and HRM-Text, as their own code runs them."""

from __future__ import annotations

from typing import Any

from smelt_match.spec.huggingface.dense import LLAMA, QWEN_WINDOWS, SIZES
from smelt_match.spec.huggingface.fields import REQUIRED, Architecture, Fields
from smelt_match.spec.huggingface.pieces import attention, dense, head_dim, optional_windows
from smelt_match.spec.huggingface.rope import ROPE
from smelt_match.spec.layout import MAX_VISITS


def loop(f: Fields, key: str, before: int, inside: int, after: int) -> str:
    """A layout of some layers, a group that is repeated as often as a field says, and some more layers."""
    times = f[key]
    if times == 1 or too_long(f, key, before + inside * times + after):
        return "none"
    parts = [str(before)] * bool(before) + [f"[{inside}x{times}]"] + [str(after)] * bool(after)
    return "-".join(parts)


def too_long(f: Fields, key: str, visits: int) -> bool:
    """Whether a layout has more visits than can be counted, which is a fault of the field that repeats it."""
    if visits > MAX_VISITS:
        f.fault(key, f"{f[key]:,}, which makes {visits:,} visits; at most {MAX_VISITS:,} are possible")
    return visits > MAX_VISITS


def ouro(f: Fields) -> dict[str, Any]:
    """Ouro: the whole stack, then final norm and exit gate, ``total_ut_steps`` times; sandwich norms."""
    H, depth, steps = f["hidden_size"], f["num_hidden_layers"], f["total_ut_steps"]
    late = range(f["max_window_layers"], depth)
    f.notes.append("every step runs; the output head is counted once, after the last")
    return {
        **attention(f),
        **dense(f["intermediate_size"], depth),
        **optional_windows(f, late),
        "norms_per_block": 4,
        "final_norm": False,
        "layout": loop(f, "total_ut_steps", 0, depth, 0),
        "extras": [
            {"name": "final norm", "params": H, "cost": "gain", "executions": steps, "formula": f"{H}"},
            {"name": "early-exit gate", "params": H, "executions": steps, "formula": f"{H}·1"},
            {"name": "early-exit gate bias", "params": 1, "cost": "gain", "executions": steps, "formula": "1"},
        ],
    }


def huginn(f: Fields) -> dict[str, Any]:
    """Huginn: prelude, a block repeated ``mean_recurrence`` times behind an adapter, coda; sandwich norms.

    The recurrence is sampled in training; its mean is counted, with the backward pass through the last
    ``mean_backprop_depth`` of them, as the model's own FLOP count does.
    """
    H, heads = f["hidden_size"], f["num_attention_heads"]
    times, back = f["mean_recurrence"], f["mean_backprop_depth"]
    before, inside, after = f["n_layers_in_prelude"], f["n_layers_in_recurrent_block"], f["n_layers_in_coda"]
    depth = before + inside + after
    derived = {"num_key_value_heads": heads, "head_dim": H // heads, "n_layers": depth}
    for key, value in derived.items():
        if f[key] not in (None, value):
            f.fault(key, f"{f[key]}, but the other fields make it {value}")
    if back > times:
        f.fault("mean_backprop_depth", f"{back} is more than mean_recurrence {times}")
    f.notes.append("training samples the recurrence: its mean is counted, with the mean depth of the backward pass")
    width = head_dim(f)
    extras: list[dict[str, Any]] = [
        {"name": "adapter", "layers": str(before + 1), "params": 2 * H * H, "formula": f"2·{H}·{H}"},
        {"name": "final norm", "params": H, "cost": "gain", "executions": 2, "formula": f"{H}"},
    ]
    if f["qk_bias"]:
        extras.append(
            {"name": "query and key biases", "layers": f"1-{depth}", "params": 2 * heads * width, "cost": "gain",
             "formula": f"2·{heads}·{width}"}
        )  # fmt: skip
    return {
        **dense(f["intermediate_size"], depth), "hidden_size": H, "num_layers": depth, "num_attention_heads": heads,
        "num_key_value_heads": heads, "head_dim": width, "vocab_size": f["padded_vocab_size"] or f["vocab_size"],
        "tie_word_embeddings": f["tie_embeddings"], "rms_norm_eps": float(f["norm_eps"]),
        "rope_theta": float(f["rope_base"] or 50_000), "norms_per_block": 4, "final_norm": False,
        "layout": loop(f, "mean_recurrence", before, inside, after), "backward_visits": back if back < times else None,
        "extras": extras,
    }  # fmt: skip


def hrm_text(f: Fields) -> dict[str, Any]:
    """HRM-Text: in each of ``H_cycles`` the low stack runs ``L_cycles`` times, then the high stack once.

    Blocks 1 to n are the low stack, n + 1 to 2n the high one. Its norms have no weights.
    """
    H, high, low = f["hidden_size"], f["H_cycles"], f["L_cycles"]
    stack, total = f["num_layers_per_stack"], f["num_hidden_layers"]
    if stack is None:
        stack = total
    elif total != stack * high * (low + 1):
        wanted = stack * high * (low + 1)
        f.fault("num_hidden_layers", f"{total}, but num_layers_per_stack·H_cycles·(L_cycles + 1) is {wanted}")
    depth = 2 * stack
    looped = high * low > 1 and not too_long(f, "H_cycles", stack * high * (low + 1))
    f.values["num_hidden_layers"] = depth
    spec = attention(f)
    width = spec["num_attention_heads"] * spec["head_dim"]
    extras: list[dict[str, Any]] = [{"name": "initial state", "params": H, "cost": "lookup", "formula": f"{H}"}]
    if f["attention_bias"]:
        extras.append(
            {"name": "attention gate bias", "layers": f"1-{depth}", "params": width, "cost": "gain",
             "formula": f"{spec['num_attention_heads']}·{spec['head_dim']}"}
        )  # fmt: skip
    inner = f"[{stack}x{low}]" if low > 1 else f"{stack}"
    return {
        **spec, **dense(f["intermediate_size"], depth), "mlp_bias": f["mlp_bias"], "attention_gate": True,
        "attention_bias": f["attention_bias"], "attention_output_bias": f["attention_bias"], "norms_per_block": 0,
        "final_norm": False, "layout": f"[{inner}-{stack}]x{high}" if looped else "none",
        "backward_visits": _backward(f, high, low), "extras": extras,
    }  # fmt: skip


def _backward(f: Fields, high: int, low: int) -> int | None:
    """Visits of the low stack that the backward pass goes through: ``L_bp_cycles``, padded with ones in front."""
    steps = f["L_bp_cycles"] if f["L_bp_cycles"] is not None else [2]
    padded = ([1] * max(0, high - len(steps)) + steps)[:high]
    visits = sum(min(step, low) for step in padded)
    if min(padded) < 1:
        f.fault("L_bp_cycles", "a cycle without a backward pass cannot be counted; every entry must be at least 1")
    return visits if visits < high * low else None


_OURO = {**LLAMA, **QWEN_WINDOWS, "sliding_window": None, "total_ut_steps": 4}

LOOPED = {
    "ouro": Architecture(
        ouro, _OURO, {"early_exit_threshold": "every step is counted", "early_exit_step": "every step is counted",
                      "chunk_size": ""},
    ),
    "huginn_raven": Architecture(
        huginn,
        {
            **dict.fromkeys(("hidden_size", "num_attention_heads", "intermediate_size", "vocab_size",
                             "n_layers_in_prelude", "n_layers_in_recurrent_block", "n_layers_in_coda",
                             "mean_recurrence", "mean_backprop_depth"), REQUIRED),
            **dict.fromkeys(("num_key_value_heads", "head_dim", "n_layers", "padded_vocab_size"), None),
            "tie_embeddings": True, "qk_bias": True, "norm_eps": 1e-6, "rope_base": 50_000,
        },
        {
            "sampling_scheme": "the mean recurrence is counted",
            **dict.fromkeys(("block_size", "padding_multiple", "init_strategy", "init_orthogonal", "init_values",
                             "state_init", "nonlin_name", "activation_checkpoint_impl", "test_time_noise",
                             "test_time_noise_type", "effective_expected_depth"), ""),
        },
        {
            "bias": ((False,), "Huginn's own code has biases on the adapter only; they cannot be counted"),
            "architecture_class_name": (("RecurrentGPT",), "only RecurrentGPT is known"),
            "block_class_name": (("SandwichBlock",), "only SandwichBlock is known"),
            "mlp_class_name": (("GatedMLP",), "only GatedMLP is known"),
            "norm_class_name": (("RMSNorm_llama",), "only RMSNorm_llama is known"),
            "injection_type": (("linear",), "only the linear adapter is known"),
        },
        {"n_embd": "hidden_size", "n_heads": "num_attention_heads", "tie_word_embeddings": "tie_embeddings"},
    ),
    "hrm_text": Architecture(
        hrm_text,
        {
            **SIZES, **ROPE, "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False, "head_dim": 128,
            "rms_norm_eps": 1e-6, "H_cycles": 2, "L_cycles": 3, "L_bp_cycles": None, "num_layers_per_stack": None,
        },
        {"embedding_scale": "", "prefix_lm": "attention is counted as causal"},
    ),
}  # fmt: skip
