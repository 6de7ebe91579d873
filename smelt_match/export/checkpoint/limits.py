"""What each system cannot say. A spec is exported to the letter or refused, with every reason at once."""

from __future__ import annotations

from collections.abc import Callable

from smelt_match.errors import BadInput
from smelt_match.model.support import check_buildable
from smelt_match.spec.layout import block_names
from smelt_match.spec.model import ModelSpec

Rule = tuple[str, Callable[[ModelSpec], bool]]  # why not, and when

LOOPS: Rule = ("its layers run once each, in order; loops do not exist there", lambda s: not s.visits.is_unlooped)
NO_EXPERTS: Rule = (
    "layout: this export is for models with experts, and this one has none",
    lambda s: not s.num_experts,
)
DENSE: Rule = ("dense_layers: every layer has experts there", lambda s: bool(s.dense))
SHARED: Rule = (
    "shared_expert_intermediate_size: shared experts do not exist there",
    lambda s: bool(s.shared_expert_intermediate_size),
)
KV_POLICY: Rule = (
    "loop.kv_policy: every visit has keys and values of its own there",
    lambda s: s.loop is not None and s.loop.kv_policy != "visit",
)
WIDTH_NORM: Rule = (
    "qk_norm: width: norms over all heads together do not exist there",
    lambda s: s.qk_norm == "width",
)
HEADS: Rule = (
    "loop_num_attention_heads, loop_num_key_value_heads: all layers have the same heads there",
    lambda s: bool(s.visits.loop) and s.loop_heads != (s.num_attention_heads, s.num_key_value_heads),
)
QUERY_BIAS: Rule = ("attention_bias: projections have no biases there", lambda s: s.attention_bias)
PLAIN: tuple[Rule, ...] = (
    ("gated_mlp: false: feed-forwards are SwiGLU there", lambda s: not s.gated_mlp),
    ("mlp_bias: feed-forwards have no biases there", lambda s: s.mlp_bias),
    ("router_bias: the router has no bias there", lambda s: s.router_bias),
    ("attention_output_bias: projections have no biases there", lambda s: s.attention_output_bias),
    ("attention_gate: the attention output has no gate there", lambda s: s.attention_gate),
    ("norm_bias: norms are RMSNorm there", lambda s: s.norm_bias),
    ("final_norm: false: a norm stands before the output head there", lambda s: not s.final_norm),
    ("value_head_dim: heads of values have the size of those of keys there",
     lambda s: s.value_head_dim not in (None, s.head_dim)),
)  # fmt: skip

LOOPED: tuple[Rule, ...] = (QUERY_BIAS, *PLAIN)  # what the modelling file of looped checkpoints leaves out


def check(spec: ModelSpec, system: str, rules: tuple[Rule, ...], hint: str = "") -> None:
    """Refuse a spec that a system cannot say.

    Raises:
        BadInput: One line for each rule that the spec breaks, or for each part that no model can be built with.
    """
    check_buildable(spec)
    faults = [reason for reason, breaks in (KV_POLICY, *rules) if breaks(spec)]
    if faults:
        raise BadInput("\n".join(f"{spec.name}: {system}: {fault}" for fault in faults), hint)


def stock_class(spec: ModelSpec) -> str:
    """The model_type of the stock transformers class that runs the unrolled model: ``mixtral`` or ``qwen3_moe``."""
    rules = (NO_EXPERTS, HEADS, SHARED, WIDTH_NORM, QUERY_BIAS, *PLAIN)
    refused = any(breaks(spec) for _, breaks in LOOPED)
    hint = "" if refused else "--to hf keeps the loops, with a modelling file of its own"
    if spec.qk_norm != "none":
        check(spec, "Qwen3MoeForCausalLM", rules, hint)
        return "qwen3_moe"
    renormalized: Rule = (
        "normalize_topk: false: routing weights are always rescaled to sum to 1 there",
        lambda s: not s.normalize_topk,
    )
    check(spec, "MixtralForCausalLM", (*rules, DENSE, renormalized), hint)
    return "mixtral"


def check_looped(spec: ModelSpec) -> None:
    """Refuse what the modelling file of looped checkpoints does not implement."""
    check(spec, "modeling_smelt_match.py", LOOPED)


def check_unlooped(spec: ModelSpec, system: str) -> None:
    """Refuse loops, and with them heads that differ between layers, for a system whose layers run once."""
    if HEADS[1](spec):
        names = block_names(spec.visits.loop)
        outer, inner = (spec.num_attention_heads, spec.num_key_value_heads), spec.loop_heads
        split = (
            f"\n{spec.name}: {system}: layers {names} have heads {inner}, the others {outer}; all have the same there"
        )
    else:
        split = ""
    if not spec.visits.is_unlooped:
        raise BadInput(
            f"{spec.name}: {system}: layout {spec.layout}: {LOOPS[0]}{split}",
            "no stock version expresses a loop; --to hf keeps it, --to hf-unrolled copies the layers",
        )
