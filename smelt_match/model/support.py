"""Which specs can be built. A spec that states more than the model implements is refused, field by field.

What is refused is found by exclusion: every field of a spec is either built, or free of meaning for a model, or must
stand at its default. A field that is added to specs later is therefore refused until it is built.
"""

from __future__ import annotations

import textwrap

from smelt_match.errors import BadInput, close_names
from smelt_match.spec.loop import Loop
from smelt_match.spec.model import ABOUT, ModelSpec

KV_POLICIES = ("visit", "last", "shared", "ring")
BALANCES = ("loss", "bias")
RESIDUAL_SCALES = ("1/r", "1")

_BUILT = frozenset({
    "hidden_size", "num_layers", "num_experts", "experts_per_token", "expert_intermediate_size", "num_attention_heads",
    "num_key_value_heads", "head_dim", "layout", "loop_num_attention_heads", "loop_num_key_value_heads", "vocab_size",
    "tie_word_embeddings", "dense_layers", "dense_intermediate_size", "shared_expert_intermediate_size",
    "shared_expert_gate", "gated_mlp", "mlp_bias", "router_bias", "value_head_dim", "attention_bias",
    "attention_output_bias", "attention_gate", "qk_norm", "norm_bias", "final_norm", "rope_theta", "rms_norm_eps",
    "normalize_topk",
})  # fmt: skip
_BUILT_LOOP = frozenset({"residual_scale", "kv_policy", "kv_ring"})
_ABOUT = ABOUT | {"name", "control", "mean_attended_context"}


def check_buildable(spec: ModelSpec) -> None:
    """Refuse a spec that the model would not follow to the letter.

    Raises:
        BadInput: One line for each part that cannot be built yet.
    """
    faults = []
    for name, field in type(spec).model_fields.items():
        value = getattr(spec, name)
        if name in _BUILT | _ABOUT or value == field.get_default(call_default_factory=True):
            continue
        if name == "extras":
            faults += [f"extras: {extra.name!r} cannot be built yet" for extra in spec.extras]
        elif name == "loop":
            given = value.model_dump(exclude_defaults=True, exclude=set(_BUILT_LOOP))
            faults += [f"loop.{part}: {_shown(text)} cannot be built yet" for part, text in given.items()]
        else:
            faults.append(f"{name}: {_shown(value)} cannot be built yet")
    if spec.attention_gate and spec.value_head_dim not in (None, spec.head_dim):
        faults.append("attention_gate: beside a value_head_dim of its own it cannot be built yet")
    if spec.mlp_bias and spec.shared_expert_intermediate_size:
        faults.append("mlp_bias: shared experts with biases cannot be built yet")
    if faults:
        hint = "counting and matching work without a model; only building and training need every part"
        raise BadInput("\n".join(f"{spec.name}: {fault}" for fault in faults), hint)


def _shown(value: object) -> str:
    return textwrap.shorten(str(value), 80, placeholder=" …")


def vocabulary(spec: ModelSpec, vocab_size: int | None) -> int:
    """V, from the spec or from the caller; both may state it if they agree."""
    if vocab_size is None and spec.vocab_size is None:
        raise BadInput(f"{spec.name}: vocab_size is not stated", "give vocab_size, or write it into the spec")
    if vocab_size is not None and spec.vocab_size not in (None, vocab_size):
        raise BadInput(f"{spec.name}: vocab_size {vocab_size:,} is given, but the spec states {spec.vocab_size:,}")
    found = vocab_size or spec.vocab_size or 0
    if found < 1:
        raise BadInput(f"{spec.name}: vocab_size {found} must be at least 1")
    return found


def scale_of(spec: ModelSpec, residual_scale: str | None) -> str:
    """The factor on updates inside loops, from the spec or from the caller; both may state it if they agree."""
    stated = None if spec.loop is None else spec.loop.residual_scale
    if residual_scale is not None:
        check_choice("residual_scale", residual_scale, RESIDUAL_SCALES)
        if stated not in (None, residual_scale):
            raise BadInput(f"{spec.name}: residual_scale {residual_scale} is given, but the spec states {stated}")
    return residual_scale or stated or "1/r"


def kept_loop(spec: ModelSpec, policy: str, ring: int | None) -> Loop:
    """A loop whose cache follows another KV policy than the spec states.

    Raises:
        BadInput: There is no such policy, or one of the two is ``shared``, which is another model.
    """
    check_choice("KV policy", policy, KV_POLICIES)
    if (ring is None) == (policy == "ring") or (ring is not None and ring < 1):
        raise BadInput(f"KV policy {policy!r}: ring {ring}: the policy `ring` keeps at least 1 visit, others take none")
    stated = "visit" if spec.loop is None else spec.loop.kv_policy
    if policy != stated and "shared" in (policy, stated):
        raise BadInput(
            f"{spec.name}: KV policy {policy!r} is given, but the spec states {stated!r}",
            "with `shared`, later visits read the first one's keys and values in training too: state it in the spec",
        )
    return Loop.model_validate({"kv_policy": policy, "kv_ring": ring})


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse a value that is none of ``choices``."""
    if value not in choices:
        raise BadInput(f"{name}: {value!r} is not one of {', '.join(choices)}", close_names(str(value), choices))
