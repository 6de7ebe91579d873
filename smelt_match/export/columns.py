"""The columns of the program's tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from smelt_match.export.table import Column
from smelt_match.units import MINUS, billions, grouped, percent


def _share(value: Any) -> str:
    return f"{float(value) * 100:.1f} %".replace("-", MINUS)


def _number(value: Any) -> str:
    return value if isinstance(value, str) else grouped(value)


CONFIG = (
    Column("hidden_size", "H"),
    Column("num_layers", "L"),
    Column("num_experts", "E"),
    Column("expert_intermediate_size", "I"),
    Column("head_dim", "d"),
    Column("query_heads", "n_q"),
    Column("kv_heads", "n_kv"),
    Column("experts_per_token", "k", data_only=True),
    Column("num_attention_heads", "n_q", data_only=True),
    Column("num_key_value_heads", "n_kv", data_only=True),
    Column("loop_num_attention_heads", "loop n_q", data_only=True),
    Column("loop_num_key_value_heads", "loop n_kv", data_only=True),
)
HOW = (
    Column("convention", "convention", data_only=True),
    Column("mean_attended_context", "c", data_only=True),
)
BUDGET = (
    Column("params_active", "active (B)", billions),
    Column("params_total", "total (B)", billions),
    Column("sparsity", "S", _share),
)
COUNTS = (
    Column("flops_train_per_token", "train FLOPs/token", _number),
    Column("kv_elements_per_token", "KV elements/token", _number),
)
DEVIATION = (
    Column("flops_deviation", "flops", percent),
    Column("params_deviation", "params", percent),
    Column("kv_deviation", "kv", percent),
    Column("attention_deviation", "attention", percent),
)
SOLVE = (
    Column("baseline", "baseline", left=True),
    Column("model", "model", left=True),
    *CONFIG,
    *BUDGET,
    *(Column(c.key, c.header, c.text, data_only=True) for c in COUNTS),
    *DEVIATION,
    *HOW,
)
FRONT = (
    Column("baseline", "baseline", left=True),
    Column("model", "policy", left=True),
    *CONFIG,
    *DEVIATION,
    Column("worst", "max(|flops|, |params|)", lambda value: percent(value).lstrip("+")),
    Column("shape_distance", "shape", lambda value: f"{value:.3f}"),
    Column("alignment", "alignment"),
    *HOW,
)
SPECS = (
    Column("name", "name", left=True),
    Column("family", "family", left=True),
    Column("layout", "layout", left=True),
    *CONFIG,
    *BUDGET,
    *COUNTS,
    Column("control", "S against", left=True),
    Column("convention", "convention", left=True),
    Column("mean_attended_context", "c"),
)
LEDGER = (
    Column("component", "component", left=True),
    Column("where", "where", left=True),
    Column("visits", "visits", lambda value: "" if value == "" else str(value)),
    Column("formula", "formula", left=True),
    Column("params_stored", "stored", _number),
    Column("params_active", "active", _number),
    Column("params_executed", "executed", _number),
    Column("flops_train_per_token", "train FLOPs/token", _number),
    Column("kv_elements_per_token", "KV elements/token", _number),
    *HOW,
)
CONVENTION = (
    Column("convention", "convention", left=True),
    Column("attended_tokens", "attended"),
    Column("flops_train_per_token", "train FLOPs/token", _number),
    Column("flops_attention_train_per_token", "of it attention", _number),
    Column("params_total", "stored", _number),
    Column("params_active", "active", _number),
    Column("router", "router"),
    Column("norms", "norms"),
    Column("input_embedding", "embedding"),
    Column("head", "head"),
    Column("attention", "attention"),
    Column("window", "window"),
    Column("source", "source", left=True, data_only=True),
)
LAYOUTS = (
    Column("layout", "layout", left=True),
    Column("num_layers", "L"),
    Column("span", "span"),
    Column("count", "visits"),
    Column("executed_layers", "executed"),
    Column("kv_uniform", "KV floor, uniform", percent),
    Column("kv_width", "n_kv·d"),
    Column("head_dim", "d"),
    Column("kv_split", "KV floor, split", lambda value: value if isinstance(value, str) else percent(value)),
    Column("visits", "visit list", left=True, data_only=True),
)
GRIDS = (
    Column("name", "grid", left=True),
    Column("precision", "precision", left=True),
    Column("envelope", "envelope"),
    Column("notes", "notes", left=True),
)
PROVENANCE = (
    Column("item", "item", left=True),
    Column("origin", "origin", left=True),
    Column("licence", "licence", left=True),
    Column("documents", "documents", _number),
)
CORPUS = (
    Column("source", "source", left=True),
    Column("category", "category", left=True),
    Column("documents_trunk", "trunk documents", _number),
    Column("tokens_trunk", "trunk tokens", _number),
    Column("tokens_branch", "branch tokens", _number),
    Column("documents_validation", "held out", _number),
    Column("tokens_validation", "validation tokens", _number),
    Column("bytes_validation", "validation bytes", _number),
    Column("documents_branch", "branch documents", _number, data_only=True),
    Column("bytes_trunk", "trunk bytes", _number, data_only=True),
    Column("bytes_branch", "branch bytes", _number, data_only=True),
)


def _nats(value: Any) -> str:
    return f"{value:.4f}"


def category_columns(names: Iterable[str], text: Callable[[Any], str] = _nats) -> tuple[Column, ...]:
    """A column for the loss of each category of sources."""
    return tuple(Column(f"category_{name}", name, text) for name in names)


LEGS = (
    Column("leg", "leg", left=True),
    Column("fork_step", "fork step", data_only=True),
    Column("tokens", "tokens", _number),
    Column("validation_loss", "validation loss", _nats),
    Column("validation_loss_mean_sources", "mean over sources", _nats),
    Column("validation_bits_per_byte", "bits per byte", _nats),
)
