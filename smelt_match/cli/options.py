"""Options that several commands share, and how their texts become values."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from smelt_match.errors import BadInput
from smelt_match.units import parse_fraction

if TYPE_CHECKING:
    from smelt_match.budget.context import Context
    from smelt_match.budget.conventions import Convention
    from smelt_match.export.table import Format
    from smelt_match.spec.family import Entry
    from smelt_match.spec.model import ModelSpec


def place(option: str) -> Callable[[str], Path]:
    """How an option that says where to write is read: an empty text is no path, least of all the current folder."""

    def parse(text: str) -> Path:
        if not str(text).strip():
            raise BadInput(f"{option} {str(text)!r}: an empty path", "name a file or a folder to write")
        return Path(text)

    return parse


FORMATS = ("table", "md", "tex", "csv", "json")

ConventionName = Annotated[
    str,
    typer.Option("--convention", help="How FLOPs are counted: paper, megatron, torchtitan (palm), deepseek, 6n."),
]
IncludeHead = Annotated[
    bool, typer.Option("--include-head", help="Count the output head too; needs the spec's vocab_size.")
]
MeanContext = Annotated[
    str | None,
    typer.Option("--mean-context", metavar="C", help="Mean attended context c in tokens, such as 392 or 783/2."),
]
ContextTokens = Annotated[
    int | None, typer.Option("--context", metavar="N", help="One causal document of N tokens: c = (N+1)/2.")
]
Lengths = Annotated[
    Path | None,
    typer.Option(
        "--lengths", metavar="FILE", help='Document lengths: one a line, or JSON lines with a "length" field.'
    ),
]
Window = Annotated[
    int | None,
    typer.Option("--window", metavar="W", help="Sliding window in tokens; with --context or --lengths."),
]
OutputFormat = Annotated[str, typer.Option("--format", "-f", help="table, md, tex, csv or json.")]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", metavar="PATH", parser=place("--output"), help="Write there instead of to the terminal."
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace a file that exists.")]


def context_option(mean: str | None, tokens: int | None, lengths: Path | None, window: int | None) -> Context | None:
    """The context the options ask for, or None when they leave it to the spec."""
    from smelt_match.budget.context import Context, read_lengths

    given = [name for name, value in (("--mean-context", mean), ("--context", tokens), ("--lengths", lengths))
             if value is not None]  # fmt: skip
    if len(given) > 1:
        raise BadInput(f"{' and '.join(given)} exclude each other")
    if window is not None and (not given or mean is not None):
        raise BadInput(
            f"--window {window}: a window needs the lengths it cuts, not only their mean",
            "add --context N or --lengths FILE",
        )
    if mean is not None:
        return Context.given(parse_fraction(mean, "--mean-context"), "given by --mean-context")
    if tokens is not None:
        return Context.causal(tokens, window)
    if lengths is not None:
        documents = read_lengths(lengths)
        return Context.documents(documents, window, f"{len(documents):,} documents of {lengths.name}")
    return None


def convention_option(name: str, include_head: bool) -> Convention:
    """The convention the options ask for."""
    from smelt_match.budget.conventions import convention

    return convention(name, include_head)


def need_vocabulary(include_head: bool, name: str, vocab_size: int | None) -> None:
    """Refuse `--include-head` for a model whose vocabulary is unknown."""
    if include_head and vocab_size is None:
        raise BadInput(
            f"{name}: --include-head needs vocab_size, which this spec does not state",
            "add vocab_size to a YAML spec",
        )


def one_entry(text: str) -> Entry:
    """The one entry that a spec argument stands for; `BadInput` where it stands for several."""
    from smelt_match.spec.family import expand

    entries = expand(text)
    if len(entries) != 1:
        raise BadInput(f"{text[:80]}: stands for {len(entries)} models; name one")
    return entries[0]


def with_vocabulary(spec: ModelSpec, vocab_size: int | None) -> ModelSpec:
    """The model with a vocabulary where it states none."""
    return spec if vocab_size is None or spec.vocab_size is not None else spec.changed(vocab_size=vocab_size)


def format_option(text: str) -> Format:
    """A format by name."""
    if text not in FORMATS:
        from smelt_match.errors import close_names

        raise BadInput(f"--format {text[:40]!r} is not one of {', '.join(FORMATS)}", close_names(text[:40], FORMATS))
    return text  # type: ignore[return-value]


def check_output(output: Path | None, force: bool) -> None:
    """Refuse an output that could not be written, before any work."""
    from smelt_match.files import check_writable

    if output is not None:
        check_writable(output, force)


def emit(text: str, output: Path | None, force: bool) -> None:
    """The result, to its file or to the terminal."""
    from smelt_match.files import write_atomic

    if output is None:
        if sys.stdout is None:
            raise BadInput("the result cannot be shown: standard output is closed", "write it to a file with -o PATH")
        sys.stdout.write(text)
    else:
        write_atomic(output, text, force)
        typer.echo(f"wrote {output}", err=True)
