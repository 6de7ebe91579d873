"""``smelt-match corpus``: build, show and tokenise what models are trained on."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from smelt_match.cli import options
from smelt_match.errors import BadInput
from smelt_match.units import parse_fraction

if TYPE_CHECKING:
    from fractions import Fraction

    from smelt_match.train.corpus.build import Recipe
    from smelt_match.train.corpus.inputs import Input, Reading
    from smelt_match.train.manifest import Manifest

BUILD = """Examples:

  smelt-match corpus build --sample -o sample-corpus

  smelt-match corpus build Web/mine=pages -o corpus
"""
TOKENIZER = """Examples:

  smelt-match corpus tokenizer --sample --vocab-size 512 -o tokenizer.json

  smelt-match corpus build --sample --tokenizer tokenizer.json -o bpe-corpus
"""
SHOW = """Examples:

  smelt-match corpus show sample-corpus
"""
app = typer.Typer(help="Build, show and tokenise a training corpus.", no_args_is_help=True, rich_markup_mode=None)

Inputs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[CATEGORY/SOURCE=]PATH",
        help="Any of: .jsonl(.gz), .parquet, a folder of text files, a data set saved to disk by datasets, .npy or "
        ".bin tokens with a .json sidecar. Without any: what needs no download.",
    ),
]
Sample = Annotated[bool, typer.Option("--sample", help="The committed sample alone: the same everywhere.")]
TextField = Annotated[str, typer.Option("--text-field", help="Where a record has its text.")]
SourceField = Annotated[str, typer.Option("--source-field", help="Where it has its source.")]
CategoryField = Annotated[str, typer.Option("--category-field", help="Where it has its category.")]
Glob = Annotated[str, typer.Option("--glob", help="Which files of a folder of texts.")]
MaxBad = Annotated[str, typer.Option("--max-bad", help="The share of an input's items that may be unusable.")]
ValidationShare = Annotated[str, typer.Option("--validation-share", help="Share of documents that are held out.")]


@app.command("build", epilog=BUILD)
def build(
    inputs: Inputs = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", parser=options.place("--output"), help="The folder to write."),
    ] = None,
    sample: Sample = False,
    tokenizer: Annotated[
        str | None, typer.Option("--tokenizer", metavar="FILE", help="A tokenizer.json; default: bytes.")
    ] = None,
    eos: Annotated[
        str | None, typer.Option("--eos", metavar="TOKEN", help="Its token between documents, if not a usual one.")
    ] = None,
    text_field: TextField = "text",
    source_field: SourceField = "source",
    category_field: CategoryField = "category",
    glob: Glob = "*",
    validation_share: ValidationShare = "5%",
    branch_share: Annotated[
        str, typer.Option("--branch-share", help="Share of documents kept for the schedule's branches.")
    ] = "8%",
    max_validation_tokens: Annotated[
        int, typer.Option("--max-validation-tokens", metavar="N", min=1, help="The most of each source.")
    ] = 100_000,
    near: Annotated[
        str, typer.Option("--near", help="Similarity at which training text copies held-out text, or none.")
    ] = "0.8",
    max_bad: MaxBad = "0.1%",
    force: Annotated[bool, typer.Option("--force", help="Let -o replace an earlier corpus.")] = False,
) -> None:
    """Build a tokenised corpus: a trunk, a pool for branches, and validation.

    Documents are split by a hash of their text. Copies are removed: exact
    ones everywhere; near ones (MinHash) of validation text from training.
    """
    if output is None:
        raise BadInput("a corpus is a folder", "name it with -o DIR")
    recipe = _recipe(validation_share, branch_share, max_validation_tokens, near)
    from smelt_match.folders import check_folder
    from smelt_match.train.corpus.build import OURS
    from smelt_match.train.corpus.build import build as build_corpus
    from smelt_match.train.corpus.encoders import find_encoder
    from smelt_match.train.corpus.inputs import encoder_for

    check_folder(output, force, OURS)
    found, reading = _reading(
        inputs or [], sample, text_field, source_field, category_field, glob, _share("--max-bad", max_bad)
    )
    encoder = encoder_for(found, tokenizer, eos) if found else find_encoder(tokenizer or "bytes", eos)
    manifest = build_corpus(reading, encoder, output, recipe, force, _progress())
    _tell(manifest, reading, output)


@app.command("tokenizer", epilog=TOKENIZER)
def tokenizer(
    inputs: Inputs = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", parser=options.place("--output"), help="The file to write."),
    ] = None,
    vocab_size: Annotated[int, typer.Option("--vocab-size", metavar="N", help="Tokens, the separator too.")] = 4096,
    sample: Sample = False,
    text_field: TextField = "text",
    source_field: SourceField = "source",
    category_field: CategoryField = "category",
    glob: Glob = "*",
    validation_share: ValidationShare = "5%",
    max_bad: MaxBad = "0.1%",
    force: options.Force = False,
) -> None:
    """Train a byte-level BPE tokenizer on the documents that are not held out."""
    if output is None:
        raise BadInput("a tokenizer is a file", "name it with -o FILE")
    from smelt_match.files import write_atomic
    from smelt_match.train.corpus.encoders import train_tokenizer

    options.check_output(output, force)
    shares = _recipe(validation_share, "0", 1, "none").shares
    found, reading = _reading(
        inputs or [], sample, text_field, source_field, category_field, glob, _share("--max-bad", max_bad)
    )
    ready = [str(each.path) for each in found if each.kind == "tokens"]
    if ready:
        raise BadInput(f"{ready[0]}: holds ready tokens; a tokenizer learns from text")
    texts = (each.text for each in reading.read() if shares.split(each.key) != "validation")
    write_atomic(output, train_tokenizer(texts, vocab_size), force)
    named = shlex.quote(str(output))
    typer.echo(f"wrote {output}; next: smelt-match corpus build --tokenizer {named} -o DIR", err=True)


@app.command("show", epilog=SHOW)
def show(
    corpus: Annotated[Path, typer.Argument(help="A corpus folder.")],
    check: Annotated[bool, typer.Option("--check", help="Read all of it and compare it with its digest.")] = False,
    provenance: Annotated[bool, typer.Option("--provenance", help="Show where its documents came from.")] = False,
    form: options.OutputFormat = "table",
    output: options.Output = None,
    force: options.Force = False,
) -> None:
    """Show what a corpus holds: tokens by source and split, vocabulary, digest."""
    from smelt_match.export import columns
    from smelt_match.export.document import to_json
    from smelt_match.export.table import render
    from smelt_match.train.shards import Shards

    shown = options.format_option(form)
    options.check_output(output, force)
    shards = Shards.open(corpus)
    if check:
        shards.verify()
    if shown == "json":
        options.emit(to_json(shards.manifest.model_dump(mode="json")), output, force)
        return
    if provenance:
        rows = [origin.model_dump() for origin in shards.manifest.provenance]
        options.emit(render(columns.PROVENANCE, rows, shown), output, force)
        return
    options.emit(render(columns.CORPUS, _rows(shards.manifest), shown, _note(shards.manifest)), output, force)


def _rows(manifest: Manifest) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for source in manifest.sources:
        row: dict[str, object] = {"source": source.name, "category": source.category}
        for split in ("trunk", "branch", "validation"):
            row |= {f"{name}_{split}": value for name, value in getattr(source, split).model_dump().items()}
        rows.append(row)
    return rows


def _note(manifest: Manifest) -> str:
    totals = {
        split: sum(getattr(source, split).tokens for source in manifest.sources)
        for split in ("trunk", "branch", "validation")
    }
    return (
        f"{totals['trunk']:,} trunk, {totals['branch']:,} branch and {totals['validation']:,} validation tokens, one "
        f"separator a document among them; vocabulary of {manifest.vocab_size:,} ({manifest.tokenizer.kind})\n"
        f"digest {manifest.digest}"
    )


def _reading(
    inputs: list[str], sample: bool, text: str, source: str, category: str, glob: str, max_bad: Fraction
) -> tuple[list[Input], Reading]:
    """The inputs, and what they read as; without inputs, what is built in."""
    from smelt_match.train.corpus.builtin import BuiltIn
    from smelt_match.train.corpus.inputs import Input, Inputs
    from smelt_match.train.corpus.texts import Fields

    if inputs and sample:
        raise BadInput(f"--sample is a corpus of its own, and {inputs[0]} is given too")
    if not inputs:
        return [], BuiltIn(sample)
    if not glob or glob.startswith("/") or ".." in glob:
        raise BadInput(f"--glob {glob!r}: a pattern for names inside the folder, such as '*.txt'")
    fields = Fields(text, source, category)
    found = [Input.parse(each, fields) for each in inputs]
    return found, Inputs(found, glob, max_bad)


def _recipe(validation: str, branch: str, max_validation_tokens: int, near: str) -> Recipe:
    from smelt_match.train.corpus.build import Recipe
    from smelt_match.train.corpus.document import Shares

    shares = Shares(_share("--validation-share", validation), _share("--branch-share", branch))
    if shares.validation + shares.branch >= 1:
        raise BadInput(f"--validation-share {validation} and --branch-share {branch} leave nothing for training")
    threshold = None if near == "none" else parse_fraction(near, "--near")
    if threshold is not None and not 0 < threshold <= 1:
        raise BadInput(f"--near {near}: a similarity above 0 and at most 1, or none")
    return Recipe(shares, max_validation_tokens, threshold)


def _share(name: str, text: str) -> Fraction:
    value = parse_fraction(text, name)
    if not 0 <= value < 1:
        raise BadInput(f"{name} {text}: a share from 0 to less than 1, such as 5%")
    return value


def _progress() -> Callable[[str, int], None]:
    """Tells a terminal, every other second, how far it is."""
    last = time.monotonic()

    def tell(doing: str, documents: int) -> None:
        nonlocal last
        if sys.stderr is not None and sys.stderr.isatty() and time.monotonic() - last > 2:
            last = time.monotonic()
            typer.echo(f"{doing}: {documents:,} documents", err=True)

    return tell


def _tell(manifest: Manifest, reading: Reading, output: Path) -> None:
    """What was left out, what is thin, and what was written."""
    removed = manifest.removed
    for line in reading.skipped():
        typer.echo(f"left out: {line}", err=True)
    typer.echo(
        f"removed: {removed.exact:,} copies, {removed.near:,} near copies of held-out documents, "
        f"{removed.empty:,} empty documents, {removed.unusable:,} unusable items, "
        f"{removed.over_cap:,} held-out documents over the cap",
        err=True,
    )
    bare = [source.name for source in manifest.sources if not source.validation.documents]
    if bare:
        typer.echo(f"warning: no held-out documents of {', '.join(bare[:8])}: no validation loss there", err=True)
    typer.echo(f"wrote {output}; next: smelt-match corpus show {shlex.quote(str(output))}", err=True)
