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
    note = f"source: {card.source}" if card.source else ""
    return render(COLUMNS, card_rows(card), shown, note)


def card_rows(card: Card) -> list[dict[str, str]]:
    """The lines of a card."""
    model = _row("model", card.name, "every number below")
    assumed = [_row(f"assumed: {name}", card.config.get(name, "–"), why) for name, why in card.assumed.items()]
    return [model, *_layout(card), *_loop(card), *_params(card), *_flops(card), *_cache(card), *assumed]


def _row(quantity: str, value: Any, how: str) -> dict[str, str]:
    return {"quantity": quantity, "value": f"{value:,}" if isinstance(value, int) else str(value), "how": how}


def _loop(card: Card) -> list[dict[str, str]]:
    """What the loop does besides repeating blocks; a truncated backward pass is in every count of training FLOPs."""
    loop = card.loop
    if loop is None:
        return []
    rows = []
    if loop.passes_drawn is not None:
        drawn = loop.passes_drawn
        rows.append(_row("passes, mean", drawn.mean, f"counted in every line; drawn: {drawn.distribution}"))
        at = f"passes, most: {drawn.most}"
        if drawn.flops_train_per_token_most is None or drawn.kv_elements_per_token_most is None:
            rows.append(_row("passes, most", "unbounded", "no worst case"))
        else:
            rows.append(_row("train FLOPs/token, worst", drawn.flops_train_per_token_most, f"{at}; convention paper"))
            rows.append(_row("KV elements/token, worst", drawn.kv_elements_per_token_most, f"{at}; the model's own"))
    if loop.backward_visits is not None:
        rows.append(
            _row("backward visits", loop.backward_visits, "of a looped block, its last; in every training count")
        )
    if loop.injection is not None:
        costs = f"{loop.injection.flops_train_per_token:,} train FLOPs/token by paper, in the counts below"
        rows.append(_row("injection parameters", loop.injection.params, f"{loop.injection.kind}; {costs}"))
    if loop.part != "block":
        rows.append(_row("repeated part", loop.part.replace("_", "-"), "the other half of a looped block runs once"))
    if loop.untied:
        rows.append(_row("untied", ", ".join(loop.untied), "stored for every visit"))
    if loop.lora_rank is not None:
        rows.append(_row("adapter rank", loop.lora_rank, "on each matrix of a looped block, for every visit"))
    if loop.norm_after_visit:
        rows.append(_row("norm after a pass", "yes", "one, run at every pass"))
    return rows


def _layout(card: Card) -> list[dict[str, str]]:
    layout = card.layout
    looped = f"layers {layout.looped_layers} run more than once" if layout.looped_layers else "no loop"
    rows = [
        _row("layout", layout.text, f"visits {layout.visits}"),
        _row("stored, executed layers", f"{layout.num_layers}, {layout.executed_layers}", looped),
    ]
    if layout.dense_layers:
        rows.append(
            _row("dense feed-forward width", card.config["dense_intermediate_size"], f"layers {layout.dense_layers}")
        )
    return rows


def _params(card: Card) -> list[dict[str, str]]:
    params = card.params
    shares = f"{card.config['experts_per_token']} of {card.config['num_experts']} experts"
    unknown, lines = "unknown", "two" if params.params_value_tables is None else "three"
    rows = [
        _row("stored parameters", params.params_total, "without embedding, value tables and output head"),
        *(
            [_row("value tables", params.params_value_tables, "rows that layers add to their values, looked up")]
            if params.params_value_tables is not None else []
        ),
        _row(
            "embedding and output head",
            unknown if params.params_embedding_and_head is None else params.params_embedding_and_head,
            "tied weights once" if params.params_embedding_and_head is not None else "the spec states no vocab_size",
        ),
        _row("stored in all", params.params_total_with_embeddings or unknown, f"the {lines} lines above"),
        _row(
            "active parameters", params.params_active_one_traversal,
            "one traversal, each block once" + (f", {shares}" if card.sparsity else "") + ", without embeddings",
        ),
        _row("executed parameters", params.params_executed_every_visit, "every visit, without embeddings"),
        _row(
            "active, with embeddings", params.params_active_with_embeddings or unknown,
            "one traversal" + ", value tables" * bool(params.params_value_tables) + ", embedding and output head",
        ),
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
