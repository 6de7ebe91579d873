"""The matched config in the terms of torchtitan and Megatron-LM, as text."""

from __future__ import annotations

import shlex

from smelt_match.errors import BadInput
from smelt_match.export.checkpoint.limits import (
    DENSE,
    NO_EXPERTS,
    PLAIN,
    QUERY_BIAS,
    WIDTH_NORM,
    Rule,
    check,
    check_unlooped,
)
from smelt_match.model.support import vocabulary
from smelt_match.spec.model import ModelSpec

_SHARED_GATE: Rule = ("shared_expert_gate: shared experts have no gate there", lambda s: s.shared_expert_gate)
_SHARED_WIDTH: Rule = (
    "shared_expert_intermediate_size: shared experts have the width of routed ones there, and this is no multiple",
    lambda s: bool(s.num_experts) and (s.shared_expert_intermediate_size or 0) % s.expert_intermediate_size > 0,
)
_ONE_EXPERT: Rule = (
    "normalize_topk with experts_per_token: 1: Megatron-LM wants --moe-router-pre-softmax for one expert, "
    "which does not rescale its weight to 1",
    lambda s: s.experts_per_token == 1 and s.normalize_topk,
)
_WHOLE_BASE: Rule = (
    "rope_theta: --rotary-base is a whole number there",
    lambda s: s.rope_theta != int(s.rope_theta),
)


def torchtitan(spec: ModelSpec, vocab_size: int | None) -> str:
    """Model arguments of torchtitan's Qwen3, whose blocks have grouped queries and routed experts in every layer.

    Source: torchtitan/models/qwen3/model/args.py and torchtitan/models/moe (0.2).

    Raises:
        BadInput: Loops, split heads, and whatever else stock torchtitan cannot say.
    """
    check_unlooped(spec, "torchtitan")
    check(spec, "torchtitan", (NO_EXPERTS, DENSE, WIDTH_NORM, QUERY_BIAS, *PLAIN, _SHARED_GATE, _SHARED_WIDTH))
    shared = (spec.shared_expert_intermediate_size or 0) // spec.expert_intermediate_size
    return f"""\
# {spec.name} for torchtitan 0.2: an entry of qwen3_args in torchtitan/models/qwen3/__init__.py.
# Sequence length, optimizer and load balancing are settings of the training run, not of the model.
Qwen3ModelArgs(
    vocab_size={vocabulary(spec, vocab_size)},
    dim={spec.hidden_size},
    n_layers={spec.num_layers},
    n_heads={spec.num_attention_heads},
    n_kv_heads={spec.num_key_value_heads},
    head_dim={spec.head_dim},
    hidden_dim={spec.expert_intermediate_size},
    norm_eps={spec.rms_norm_eps},
    rope_theta={spec.rope_theta},
    qk_norm={spec.qk_norm == "head"},
    enable_weight_tying={spec.tie_word_embeddings},
    moe_enabled=True,
    moe_inter_dim={spec.expert_intermediate_size},
    moe_args=MoEArgs(
        num_experts={spec.num_experts},
        num_shared_experts={shared},
        top_k={spec.experts_per_token},
        score_func="softmax",
        route_norm={spec.normalize_topk},
        route_scale=1.0,
        score_before_experts=False,
    ),
)
"""


def megatron(spec: ModelSpec, vocab_size: int | None) -> str:
    """Model arguments of Megatron-LM's pretrain_gpt.py, as a bash array.

    Source: megatron/training/arguments.py and megatron/core/transformer/moe (core 0.12 and later).

    Raises:
        BadInput: Loops, split heads, and whatever else stock Megatron-LM cannot say.
    """
    check_unlooped(spec, "Megatron-LM")
    check(spec, "Megatron-LM", (WIDTH_NORM, *PLAIN, _ONE_EXPERT, _WHOLE_BASE))
    arguments: list[tuple[str, object]] = [
        ("--num-layers", spec.num_layers),
        ("--hidden-size", spec.hidden_size),
        ("--num-attention-heads", spec.num_attention_heads),
        ("--group-query-attention", ""),
        ("--num-query-groups", spec.num_key_value_heads),
        ("--kv-channels", spec.head_dim),
        ("--ffn-hidden-size", spec.dense_intermediate_size or spec.expert_intermediate_size),
        ("--vocab-size", vocabulary(spec, vocab_size)),
        ("--make-vocab-size-divisible-by", 1),
        ("--swiglu", ""),
        ("--disable-bias-linear", ""),
        ("--normalization", "RMSNorm"),
        ("--norm-epsilon", spec.rms_norm_eps),
        ("--position-embedding-type", "rope"),
        ("--rotary-base", int(spec.rope_theta)),
        ("--attention-dropout", "0.0"),
        ("--hidden-dropout", "0.0"),
    ]
    arguments += [("--add-qkv-bias", "")] if spec.attention_bias else []
    arguments += [("--qk-layernorm", "")] if spec.qk_norm == "head" else []
    arguments += [] if spec.tie_word_embeddings else [("--untie-embeddings-and-output-weights", "")]
    arguments += _experts(spec) if spec.num_experts else []
    lines = "".join(f"    {flag} {shlex.quote(str(value)) if value != '' else ''}".rstrip() + "\n"
                    for flag, value in arguments)  # fmt: skip
    return f"""\
# {spec.name} for Megatron-LM: source this file, then
#   torchrun ... pretrain_gpt.py "${{MODEL_ARGS[@]}}" ...
# Sequence length, parallelism, optimizer and load balancing are settings of the training run, not of the model.
MODEL_ARGS=(
{lines})
"""


def _experts(spec: ModelSpec) -> list[tuple[str, object]]:
    found: list[tuple[str, object]] = [
        ("--num-experts", spec.num_experts),
        ("--moe-router-topk", spec.experts_per_token),
        ("--moe-ffn-hidden-size", spec.expert_intermediate_size),
        ("--moe-router-score-function", "softmax"),
        ("--moe-router-dtype", "fp32"),
    ]
    # Softmax over the chosen logits is what rescaling chosen probabilities gives; that is Megatron's default.
    found += [] if spec.normalize_topk else [("--moe-router-pre-softmax", "")]
    if spec.dense:
        pattern = ",".join("0" if index in spec.dense else "1" for index in range(spec.num_layers))
        found.append(("--moe-layer-freq", f"[{pattern}]"))
    if spec.shared_expert_intermediate_size:
        found.append(("--moe-shared-expert-intermediate-size", spec.shared_expert_intermediate_size))
        found += [("--moe-shared-expert-gate", "")] if spec.shared_expert_gate else []
    return found


WRITERS = {"torchtitan": torchtitan, "megatron": megatron}


def text_for(system: str, spec: ModelSpec, vocab_size: int | None) -> str:
    """The config of a spec in the terms of a system."""
    if system not in WRITERS:
        raise BadInput(f"{system!r} is not one of {', '.join(WRITERS)}")
    return WRITERS[system](spec, vocab_size)
