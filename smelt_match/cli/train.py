"""``smelt-match train``: one spec, trained with a trunk and branches."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from smelt_match.cli import options
from smelt_match.errors import BadInput
from smelt_match.units import parse_count

if TYPE_CHECKING:
    from smelt_match.export.table import Format
    from smelt_match.train.config import TrainConfig
    from smelt_match.train.progress import Progress, Report
    from smelt_match.train.run import LegResult

EXAMPLES = """Examples:

  smelt-match corpus build --sample -o bytes

  smelt-match train nano_s0 --corpus bytes --run r --tokens 2k --branches none
"""
SECONDS_BETWEEN_LINES = 2.0


def train(
    spec: Annotated[str, typer.Argument(help="A spec's name, a YAML file, or a config.json.")],
    corpus: Annotated[Path, typer.Option("--corpus", metavar="DIR", help="From `smelt-match corpus build`.")],
    run: Annotated[
        Path,
        typer.Option(
            "--run",
            "--out",
            metavar="DIR",
            parser=options.place("--run"),
            help="The run's folder; an unfinished run goes on.",
        ),
    ],
    tokens: Annotated[str, typer.Option("--tokens", metavar="N", help="Of the trunk, such as 200k, 2M or 205B.")],
    branches: Annotated[
        str | None,
        typer.Option("--branches", metavar="STEPS", help="Fork after these steps, such as 50,100; or none."),
    ] = None,
    branch_tokens: Annotated[
        str | None, typer.Option("--branch-tokens", metavar="N", help="Of each branch; default: 10/205 of the trunk.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Of weights and of the order of the data.")] = 0,
    context: Annotated[int | None, typer.Option("--context", metavar="N", help="Tokens of a context.")] = None,
    rows: Annotated[int | None, typer.Option("--rows", metavar="N", help="Contexts of a step, over all ranks.")] = None,
    micro_rows: Annotated[
        int | None, typer.Option("--micro-rows", metavar="N", help="Contexts that one rank computes at a time.")
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option("--lr", metavar="X", help="The constant rate; default: by size and tokens.")
    ] = None,
    warmup_steps: Annotated[int | None, typer.Option("--warmup-steps", metavar="N", help="Steps up to it.")] = None,
    weight_decay: Annotated[float | None, typer.Option("--weight-decay", metavar="X", help="Default: 0.1.")] = None,
    clip_norm: Annotated[float | None, typer.Option("--clip-norm", metavar="X", help="Default: 1.")] = None,
    balance: Annotated[str, typer.Option("--balance", help="loss: by a loss; bias: by a bias in routers.")] = "loss",
    balance_coefficient: Annotated[
        float | None, typer.Option("--balance-coefficient", metavar="X", help="Of that loss; default: 0.01.")
    ] = None,
    residual_scale: Annotated[
        str | None, typer.Option("--residual-scale", help="1/r, or 1 for plain residuals; default: the spec's, or 1/r.")
    ] = None,
    device: Annotated[str | None, typer.Option("--device", help="cpu or cuda; default: cuda if there.")] = None,
    dtype: Annotated[
        str | None, typer.Option("--dtype", help="float32, or bfloat16 by autocast; default: bfloat16 on cuda.")
    ] = None,
    compiled: Annotated[bool, typer.Option("--compile", help="Compile each block.")] = False,
    recompute: Annotated[bool, typer.Option("--recompute", help="Compute activations again, to save memory.")] = False,
    validation_tokens: Annotated[
        int | None,
        typer.Option("--validation-tokens", metavar="N", help="The most of each source."),
    ] = None,
    log_every: Annotated[int | None, typer.Option("--log-every", metavar="N", help="Steps; default: 10.")] = None,
    save_every: Annotated[int | None, typer.Option("--save-every", metavar="N", help="Steps; default: 1000.")] = None,
    keep_all: Annotated[bool, typer.Option("--keep-all", help="Keep every checkpoint.")] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write its files, too; needs [train].")] = False,
    form: options.OutputFormat = "table",
    output: options.Output = None,
    force: options.Force = False,
) -> None:
    """Train a model: a constant trunk, and cosine branches over fresh tokens.

    The same command again goes on with a run that was stopped. SIGTERM, which
    schedulers send before they kill, saves after the step that runs and exits
    with 143. Under torchrun, weights are sharded over its ranks; say --out
    there, since torchrun takes --run for an option of its own. The table has
    the validation loss at the end of each branch and of the trunk. Models and
    logs are in the run's folder: each branch's model in the branch's own, and
    at the top the model at the end of the last branch, or of a trunk without
    branches.
    """
    from smelt_match.spec.family import countable, expand
    from smelt_match.train.config import plan_run
    from smelt_match.train.run import train_run
    from smelt_match.train.schedule import forks_option
    from smelt_match.train.shards import Shards
    from smelt_match.train.stop import on_signal
    from smelt_match.train.world import check_device, default_device

    shown = options.format_option(form)
    options.check_output(output, force)
    found = expand(spec)
    if len(found) != 1:
        raise BadInput(f"{spec}: names {len(found)} models; a run trains one")
    where = device or default_device()
    check_device(where)
    config = plan_run(
        countable(found[0]), Shards.open(corpus), parse_count(tokens, "--tokens"), forks_option(branches),
        branch_tokens=None if branch_tokens is None else parse_count(branch_tokens, "--branch-tokens"),
        seed=seed, context=context, rows=rows, micro_rows=micro_rows, learning_rate=learning_rate,
        warmup_steps=warmup_steps, weight_decay=weight_decay, clip_norm=clip_norm, balance=balance,
        balance_coefficient=balance_coefficient, residual_scale=residual_scale, device=where,
        dtype=dtype or ("bfloat16" if where == "cuda" else "float32"), compile=compiled, recompute=recompute,
        validation_tokens=validation_tokens, log_every=log_every, save_every=save_every,
        keep_checkpoints="all" if keep_all else "last",
    )  # fmt: skip
    with on_signal(signal.SIGTERM) as asked_to_stop:
        results = train_run(config, run, _reporter(), tensorboard, asked_to_stop)
    if _leads():
        options.emit(_text(config, results, shown), output, force)


def _leads() -> bool:
    import os

    return os.environ.get("RANK", "0") == "0"


def _reporter() -> Report:
    """A line on stderr now and then; on a terminal, over the one before."""
    last = 0.0
    terminal = sys.stderr is not None and sys.stderr.isatty()

    def report(progress: Progress) -> None:
        nonlocal last
        now, end = time.monotonic(), progress.step == progress.steps
        if now - last < (0.2 if terminal else SECONDS_BETWEEN_LINES) and not end:
            return
        last = now
        typer.echo(f"\r\x1b[K{progress}" if terminal else str(progress), err=True, nl=end or not terminal)

    return report


def _text(config: TrainConfig, results: list[LegResult], shown: Format) -> str:
    from smelt_match.export import columns
    from smelt_match.export.document import SCHEMA_VERSION, to_json
    from smelt_match.export.table import render
    from smelt_match.train.run import leg_json

    rows = [leg_json(result) for result in results]
    if shown == "json":
        document = {"schema_version": SCHEMA_VERSION, "spec": config.spec.name, "tokens_per_step":
                    config.tokens_per_step, "learning_rate": config.learning_rate, "legs": rows}  # fmt: skip
        return to_json(document)
    note = (
        f"{config.spec.name}: {config.tokens_per_step:,} tokens a step, learning rate {config.learning_rate:g}; loss "
        "in nats per token, of all validation tokens, as the mean over sources, and of a category's tokens; without "
        "the balancing loss"
    )
    names = results[0].validation.categories
    categories = columns.category_columns(names)
    for row, result in zip(rows, results, strict=True):
        row |= {f"category_{name}": result.validation.loss(name) for name in names}
    if shown != "table":
        return render((*columns.LEGS, *categories), rows, shown, note)
    # Beside the other columns, categories would make the table wider than most terminals.
    return render(columns.LEGS, rows, shown) + "\n" + render((columns.LEGS[0], *categories), rows, shown, note)
