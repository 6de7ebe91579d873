"""A budget card as a table: each number with how it was counted."""

from __future__ import annotations

from typing import Any

from smelt_match.audit.card import Card
from smelt_match.export.table import Column, Format, render
from smelt_match.units import parse_fraction, short_fraction

POLICIES = {
    "visit": "a slot for each visit",
    "last": "the last visit's alone",
    "shared": "the first visit's, shared",
    "ring": "the last few visits'",
}
COLUMNS = (
    Column("quantity", "budget", left=True),
    Column("value", "value"),
    Column("how", "counted as", left=True),
)


def card_text(card: Card, shown: Format) -> str:
    """The card of one model."""
    title = {"md": f"**{card.name}**\n\n", "table": f"{card.name}\n\n"}.get(shown, "")
    note = f"source: {card.source}" if card.source else ""
    return title + render(COLUMNS, card_rows(card), shown, note)


def card_rows(card: Card) -> list[dict[str, str]]:
    """The lines of a card."""
    return [*_layout(card), *_params(card), *_flops(card), *_cache(card)]


def _row(quantity: str, value: Any, how: str) -> dict[str, str]:
    return {"quantity": quantity, "value": f"{value:,}" if isinstance(value, int) else str(value), "how": how}


def _layout(card: Card) -> list[dict[str, str]]:
    layout = card.layout
    looped = f"layers {layout.looped_layers} run more than once" if layout.looped_layers else "no loop"
    return [
        _row("layout", layout.text, f"visits {layout.visits}"),
        _row("stored, executed layers", f"{layout.num_layers}, {layout.executed_layers}", looped),
    ]


def _params(card: Card) -> list[dict[str, str]]:
    params = card.params
    shares = f"{card.config['experts_per_token']} of {card.config['num_experts']} experts"
    unknown = "unknown"
    rows = [
        _row("stored parameters", params.params_total, "without embedding and output head"),
        _row(
            "active parameters", params.params_active_one_traversal,
            "one traversal, each block once" + (f", {shares}" if card.sparsity else "") + ", without embeddings",
        ),
        _row("executed parameters", params.params_executed_every_visit, "every visit, without embeddings"),
        _row(
            "active, with embeddings", params.params_active_with_embeddings or unknown,
            "one traversal, embedding and output head",
        ),
        _row("stored, with embeddings", params.params_total_with_embeddings or unknown, "embedding and output head"),
    ]  # fmt: skip
    if card.sparsity is not None:
        rows.append(_row("sparsity S", f"{card.sparsity.value * 100:.2f} %", f"Eq. 1 against {card.sparsity.control}"))
    return rows


def _flops(card: Card) -> list[dict[str, str]]:
    context = parse_fraction(card.context.mean_attended_context, "mean_attended_context")
    rows = [_row("mean attended context c", short_fraction(context), card.context.origin)]
    for line in card.flops:
        attended = short_fraction(parse_fraction(line.attended_tokens, "attended_tokens"))
        how = f"attention billed for {attended} tokens" if line.flops_attention_train_per_token else "no attention"
        head = line.output_head.replace("unknown vocabulary", "left out, unknown vocabulary")
        rows.append(_row(f"train FLOPs/token, {line.convention}", line.flops_train_per_token, f"{how}; head {head}"))
    return rows


def _cache(card: Card) -> list[dict[str, str]]:
    context = card.context
    documents = "one document" if context.documents == 1 else f"{context.documents:,} documents"
    rows = []
    for line in card.kv_cache:
        how = f"{POLICIES[line.policy]}, {line.slots:,} slots" + "; the model's own" * line.own
        rows += [
            _row("KV elements/token", line.kv_elements_per_token, how),
            _row(f"KV bytes/token, {card.kv_dtype}", line.kv_bytes_per_token, how),
            _row(
                f"KV bytes of {context.tokens:,} tokens, logical", line.kv_bytes_logical,
                f"{POLICIES[line.policy]}, {documents}",
            ),
            _row(
                f"KV bytes of {context.tokens:,} tokens, allocated", line.kv_bytes_allocated,
                f"{POLICIES[line.policy]}, pages of {card.kv_page_tokens:,} tokens",
            ),
        ]  # fmt: skip
    return rows
