"""A budget card: what a paper or a model card should say about a model's costs, each number with its convention."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import Field

from smelt_match.budget.active import active_counts
from smelt_match.budget.components import kv_elements
from smelt_match.budget.context import Context
from smelt_match.budget.conventions import CONVENTIONS, convention
from smelt_match.budget.count import context_of, count
from smelt_match.budget.ledger import Ledger, ledger
from smelt_match.budget.parts import injection_parts, params_value_tables
from smelt_match.budget.passes import drawn
from smelt_match.spec.layout import block_names
from smelt_match.spec.loop import Loop
from smelt_match.spec.model import ModelSpec
from smelt_match.spec.parts import Record
from smelt_match.units import fraction_text, round_half_even

PAGE_TOKENS = 16  # vLLM's default block, vllm/config/cache.py, CacheConfig.DEFAULT_BLOCK_SIZE
DTYPE_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4, "fp8": 1}
Count = Annotated[int, Field(ge=0)]
Dtype = Literal["bf16", "fp16", "fp32", "fp8"]
Policy = Literal["visit", "last", "shared", "ring"]


class LayoutCard(Record):
    """Which blocks run when."""

    text: str
    visits: str = Field(description="every visit in order, layers from 1, in runs")
    num_layers: Annotated[int, Field(ge=1, description="stored blocks")]
    executed_layers: Annotated[int, Field(ge=1, description="visits of blocks")]
    looped_layers: str = Field(description="layers that are visited more than once, from 1; empty for none")
    dense_layers: str = Field("", description="layers with a dense feed-forward, from 1; empty for none")


class InjectionCard(Record):
    """What enters the loop again at every pass; all of it is in the counts of the card."""

    kind: Literal["concat", "add", "diagonal", "message"]
    params: Count = Field(description="stored, once for the loop, or for all its blocks together")
    flops_train_per_token: Count = Field(description="at every pass, by convention 'paper'")


class PassesCard(Record):
    """A number of passes that is drawn in training; the counts of the card are at its mean."""

    distribution: str
    mean: Annotated[int, Field(ge=1, description="passes that the layout states and the card counts")]
    most: Annotated[int, Field(ge=1)] | None = Field(None, description="the greatest number; none where unbounded")
    flops_train_per_token_most: Count | None = Field(None, description="at the most passes, by convention 'paper'")
    kv_elements_per_token_most: Count | None = Field(None, description="at the most passes, by the model's own policy")


class LoopCard(Record):
    """How a looped model runs its loop, as far as a cost depends on it."""

    backward_visits: Annotated[int, Field(ge=1)] | None = Field(
        None, description="last visits of a looped block that the backward pass goes through; none for all"
    )
    injection: InjectionCard | None = Field(None, description="none without one")
    passes_drawn: PassesCard | None = Field(None, description="none where the number is fixed")
    part: Literal["block", "attention", "feed_forward"] = Field("block", description="what of a block is repeated")
    untied: list[Literal["norms", "router"]] = Field(default_factory=list, description="stored for every visit")
    lora_rank: Annotated[int, Field(ge=1)] | None = Field(None, description="of the adapters of every visit")
    norm_after_visit: bool = Field(False, description="whether a norm ends every pass")


class ContextCard(Record):
    """What FLOPs of attention and the bytes of a cache were counted for."""

    mean_attended_context: str = Field(pattern=r"^\d+/\d+$", description="c, exactly, as num/den")
    origin: str
    documents: Annotated[int, Field(ge=1)]
    tokens: Annotated[int, Field(ge=1, description="of all documents together")]


class ParamsCard(Record):
    """Stored parameters, and three numbers that are all called active."""

    params_total: Count = Field(description="stored, without embedding, value tables and output head")
    params_value_tables: Count | None = Field(None, description="tables of value embeddings; none without any")
    params_embedding_and_head: Count | None = Field(
        None, description="embedding and output head, tied weights once; none where the vocabulary is unknown"
    )
    params_active_one_traversal: Count = Field(description="each block once, k experts, without embeddings")
    params_executed_every_visit: Count = Field(description="the same at every visit of every block")
    params_active_with_embeddings: Count | None = Field(description="one traversal with tables, embedding and head")
    params_total_with_embeddings: Count | None = Field(description="the sum of the first three")


class SparsityCard(Record):
    """S by Eq. 1 of arXiv 2609.01343v3, and the fully active control that it was measured against."""

    value: float
    control: str


class FlopsCard(Record):
    """Training FLOPs per token by one convention."""

    convention: str
    flops_train_per_token: Count
    flops_attention_train_per_token: Count
    attended_tokens: str = Field(pattern=r"^\d+/\d+$", description="attended tokens billed to each token, as num/den")
    output_head: Literal["counted", "not counted", "unknown vocabulary"]
    source: str


class CacheCard(Record):
    """The KV cache under one policy."""

    policy: Policy = Field(description="whose keys and values a looped block keeps")
    own: bool = Field(description="whether it is the model's own policy")
    slots: Count
    kv_elements_per_token: Count
    kv_bytes_per_token: Count
    kv_bytes_logical: Count = Field(description="of the documents of the context")
    kv_bytes_allocated: Count = Field(description="of the same documents in whole pages")


class Card(Record):
    """The costs of one model; counts are integers, rationals are rounded half to even."""

    schema_version: Literal[1] = 1
    name: str
    source: str
    assumed: dict[str, str] = Field(default_factory=dict, description="fields that the source leaves open, and why so")
    config: dict[str, int] = Field(description="dimensions, under the field's names")
    layout: LayoutCard
    loop: LoopCard | None = Field(None, description="none for a model without a loop")
    context: ContextCard
    params: ParamsCard
    sparsity: SparsityCard | None = Field(description="none for a dense model")
    flops: list[FlopsCard]
    kv_dtype: Dtype
    kv_page_tokens: Annotated[int, Field(ge=1, description="tokens of a page, which is allocated whole")]
    kv_cache: list[CacheCard]

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """The JSON Schema of a card."""
        dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
        return dialect | cls.model_json_schema(mode="serialization")


def card(
    spec: ModelSpec, override: Context | None = None, page_tokens: int = PAGE_TOKENS, dtype: Dtype = "bf16"
) -> Card:
    """The card of a model.

    Args:
        override: The context; default: the spec's own. Where only its mean c is known, the cache is that of the one
            causal document with this mean, 2c − 1 tokens.
        page_tokens: Tokens of a page; each sequence ends in one that is allocated whole.
    """
    context = context_of(spec, override)
    if spec.windowed:
        context = context.document
    counted = count(spec, convention("paper"), context)
    lengths = context.lengths or ((math.ceil(context.sequence), 1),)
    layout = spec.visits
    return Card(
        name=spec.name,
        source=spec.source,
        assumed=spec.assumed,
        config=spec.config() | _widths(spec),
        layout=LayoutCard(
            text=str(layout), visits=layout.canonical.removeprefix("visits "), num_layers=layout.num_layers,
            executed_layers=len(layout.visits), looped_layers=block_names(layout.loop) if layout.loop else "",
            dense_layers=block_names(sorted(spec.dense)) if spec.dense else "",
        ),
        loop=_loop(spec, counted.ledger),
        context=ContextCard(
            mean_attended_context=fraction_text(context.mean), origin=context.origin,
            documents=sum(times for _, times in lengths), tokens=sum(length * times for length, times in lengths),
        ),
        params=_params(spec, counted.budget.params),
        sparsity=SparsityCard(value=float(counted.sparsity), control=counted.control) if spec.num_experts else None,
        flops=[_flops(spec, name, context) for name in CONVENTIONS],
        kv_dtype=dtype,
        kv_page_tokens=page_tokens,
        kv_cache=_caches(spec, lengths, page_tokens, DTYPE_BYTES[dtype]),
    )  # fmt: skip


def _widths(spec: ModelSpec) -> dict[str, int]:
    """Dimensions that only some models have."""
    names = ("dense_intermediate_size", "shared_expert_intermediate_size", "value_head_dim", "sliding_window",
             "value_embedding_gate", "vocab_size", "head_vocab_size")  # fmt: skip
    return {name: value for name in names if (value := getattr(spec, name)) is not None}


def _params(spec: ModelSpec, without: int) -> ParamsCard:
    active, tables = active_counts(spec), params_value_tables(spec)
    return ParamsCard(
        params_total=without, params_value_tables=tables or None,
        params_embedding_and_head=None if active.total is None else active.total - tables - without,
        params_active_one_traversal=active.one_traversal, params_executed_every_visit=active.executed,
        params_active_with_embeddings=active.with_embeddings, params_total_with_embeddings=active.total,
    )  # fmt: skip


def _loop(spec: ModelSpec, book: Ledger) -> LoopCard | None:
    """The loop, priced by the ledger."""
    if spec.visits.is_unlooped:
        return None
    loop = spec.loop or Loop()
    injection = None
    if loop.injection is not None:
        names = {part.name for part in injection_parts(spec)}
        rows = [row for row in book.rows if row.component in names]
        injection = InjectionCard(
            kind=loop.injection.kind, params=sum(row.stored for row in rows),
            flops_train_per_token=round_half_even(sum((book.flops(row) for row in rows), Fraction(0))),
        )  # fmt: skip
    return LoopCard(
        backward_visits=spec.backward_visits, injection=injection, passes_drawn=_drawn(spec, book), part=loop.part,
        untied=loop.untied, lora_rank=loop.lora_rank, norm_after_visit=loop.norm_after_visit,
    )  # fmt: skip


def _drawn(spec: ModelSpec, book: Ledger) -> PassesCard | None:
    found, cycle = drawn(spec, book.convention, book.context), spec.visits.cycle
    if found is None or cycle is None or spec.loop is None or spec.loop.sampled is None:
        return None
    worst = found.worst
    return PassesCard(
        distribution=found.distribution, mean=cycle[3], most=spec.loop.sampled.most,
        flops_train_per_token_most=None if worst is None else round_half_even(worst.flops),
        kv_elements_per_token_most=None if worst is None else worst.kv,
    )  # fmt: skip


def _flops(spec: ModelSpec, name: str, context: Context) -> FlopsCard:
    rule = convention(name)
    book = count(spec, rule, context).ledger
    head: Literal["counted", "not counted", "unknown vocabulary"] = "not counted"
    if rule.head:
        head = "unknown vocabulary" if spec.vocab_size is None else "counted"
    return FlopsCard(
        convention=name, flops_train_per_token=round_half_even(book.budget.flops),
        flops_attention_train_per_token=round_half_even(book.budget.attention),
        attended_tokens=fraction_text(Fraction(book.attended)), output_head=head, source=rule.source,
    )  # fmt: skip


def _caches(spec: ModelSpec, lengths: tuple[tuple[int, int], ...], page: int, size: int) -> list[CacheCard]:
    """The cache under the model's own policy, and under the two that an engine may choose for any loop."""
    tokens = sum(length * times for length, times in lengths)
    allocated = sum(-(-length // page) * page * times for length, times in lengths)
    loop = spec.loop or Loop()
    own = loop.kv_policy
    others: tuple[Policy, ...] = () if spec.visits.is_unlooped else ("visit", "last")
    found = []
    for policy in dict.fromkeys((own, *others)):
        kept = loop if policy == own else loop.model_copy(update={"kv_policy": policy, "kv_ring": None})
        model = spec if policy == own else spec.changed(loop=kept.model_dump())
        rows = [row for row in ledger(model, convention("paper"), Context.causal(1)).rows if row.kv]
        elements = sum(row.kv for row in rows)
        found.append(
            CacheCard(
                policy=policy, own=policy == own, slots=sum(row.kv // kv_elements(row.dims) for row in rows),
                kv_elements_per_token=elements, kv_bytes_per_token=elements * size,
                kv_bytes_logical=elements * size * tokens, kv_bytes_allocated=elements * size * allocated,
            )
        )  # fmt: skip
    return found
