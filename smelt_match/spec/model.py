"""The specification of one model: its dimensions, its layout, and what its source prints about it."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PrivateAttr, model_validator

from smelt_match.errors import BadInput
from smelt_match.spec.grammar import parse_layout
from smelt_match.spec.layout import MAX_LAYERS, MAX_VISITS, Layout, parse_layers
from smelt_match.spec.loop import Loop
from smelt_match.spec.parts import MAX_WIDTH, Extra, LatentAttention, Record, Width
from smelt_match.units import Printed, parse_fraction

MAX_COUNT = 2**20
MAX_CONTEXT = 10**12


def _figure(value: Any) -> str:
    """A printed figure must be quoted: YAML would drop the trailing zeros that carry its precision."""
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise ValueError(f'write a printed figure in quotes, with all its digits, such as "0.100e9", found {value!r}')
    Printed(str(value))
    return str(value)


def _rational(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError(f"a number or a quoted num/den is wanted, found {value!r}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"a finite number is wanted, found {value!r}")
    try:
        number = parse_fraction(str(value), "mean_attended_context")
    except BadInput as error:
        raise ValueError(error.message) from None
    if not 1 <= number <= MAX_CONTEXT:
        raise ValueError(f"a causal token attends to at least itself: 1 to {MAX_CONTEXT:,} tokens, found {value!r}")
    return str(value)


Figure = Annotated[str, BeforeValidator(_figure)]
Layers = Annotated[str, BeforeValidator(lambda value: str(value) if type(value) is int else value)]
Rational = Annotated[str, BeforeValidator(_rational)]


class Expected(Record):
    """Figures that a source prints for a model, each with the digits it prints.

    Counts leave out embeddings and the output head, unless the name says with_embeddings; executed ones count every
    visit. FLOPs are for training, per token. Ratios are to the matched baseline. ``sparsity`` is S by the paper's
    Eq. 1; ``sparsity_own_control`` is a printed S that was measured against another control than Eq. 1's, and is
    carried without being checked.
    """

    params_active: Figure | None = None
    params_total: Figure | None = None
    params_active_with_embeddings: Figure | None = None
    params_executed_with_embeddings: Figure | None = None
    params_total_with_embeddings: Figure | None = None
    sparsity: Figure | None = None
    sparsity_own_control: Figure | None = None
    flops_train_per_token: Figure | None = None
    kv_elements_per_token: Figure | None = None
    flops_ratio: Figure | None = None
    kv_ratio: Figure | None = None

    def items(self) -> list[tuple[str, Printed]]:
        """The figures that are given, as (name, figure)."""
        return [(name, Printed(text)) for name, text in self if text is not None]


Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]


class Head(Record):
    """What every entry of a spec file says about itself."""

    name: Annotated[
        str,
        Field(
            pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$",
            description="a short name; letters, digits, . _ and -",
        ),
    ]
    source: str = Field("", description="where the figures come from")
    notes: str = Field("", description="anything a reader should know")
    verified: str = Field("", description="what was checked, and against what; the rest was not")
    assumed: dict[str, str] = Field(
        default_factory=dict, description="fields that the source leaves open, each with the reason for its value"
    )
    matches: str | None = Field(None, description="the baseline that this model was matched to, by name")
    expected: Expected = Field(Expected(), description="published counts, checked by `specs show`")


class PublishedRow(Head):
    """A published row whose geometry its source does not state, so that nothing can be counted from it."""

    status: Literal["not-decodable"]
    reason: str
    hidden_size: Width
    num_layers: Annotated[int, Field(ge=1, le=MAX_LAYERS)]
    num_experts: Count
    experts_per_token: Count
    layout: str


class IncompleteSystem(Head):
    """A published system whose source leaves open what a count needs: it says what is known and what is missing."""

    status: Literal["incomplete"]
    missing: Annotated[list[str], Field(min_length=1, description="what the source does not state")]
    known: dict[str, int | bool | str] = Field(default_factory=dict, description="fields that it does state")

    @model_validator(mode="after")
    def _check(self) -> Self:
        faults = [f"known: {name!r} is not a field of a model" for name in self.known.keys() - ModelSpec.model_fields]
        faults += [f"missing: {name!r} is known" for name in sorted(self.known.keys() & set(self.missing))]
        if faults:
            raise ValueError("\n".join(sorted(faults)))
        return self

    @property
    def reason(self) -> str:
        """Why nothing is counted, with the name of everything that is missing."""
        return f"not determinable from what is published: {', '.join(self.missing)}"


class ModelSpec(Head):
    """One decoder-only MoE Transformer, every dimension that a budget depends on.

    Symbols of formulas and tables: H ``hidden_size``, L ``num_layers``, E ``num_experts``, k ``experts_per_token``,
    I ``expert_intermediate_size``, n_q ``num_attention_heads``, n_kv ``num_key_value_heads``, d ``head_dim``.
    """

    hidden_size: Width = Field(description="H, the width of the residual stream")
    num_layers: Annotated[int, Field(ge=1, le=MAX_LAYERS, description="L, physical blocks (stored weights)")]
    num_experts: Annotated[int, Field(ge=0, le=MAX_COUNT)] = Field(
        description="E, experts stored in each block; 0 for a dense model"
    )
    experts_per_token: Annotated[int, Field(ge=0, le=MAX_COUNT)] = Field(
        description="k, experts that each token is routed to; 0 for a dense model"
    )
    expert_intermediate_size: Annotated[int, Field(ge=0, le=MAX_WIDTH)] = Field(
        description="I, the width of one SwiGLU expert; 0 for a dense model"
    )
    num_attention_heads: Count = Field(description="n_q, query heads")
    num_key_value_heads: Count = Field(description="n_kv, key and value heads; must divide n_q")
    head_dim: Annotated[int, Field(ge=2, le=MAX_WIDTH, description="d, even; need not be H / n_q")]
    layout: str = Field("none", description="which blocks run when, such as none, mid50x2 or 2-4-2x32")
    loop_num_attention_heads: Count | None = Field(None, description="n_q of the looped blocks, where they differ")
    loop_num_key_value_heads: Count | None = Field(None, description="n_kv of the looped blocks, where they differ")
    vocab_size: Annotated[int, Field(ge=1, le=2**31)] | None = Field(
        None, description="needed only by conventions that count the output head or the embedding"
    )
    tie_word_embeddings: bool = Field(False, description="whether the output head shares the embedding's weights")
    head_vocab_size: Annotated[int, Field(ge=1, le=2**31)] | None = Field(
        None, description="rows of the output head, where the embedding is padded beyond them"
    )
    output_head_bias: bool = Field(False, description="whether the output head has a bias")
    mean_attended_context: Rational | None = Field(
        None,
        description="c, tokens that a token attends to on average; default: one causal document of 4,096",
    )
    control: str | None = Field(
        None,
        description="the fully active control of Eq. 1, a shipped spec; default: this model with E = k, unlooped",
    )

    dense_layers: Layers | None = Field(
        None, description="layers with a dense feed-forward instead of experts, such as 1-3"
    )
    dense_intermediate_size: Width | None = Field(None, description="width of the dense feed-forward")
    shared_expert_intermediate_size: Width | None = Field(
        None, description="total width of the experts that every token passes, beside the routed ones"
    )
    shared_expert_gate: bool = Field(False, description="whether a gate of H weights scales the shared experts")
    gated_mlp: bool = Field(True, description="SwiGLU or GeGLU (three matrices); false for two matrices")
    mlp_bias: bool = Field(False, description="whether feed-forward matrices have biases")
    router_bias: bool = Field(False, description="whether the router has a trained bias")
    value_head_dim: Width | None = Field(None, description="size of a value head, where it differs from head_dim")
    attention_bias: bool = Field(False, description="whether query, key and value projections have biases")
    attention_output_bias: bool = Field(False, description="whether the output projection has a bias")
    attention_gate: bool = Field(False, description="whether a matrix of H by n_q·d gates the attention output")
    attention_sinks: bool = Field(False, description="whether each query head has a learned sink logit")
    qk_norm: Literal["none", "head", "width"] = Field(
        "none", description="RMSNorm on queries and keys: over each head, or over the whole width"
    )
    latent_attention: LatentAttention | None = Field(None, description="MLA dimensions, instead of n_kv and head_dim")
    sliding_window: Annotated[int, Field(ge=1, le=2**40)] | None = Field(
        None, description="tokens that windowed layers attend to, the token itself included"
    )
    sliding_window_layers: str | None = Field(None, description="windowed layers, such as 1-5,7-11; default: all")
    norms_per_block: Annotated[int, Field(ge=0, le=8)] = Field(2, description="norms of width H in each block")
    norm_bias: bool = Field(False, description="whether norms have a bias (LayerNorm)")
    final_norm: bool = Field(True, description="whether a norm stands before the output head")
    backward_visits: Annotated[int, Field(ge=1, le=MAX_VISITS)] | None = Field(
        None, description="visits of a looped block that the backward pass goes through, the last ones; default: all"
    )
    loop: Loop | None = Field(None, description="injection, cache policy and untied parts of the loop")
    value_embedding_layers: str | None = Field(
        None, description="layers whose values get a row of a table of V by n_kv·d for each token, such as 2,4,6"
    )
    value_embedding_gate: Width | None = Field(
        None, description="channels that a gate for each KV head of those layers reads; default: no gate"
    )
    extras: list[Extra] = Field(default_factory=list, description="further weights, each with its price")
    rope_theta: Annotated[float, Field(gt=0)] = Field(10_000.0, description="base of the rotary embedding")
    rms_norm_eps: Annotated[float, Field(gt=0, lt=1)] = Field(1e-6, description="epsilon of the norms")
    normalize_topk: bool = Field(True, description="whether the k routing weights are rescaled to sum to 1")

    _layout: Layout = PrivateAttr()
    _dense: frozenset[int] = PrivateAttr()
    _windowed: frozenset[int] = PrivateAttr()
    _valued: frozenset[int] = PrivateAttr()

    @model_validator(mode="after")
    def _check(self) -> Self:
        faults: list[str] = []
        self._dense = self._layers("dense_layers", faults)
        self._windowed = frozenset(range(self.num_layers)) if self.sliding_window else frozenset()
        if self.sliding_window_layers is not None:
            self._windowed = self._layers("sliding_window_layers", faults)
            if self.sliding_window is None:
                faults.append("sliding_window_layers is given without sliding_window")
        if (self.dense_layers is None) != (self.dense_intermediate_size is None):
            faults.append("dense_layers and dense_intermediate_size go together")
        routed = (self.num_experts, self.experts_per_token, self.expert_intermediate_size)
        if len(self._dense) < self.num_layers and 0 in routed:
            faults.append("num_experts, experts_per_token and expert_intermediate_size must be at least 1 with experts")
        if len(self._dense) == self.num_layers and any(routed):
            faults.append("every layer is dense: num_experts, experts_per_token and expert_intermediate_size must be 0")
        for extra in self.extras:
            if extra.layers is not None:
                try:
                    parse_layers(extra.layers, self.num_layers)
                except ValueError as error:
                    faults.append(f"extras: {extra.name}: {error}")
        self._valued = self._layers("value_embedding_layers", faults)
        if self.value_embedding_layers is None and self.value_embedding_gate is not None:
            faults.append("value_embedding_gate is given without value_embedding_layers")
        if self.value_embedding_gate is not None and self.value_embedding_gate > self.hidden_size:
            faults.append(
                f"value_embedding_gate {self.value_embedding_gate} is more channels than hidden_size {self.hidden_size}"
            )
        if self.value_embedding_layers is not None and self.vocab_size is None:
            faults.append("value_embedding_layers is given without vocab_size")
        faults += [f"assumed: {name!r} is not a field of a model" for name in self.assumed if name not in FIELDS]
        if self.head_vocab_size is not None:
            if self.vocab_size is None:
                faults.append("head_vocab_size is given without vocab_size")
            if self.tie_word_embeddings and self.head_vocab_size != self.vocab_size:
                faults.append("a tied output head has the rows of the embedding, so that head_vocab_size cannot differ")
        if self.num_experts < self.experts_per_token:
            faults.append(f"num_experts {self.num_experts} is less than experts_per_token {self.experts_per_token}")
        if self.head_dim % 2:
            faults.append(f"head_dim {self.head_dim} is odd; rotary embeddings turn pairs")
        for heads, groups, where in (
            (self.num_attention_heads, self.num_key_value_heads, ""),
            (self.loop_num_attention_heads, self.loop_num_key_value_heads, "loop_"),
        ):
            if (heads is None) != (groups is None):
                faults.append("loop_num_attention_heads and loop_num_key_value_heads go together")
            elif heads is not None and groups is not None and heads % groups:
                faults.append(
                    f"{where}num_attention_heads {heads} is not divisible by {where}num_key_value_heads {groups}"
                )
        try:
            self._layout = parse_layout(self.layout, self.num_layers)
        except BadInput as error:
            faults.append(error.message)
        else:
            of_loops = ("loop_num_attention_heads", "backward_visits", "loop") if self._layout.is_unlooped else ()
            given = [name for name in of_loops if getattr(self, name) is not None]
            faults += [f"{name} is given, but the layout loops nothing" for name in given]
            if self.loop is not None and not given:
                faults += self._loop_faults(self.loop)
            most = max(self._layout.counts)
            if self.backward_visits is not None and not given and self.backward_visits > most:
                faults.append(f"backward_visits {self.backward_visits} is more than the {most} visits of the layout")
        if faults:
            raise ValueError("\n".join(faults))
        return self

    def _loop_faults(self, loop: Loop) -> list[str]:
        """Combinations that have no price."""
        single = [name for name in ("injection", "norm_after_visit", "sampled") if getattr(loop, name)]
        faults = [f"loop.{name} needs a layout that repeats one run of layers as a whole"
                  for name in single if self._layout.cycle is None]  # fmt: skip
        if "router" in loop.untied and not set(self._layout.loop) - self._dense:
            faults.append("loop.untied: no looped layer has a router, since all of them are dense")
        if "norms" in loop.untied and not (self.norms_per_block or self.qk_norm != "none" or self.latent_attention):
            faults.append("loop.untied: no looped layer has norms")
        visits = max(self._layout.counts)
        if loop.kv_ring is not None and loop.kv_ring > visits:
            faults.append(f"loop.kv_ring {loop.kv_ring} is more than the {visits} visits of the layout")
        if loop.lora_rank is not None and set(self._layout.loop) - self._dense:
            faults.append("loop.lora_rank: adapters on experts cannot be priced; every looped layer must be dense")
        if loop.lora_rank is not None and self.latent_attention is not None:
            faults.append("loop.lora_rank: adapters on latent attention cannot be priced")
        if loop.part != "block":
            if self.norms_per_block % 2:
                faults.append(f"loop.part {loop.part}: {self.norms_per_block} norms cannot be split between the halves")
            if loop.untied or loop.lora_rank is not None:
                faults.append(f"loop.part {loop.part}: untied parts of half a block cannot be priced")
        if loop.kv_policy == "shared":
            if self.backward_visits is not None:
                faults.append("loop.kv_policy shared: with backward_visits it cannot be priced")
            if self.latent_attention or self.attention_bias or self.qk_norm != "none" or loop.lora_rank is not None:
                faults.append(
                    "loop.kv_policy shared: latent attention, biases, norms and adapters of keys cannot be priced"
                )
        if loop.sampled is not None and loop.sampled.most is not None and self._layout.cycle is not None:
            passes = self._layout.cycle[3]
            if loop.sampled.most < passes:
                faults.append(f"loop.sampled.most {loop.sampled.most} is less than the layout's {passes} passes")
        return faults

    def _layers(self, key: str, faults: list[str]) -> frozenset[int]:
        text = getattr(self, key)
        if text is None:
            return frozenset()
        try:
            return frozenset(parse_layers(text, self.num_layers))
        except ValueError as error:
            faults.append(f"{key}: {error}")
            return frozenset()

    @property
    def dense(self) -> frozenset[int]:
        """Block indices with a dense feed-forward."""
        return self._dense

    @property
    def windowed(self) -> frozenset[int]:
        """Block indices whose attention has the sliding window."""
        return self._windowed

    @property
    def valued(self) -> frozenset[int]:
        """Block indices whose values get a row of a table."""
        return self._valued

    @property
    def visits(self) -> Layout:
        """The parsed layout."""
        return self._layout

    @property
    def context(self) -> Fraction | None:
        """c as an exact rational, or None when the spec leaves it open."""
        if self.mean_attended_context is None:
            return None
        return parse_fraction(self.mean_attended_context, "mean_attended_context")

    @property
    def loop_heads(self) -> tuple[int, int]:
        """(n_q, n_kv) of the blocks that are visited more than once."""
        return (
            self.loop_num_attention_heads or self.num_attention_heads,
            self.loop_num_key_value_heads or self.num_key_value_heads,
        )

    def config(self) -> dict[str, int]:
        """The dimensions under the field's names, as JSON carries them."""
        loop_heads, loop_groups = self.loop_heads
        return {
            "hidden_size": self.hidden_size,
            "num_layers": self.num_layers,
            "num_experts": self.num_experts,
            "experts_per_token": self.experts_per_token,
            "expert_intermediate_size": self.expert_intermediate_size,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "loop_num_attention_heads": loop_heads,
            "loop_num_key_value_heads": loop_groups,
        }

    def changed(self, **fields: Any) -> ModelSpec:
        """A copy with some fields replaced, validated anew."""
        data = self.model_dump(exclude_unset=True)
        data.update(fields)
        return ModelSpec.model_validate(data)


ABOUT = frozenset(Head.model_fields) - {"name"}  # what a spec says about itself; no count depends on it
FIELDS = frozenset(ModelSpec.model_fields)
