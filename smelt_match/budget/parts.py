"""Weights beside the components of a block: what a loop adds, value embeddings, and what a spec prices itself.

    injection      concat 2·H·H, add nothing, diagonal 2·H gains (and H·H), message as stated; at each pass of the loop
    end of a pass  a norm of H gains
    adapters       Σ over the matrices of a block of rank·(in + out), a copy for every visit
    value tables   V·n_kv·d, looked up; their gates read some channels for each KV head

Sources: Huginn (arXiv 2502.05171), Parcae (arXiv 2604.12946), Relaxed Recursive Transformers (arXiv 2410.20672), as
their own code has them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from smelt_match.spec.layout import parse_layers
from smelt_match.spec.parts import Extra

if TYPE_CHECKING:
    from smelt_match.spec.model import ModelSpec


@dataclass(frozen=True)
class Part:
    """Weights with a price.

    Attributes:
        params: Parameters in each of its blocks, or in the model.
        blocks: Block indices, or None for the model as a whole.
        executions: Times a token passes them: in all, or at each visit where there are blocks.
        skipped: First visits that leave them out.
        copies: Whether every visit has a copy of its own.
        embedding: Whether they are rows of a token embedding, which a convention may leave out of its parameters.
    """

    name: str
    params: int
    formula: str
    cost: Literal["matmul", "gain", "lookup"] = "matmul"
    blocks: tuple[int, ...] | None = None
    executions: int = 1
    skipped: int = 0
    copies: bool = False
    embedding: bool = False


def parts_of(spec: ModelSpec) -> tuple[Part, ...]:
    """The parts of a spec, its own extras last."""
    return (*_loop_parts(spec), *_value_parts(spec), *(_extra(extra, spec.num_layers) for extra in spec.extras))


def params_value_tables(spec: ModelSpec) -> int:
    """Parameters of the value tables of all layers that have one."""
    tables = [part for part in _value_parts(spec) if part.embedding]
    return sum(part.params * len(part.blocks or ()) for part in tables)


def _extra(extra: Extra, num_layers: int) -> Part:
    blocks = None if extra.layers is None else parse_layers(extra.layers, num_layers)
    return Part(extra.name, extra.params, extra.formula, extra.cost, blocks, extra.executions)


def _loop_parts(spec: ModelSpec) -> Iterator[Part]:
    loop, H = spec.loop, spec.hidden_size
    if loop is None:
        return
    looped = spec.visits.loop
    last = looped[-1:]
    yield from injection_parts(spec)
    if loop.norm_after_visit:
        yield Part("norm after a pass", H, f"{H}", "gain", last)
    if loop.lora_rank is not None:
        sums = [(min(loop.lora_rank, *sides), *sides, times) for times, *sides in _matrices(spec)]
        params = sum(times * rank * (rows + columns) for rank, rows, columns, times in sums)
        formula = " + ".join(f"{times}·{rank}·({rows} + {columns})" for rank, rows, columns, times in sums)
        yield Part("adapters of a visit", params, formula, blocks=looped, copies=True)


def injection_parts(spec: ModelSpec) -> Iterator[Part]:
    """The weights of what enters the loop again at every pass."""
    injection = None if spec.loop is None else spec.loop.injection
    looped, H = spec.visits.loop, spec.hidden_size
    first = looped[:1]
    if injection is not None and injection.kind == "concat":
        yield Part("injection", 2 * H * H, f"2·{H}·{H}", blocks=first)
    if injection is not None and injection.kind == "diagonal":
        yield Part("injection gains", 2 * H, f"2·{H}", "gain", first)
        if injection.matrix:
            yield Part("injection", H * H, f"{H}·{H}", blocks=first)
    if injection is not None and injection.params is not None:
        yield Part("injection", injection.params, str(injection.params), blocks=looped, skipped=1)


def _matrices(spec: ModelSpec) -> list[tuple[int, int, int]]:
    """(how many, rows, columns) of the matrices of a dense looped block."""
    H, (n_q, n_kv), F = spec.hidden_size, spec.loop_heads, spec.dense_intermediate_size or 0
    d, d_v = spec.head_dim, spec.value_head_dim or spec.head_dim
    return [(1, H, n_q * d), (1, n_q * d_v, H), (1, H, n_kv * d), (1, H, n_kv * d_v), (2 + spec.gated_mlp, H, F)]


def _value_parts(spec: ModelSpec) -> Iterator[Part]:
    V, d = spec.vocab_size or 0, spec.value_head_dim or spec.head_dim
    looped = set(spec.visits.loop)
    for blocks, n_kv in ((spec.valued - looped, spec.num_key_value_heads), (spec.valued & looped, spec.loop_heads[1])):
        where, gate = tuple(sorted(blocks)), spec.value_embedding_gate
        if where:
            yield Part("value embedding", V * n_kv * d, f"{V}·{n_kv}·{d}", "lookup", where, embedding=True)
        if where and gate is not None:
            yield Part("value embedding gate", gate * n_kv, f"{gate}·{n_kv}", blocks=where)
