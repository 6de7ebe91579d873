"""``smelt-match card``: the costs of a model as a paper or a model card should carry them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from smelt_match.cli import options
from smelt_match.errors import BadInput, close_names

if TYPE_CHECKING:
    from smelt_match.audit.card import Dtype

EXAMPLES = """Examples:

  smelt-match card 200m_s95_smelt

  smelt-match card Mixtral-8x7B-v0.1/config.json --context 32768 --format tex

  smelt-match card --schema"""


def card(
    spec: Annotated[str | None, typer.Argument(help="A spec's name, a YAML file, or a config.json.")] = None,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON Schema of a card instead.")] = False,
    page_tokens: Annotated[
        int, typer.Option("--page-tokens", min=1, max=2**20, metavar="N", help="Tokens of a cache page; vLLM's is 16.")
    ] = 16,
    dtype: Annotated[str, typer.Option("--kv-dtype", help="Of the cache: bf16, fp16, fp32 or fp8.")] = "bf16",
    vocab_size: Annotated[
        int | None,
        typer.Option("--vocab-size", min=1, max=2**31, metavar="N", help="Where the spec does not state it."),
    ] = None,
    mean_context: options.MeanContext = None,
    context: options.ContextTokens = None,
    lengths: options.Lengths = None,
    window: options.Window = None,
    form: options.OutputFormat = "md",
    output: options.Output = None,
    force: options.Force = False,
) -> None:
    """Write the budget card of a model: parameters by four meanings, FLOPs by convention, KV cache by policy.

    The cache is given for the documents of the context, in bytes that are used and in whole pages of an engine.
    """
    from smelt_match.audit.card import Card
    from smelt_match.audit.card import card as card_of
    from smelt_match.export.carded import card_text
    from smelt_match.export.document import to_json
    from smelt_match.spec.family import countable

    shown = options.format_option(form)
    options.check_output(output, force)
    kind = _dtype(dtype)
    override = options.context_option(mean_context, context, lengths, window)
    if schema == (spec is not None):
        raise BadInput("card: name a model, or ask for --schema", "smelt-match card 200m_s95_smelt")
    if spec is None:
        text = to_json(Card.json_schema())
    else:
        model = options.with_vocabulary(countable(options.one_entry(spec)), vocab_size)
        found = card_of(model, override, page_tokens, kind)
        text = to_json(found.model_dump(mode="json")) if shown == "json" else card_text(found, shown)
    options.emit(text, output, force)


def _dtype(text: str) -> Dtype:
    from smelt_match.audit.card import DTYPE_BYTES

    if text not in DTYPE_BYTES:
        raise BadInput(
            f"--kv-dtype {text[:40]!r} is not one of {', '.join(DTYPE_BYTES)}", close_names(text, DTYPE_BYTES)
        )
    return text  # type: ignore[return-value]
