"""What each component of a block costs: the one place where these formulas stand, for counting and for solving.

The searched sizes may be Python integers or NumPy integer arrays (the solver's grids); the same bodies serve both.

    attention  2·H·d·(n_q + n_kv)      router  H·E      experts  3·H·I each      norms  2·H, and one final H

Source: arXiv 2609.01343v3, Sec. 3.2 and Appendix A, with the geometry behind its printed digits in specs/smelt.yaml;
the other parts (latent attention, shared experts, biases, query-key norms) as their models define them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from smelt_match.budget.conventions import Convention

if TYPE_CHECKING:
    from smelt_match.spec.model import ModelSpec
    from smelt_match.spec.parts import LatentAttention

Int: TypeAlias = Any  # int, or an integer array of the solver's grid


@dataclass(frozen=True)
class Form:
    """What a block is made of besides the searched sizes; the same for every point of a search.

    Attributes:
        F: Width of the dense feed-forward; 0 where the block has experts.
        S: Total width of the shared experts; 0 without any.
        d_v: Size of a value head; 0 where it is d.
        matrices: Matrices of a feed-forward: 3 gated, 2 plain.
        window: Sliding window in tokens, or None.
    """

    F: int = 0
    S: int = 0
    d_v: int = 0
    matrices: int = 3
    shared_gate: bool = False
    mlp_bias: bool = False
    router_bias: bool = False
    attention_bias: bool = False
    output_bias: bool = False
    gate: bool = False
    sinks: bool = False
    qk_norm: str = "none"
    latent: LatentAttention | None = None
    norms: int = 2
    norm_bias: bool = False
    window: int | None = None


PLAIN = Form()


@dataclass(frozen=True)
class Dims:
    """The dimensions of one block: H, E, k, I, n_q, n_kv, d, V for the model-level parts, and its form."""

    H: Int
    E: Int
    k: Int
    I: Int
    n_q: Int
    n_kv: Int
    d: Int
    V: int = 0
    form: Form = field(default=PLAIN)


def form_of(spec: ModelSpec, block: int) -> Form:
    """The form of one block of a spec."""
    return Form(
        F=(spec.dense_intermediate_size or 0) if block in spec.dense else 0,
        S=0 if block in spec.dense else spec.shared_expert_intermediate_size or 0,
        d_v=0 if spec.value_head_dim == spec.head_dim else spec.value_head_dim or 0,
        matrices=3 if spec.gated_mlp else 2,
        shared_gate=spec.shared_expert_gate,
        mlp_bias=spec.mlp_bias,
        router_bias=spec.router_bias,
        attention_bias=spec.attention_bias,
        output_bias=spec.attention_output_bias,
        gate=spec.attention_gate,
        sinks=spec.attention_sinks,
        qk_norm=spec.qk_norm,
        latent=spec.latent_attention,
        norms=spec.norms_per_block,
        norm_bias=spec.norm_bias,
        window=spec.sliding_window if block in spec.windowed else None,
    )


@dataclass(frozen=True)
class Component:
    """One row kind: its formula, the parameters it stores, those one traversal uses, and when FLOPs are billed."""

    name: str
    formula: Callable[[Dims], str]
    stored: Callable[[Dims], Int]
    active: Callable[[Dims], Int]
    billed: Callable[[Convention], bool]
    present: Callable[[Dims], bool] = lambda _: True


def _always(_: Convention) -> bool:
    return True


def _router(convention: Convention) -> bool:
    return convention.router


def _norms(convention: Convention) -> bool:
    return convention.norms


def _whole(
    name: str,
    formula: str | Callable[[Dims], str],
    params: Callable[[Dims], Int],
    billed: Callable[[Convention], bool],
    present: Callable[[Dims], bool] = lambda _: True,
) -> Component:
    """A component that every token passes whole."""
    text = (lambda _: formula) if isinstance(formula, str) else formula
    return Component(name, text, params, params, billed, present)


def _value_dim(m: Dims) -> Int:
    return m.form.d_v or m.d


def _projections(m: Dims) -> Int:
    latent = m.form.latent
    if latent is None:
        if not m.form.d_v:
            return 2 * m.H * m.d * (m.n_q + m.n_kv)
        return m.H * (m.n_q + m.n_kv) * (m.d + m.form.d_v)
    d_qk = latent.qk_nope_head_dim + latent.qk_rope_head_dim
    rank = latent.q_lora_rank
    query = m.H * m.n_q * d_qk if rank is None else m.H * rank + rank * m.n_q * d_qk
    down = m.H * (latent.kv_lora_rank + latent.qk_rope_head_dim)
    up = latent.kv_lora_rank * m.n_q * (latent.qk_nope_head_dim + latent.v_head_dim)
    return query + down + up + m.n_q * latent.v_head_dim * m.H


def _projections_text(m: Dims) -> str:
    latent = m.form.latent
    if latent is None:
        return "2·{H}·{d}·({n_q} + {n_kv})" if not m.form.d_v else "{H}·({n_q} + {n_kv})·({d} + {d_v})"
    d_qk, rank = f"({latent.qk_nope_head_dim} + {latent.qk_rope_head_dim})", latent.q_lora_rank
    query = f"{{H}}·{{n_q}}·{d_qk}" if rank is None else f"{{H}}·{rank} + {rank}·{{n_q}}·{d_qk}"
    down = f"{{H}}·({latent.kv_lora_rank} + {latent.qk_rope_head_dim})"
    up = f"{latent.kv_lora_rank}·{{n_q}}·({latent.qk_nope_head_dim} + {latent.v_head_dim})"
    return f"{query} + {down} + {up} + {{n_q}}·{latent.v_head_dim}·{{H}}"


def _attention_biases(m: Dims) -> Int:
    found = m.n_q * m.d + m.n_kv * (m.d + _value_dim(m)) if m.form.attention_bias else 0
    return found + (m.H if m.form.output_bias else 0) + (m.n_q if m.form.sinks else 0)


def _attention_biases_text(m: Dims) -> str:
    parts = ["{n_q}·{d} + {n_kv}·({d} + {d_v})" if m.form.d_v else "{n_q}·{d} + 2·{n_kv}·{d}"] * m.form.attention_bias
    return " + ".join(parts + ["{H}"] * m.form.output_bias + ["{n_q}"] * m.form.sinks)


def _attention_norms(m: Dims) -> Int:
    latent = m.form.latent
    if latent is not None:
        return (latent.q_lora_rank or 0) + latent.kv_lora_rank
    return 2 * m.d if m.form.qk_norm == "head" else m.d * (m.n_q + m.n_kv)


def _attention_norms_text(m: Dims) -> str:
    latent = m.form.latent
    if latent is not None:
        return f"{latent.q_lora_rank or 0} + {latent.kv_lora_rank}"
    return "2·{d}" if m.form.qk_norm == "head" else "{d}·({n_q} + {n_kv})"


def _expert_bias(m: Dims, width: Int) -> Int:
    return (m.form.matrices - 1) * width + m.H


def _has_experts(m: Dims) -> bool:
    return not m.form.F


BLOCK_COMPONENTS = (
    _whole("attention projections", _projections_text, _projections, _always),
    _whole("attention gate", "{H}·{n_q}·{d}", lambda m: m.H * m.n_q * m.d, _always, lambda m: m.form.gate),
    _whole(
        "attention biases", _attention_biases_text, _attention_biases, _norms,
        lambda m: m.form.attention_bias or m.form.output_bias or m.form.sinks,
    ),
    _whole(
        "attention norms", _attention_norms_text, _attention_norms, _norms,
        lambda m: m.form.qk_norm != "none" or m.form.latent is not None,
    ),
    _whole("router", "{H}·{E}", lambda m: m.H * m.E, _router, _has_experts),
    _whole("router bias", "{E}", lambda m: m.E, _norms, lambda m: _has_experts(m) and m.form.router_bias),
    Component(
        "experts", lambda m: f"{m.form.matrices}·{{H}}·{{I}} each, {{k}} of {{E}}",
        lambda m: m.form.matrices * m.H * m.I * m.E, lambda m: m.form.matrices * m.H * m.I * m.k, _always, _has_experts,
    ),
    Component(
        "expert biases", lambda m: ("2·{I}" if m.form.matrices == 3 else "{I}") + " + {H} each, {k} of {E}",
        lambda m: _expert_bias(m, m.I) * m.E, lambda m: _expert_bias(m, m.I) * m.k, _norms,
        lambda m: _has_experts(m) and m.form.mlp_bias,
    ),
    _whole(
        "shared experts", lambda m: f"{m.form.matrices}·{{H}}·{{S}}" + " + {H}" * m.form.shared_gate,
        lambda m: m.form.matrices * m.H * m.form.S + m.form.shared_gate * m.H, _always,
        lambda m: bool(m.form.S),
    ),
    _whole(
        "dense feed-forward", lambda m: f"{m.form.matrices}·{{H}}·{{F}}", lambda m: m.form.matrices * m.H * m.form.F,
        _always, lambda m: bool(m.form.F),
    ),
    _whole(
        "dense biases", lambda m: ("2·{F}" if m.form.matrices == 3 else "{F}") + " + {H}",
        lambda m: _expert_bias(m, m.form.F), _norms, lambda m: bool(m.form.F) and m.form.mlp_bias,
    ),
    _whole(
        "norms", lambda m: f"{m.form.norms * (1 + m.form.norm_bias)}·{{H}}",
        lambda m: m.form.norms * (1 + m.form.norm_bias) * m.H, _norms, lambda m: m.form.norms > 0,
    ),
)  # fmt: skip
ATTENTION_HALF = frozenset({"attention projections", "attention gate", "attention biases", "attention norms"})
NORMS = "norms"
SCORES = "attention scores"
UNTIED = {"norms": frozenset({"norms", "attention norms"}), "router": frozenset({"router", "router bias"})}
# Where later visits read the keys and values of the first, those are projected once.
QUERIES = _whole(
    "query and output projections",
    lambda m: "{H}·{n_q}·({d} + {d_v})" if m.form.d_v else "2·{H}·{d}·{n_q}",
    lambda m: m.H * m.n_q * (m.d + _value_dim(m)), _always,
)  # fmt: skip
KEYS_AND_VALUES = _whole(
    "key and value projections",
    lambda m: "{H}·{n_kv}·({d} + {d_v})" if m.form.d_v else "2·{H}·{d}·{n_kv}",
    lambda m: m.H * m.n_kv * (m.d + _value_dim(m)), _always,
)  # fmt: skip
# What a loop's policy splits or renames is still the same weights: ledgers are compared by these names.
FAMILIES = {
    QUERIES.name: BLOCK_COMPONENTS[0].name,
    KEYS_AND_VALUES.name: BLOCK_COMPONENTS[0].name,
    "final norm": "norms after the stack",
    "norm after a pass": "norms after the stack",
}


def family(component: str) -> str:
    """What a component is compared as: scores are scores, within a window or not."""
    return SCORES if component.startswith(f"{SCORES}, ") else FAMILIES.get(component, component)


FINAL_NORM = _whole(
    "final norm", lambda m: "2·{H}" if m.form.norm_bias else "{H}", lambda m: (1 + m.form.norm_bias) * m.H, _norms
)
HEAD = _whole("output head", "{V}·{H}", lambda m: m.V * m.H, _always)
HEAD_BIAS = _whole("output head bias", "{V}", lambda m: m.V, _norms)
TIED_HEAD = Component("output head", lambda _: "{V}·{H}, tied", lambda _: 0, lambda m: m.V * m.H, _always)
EMBEDDING = Component("input embedding", lambda _: "{V}·{H}", lambda m: m.V * m.H, lambda _: 0, lambda _: False)


def score_flops(m: Dims) -> Int:
    """Training FLOPs of attention scores and their use, for each visit and attended token: 6·n_q·(d_qk + d_v)."""
    latent = m.form.latent
    if latent is not None:
        return 6 * m.n_q * (latent.qk_nope_head_dim + latent.qk_rope_head_dim + latent.v_head_dim)
    return 6 * m.n_q * (m.d + m.form.d_v) if m.form.d_v else 12 * m.n_q * m.d


def score_text(m: Dims) -> str:
    """The formula of `score_flops`, times the attended tokens c."""
    latent = m.form.latent
    if latent is not None:
        return f"6·{{n_q}}·({latent.qk_nope_head_dim} + {latent.qk_rope_head_dim} + {latent.v_head_dim})·c"
    return "6·{n_q}·({d} + {d_v})·c" if m.form.d_v else "12·{n_q}·{d}·c"


def kv_elements(m: Dims) -> Int:
    """KV-cache elements of one slot, for each token."""
    latent = m.form.latent
    if latent is not None:
        return latent.kv_lora_rank + latent.qk_rope_head_dim
    return m.n_kv * (m.d + m.form.d_v) if m.form.d_v else 2 * m.n_kv * m.d


def kv_text(m: Dims) -> str:
    """The formula of `kv_elements`."""
    latent = m.form.latent
    if latent is not None:
        return f"{latent.kv_lora_rank} + {latent.qk_rope_head_dim}"
    return "{n_kv}·({d} + {d_v})" if m.form.d_v else "2·{n_kv}·{d}"
