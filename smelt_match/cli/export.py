"""``smelt-match export``: a model as other systems read it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from smelt_match.cli import options
from smelt_match.errors import BadInput, close_names

if TYPE_CHECKING:
    from smelt_match.spec.family import Entry

EXAMPLES = """Examples:

  smelt-match export nano_s85 --to hf-unrolled -o nano-hf --vocab-size 64

  smelt-match export nano_s85 --to hf -o nano-looped --vocab-size 64

  smelt-match export nano_s85 --to megatron --vocab-size 64
"""
CHECKPOINTS = ("hf-unrolled", "hf")
TARGETS = (*CHECKPOINTS, "torchtitan", "megatron")
DTYPES = ("float32", "bfloat16")
MAX_CONTEXT = 2**31 - 1


def export(
    spec: Annotated[str, typer.Argument(help="A spec's name, a YAML file, or a config.json.")],
    to: Annotated[str, typer.Option("--to", help="hf-unrolled, hf, torchtitan or megatron.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="PATH",
            parser=options.place("--output"),
            help="The folder to write; a file for torchtitan, megatron.",
        ),
    ] = None,
    vocab_size: Annotated[
        int | None, typer.Option("--vocab-size", metavar="N", help="Where the spec does not state it.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", help="Initialise the weights from it; default: 0.")
    ] = None,
    weights: Annotated[
        Path | None, typer.Option("--weights", metavar="FILE", help="A safetensors file of the model's state dict.")
    ] = None,
    dtype: Annotated[str | None, typer.Option("--dtype", help="float32 (the default) or bfloat16.")] = None,
    context: Annotated[
        int | None,
        typer.Option("--context", metavar="N", help="max_position_embeddings of a checkpoint; default: 4096."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Let -o replace an earlier export.")] = False,
) -> None:
    """Write a model as a checkpoint or a config of another system.

    hf-unrolled: a stock Mixtral or Qwen3-MoE checkpoint with a layer for each
    visit and 1/r folded into the weights, so that engines that know no loops
    serve it. hf: weights stored once, with a modelling file that transformers
    loads by trust_remote_code. torchtitan, megatron: the model's arguments.
    """
    from smelt_match.spec.family import countable, expand

    _choice("--to", to, TARGETS)
    _choice("--dtype", dtype or DTYPES[0], DTYPES)
    found = expand(spec)
    if len(found) != 1:
        raise BadInput(f"{spec}: names {len(found)} models; an export takes one")
    model_spec = countable(found[0])
    _check_function(found[0])
    if to not in CHECKPOINTS:
        named = {"--weights": weights, "--seed": seed, "--dtype": dtype, "--context": context}
        given = [name for name, value in named.items() if value is not None]
        if given:
            raise BadInput(f"{' and '.join(given)}: --to {to} writes a config, which has no weights and no context")
        from smelt_match.export.checkpoint.texts import text_for

        options.check_output(output, force)
        options.emit(text_for(to, model_spec, vocab_size), output, force)
        return
    if output is None:
        raise BadInput(f"--to {to} writes a folder", "name it with -o DIR")
    if weights is not None and seed is not None:
        raise BadInput("--weights and --seed exclude each other")
    if not 0 <= (seed or 0) < 2**63:
        raise BadInput(f"--seed {seed} must be between 0 and 2^63 - 1")
    if context is not None and not 1 <= context <= MAX_CONTEXT:
        raise BadInput(f"--context {context} must be between 1 and {MAX_CONTEXT:,}")
    from smelt_match.export.checkpoint.configs import MAX_POSITIONS, OURS
    from smelt_match.export.checkpoint.limits import check_looped, stock_class
    from smelt_match.folders import check_folder

    check_folder(output, force, OURS)
    if to == "hf":
        check_looped(model_spec)
    else:
        stock_class(model_spec)
    from smelt_match.export.checkpoint.write import build, export_looped, export_unrolled

    model = build(model_spec, vocab_size, weights, seed or 0)
    runs = (export_looped if to == "hf" else export_unrolled)(
        model, output, dtype or DTYPES[0], force, MAX_POSITIONS if context is None else context
    )
    typer.echo(f"wrote {output}: {runs}", err=True)


def _check_function(entry: Entry) -> None:
    """Refuse an imported config whose model computes what a spec cannot say: another function would be exported."""
    left_out = () if entry.imported is None else entry.imported.left_out
    if left_out:
        name = entry.spec.name
        hint = "counting and matching work: no count depends on this"
        raise BadInput("\n".join(f"{name}: a spec cannot say this: {reason}" for reason in left_out), hint)


def _choice(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise BadInput(f"{name} {value[:40]!r} is not one of {', '.join(known)}", close_names(value[:40], known))
