"""``smelt-match ablate``: the sweeps of the paper, matched at every point, trained, and compared with their noise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from smelt_match.cli import options
from smelt_match.errors import AnswerIsNo

if TYPE_CHECKING:
    from smelt_match.ablate.variants import Kind

app = typer.Typer(
    name="ablate",
    help="Sweep the span, the depth or the number of visits of a loop: every point is matched to the same baseline, "
    "trained on the same tokens, and compared with its noise.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

HELP: dict[Kind, str] = {
    "span": "Loop none, two, four … all of the middle layers twice (the paper's Sec. 3.3).",
    "depth": "Baselines and looped models of several depths, all matched to the reference (the paper's Sec. 3.4).",
    "count": "Visit the middle half once, twice, three and four times (the paper's Sec. 3.5).",
}
EXAMPLES: dict[Kind, str] = {
    "span": """Examples:

  smelt-match ablate span --scale 200m --sparsity s85,s95 --plan

  smelt-match ablate span --points 0,4,8 --seeds 3 --plan""",
    "depth": """Examples:

  smelt-match ablate depth --scale 200m --plan

  smelt-match ablate depth --points 9,12,8x2,12x2 --tokens 1M --plan""",
    "count": """Examples:

  smelt-match ablate count --scale nano --tokens 200k --seeds 1 --plan

  smelt-match ablate count --points 1-2 --tokens 1k --validation-tokens 64 -y""",
}


def _command(kind: Kind) -> Callable[..., int]:
    """The command of one kind of sweep; all kinds take the same options."""

    def sweep(
        scale: Annotated[str, typer.Option("--scale", help="nano, 100m, 200m, 600m or 1.6b.")] = "nano",
        sparsity: Annotated[
            str, typer.Option("--sparsity", metavar="S[,S]", help="s85, s95, s97; several make several sweeps in one.")
        ] = "s85",
        baseline: Annotated[
            str | None,
            typer.Option("--baseline", "-b", help="Another baseline: a spec's name or file, instead of --scale."),
        ] = None,
        points: Annotated[
            str | None,
            typer.Option(
                "--points",
                help="Other points than the paper's. span: looped layers 0,2,4; count: visits 1-4; depth: layers "
                "9,12 of unlooped models and 8x2,10x2 of looped ones.",
            ),
        ] = None,
        heads: Annotated[str, typer.Option("--heads", help="uniform or split, one policy for all points.")] = "uniform",
        grid: Annotated[str | None, typer.Option("--grid", help="A grid's name or YAML file.")] = None,
        tokens: Annotated[
            str | None,
            typer.Option(
                "--tokens",
                metavar="N",
                help="Tokens of the trunk: 200k, 2M, 205B. Default: 2M for nano, else the paper's.",
            ),
        ] = None,
        branches: Annotated[
            str | None,
            typer.Option(
                "--branches",
                metavar="N[,N]",
                help='Where cosine branches fork off the trunk: shares such as "25%,100%", tokens such as 50k,200k, or '
                "`paper` for its six. Default: one at the end.",
            ),
        ] = None,
        seeds: Annotated[int, typer.Option("--seeds", min=1, max=1000, metavar="N", help="Seeds 0 to N − 1.")] = 1,
        shortlist: Annotated[
            int,
            typer.Option(
                "--shortlist",
                min=1,
                max=64,
                metavar="K",
                help="Let the first K matches of each point compete in short runs.",
            ),
        ] = 1,
        corpus: Annotated[
            Path | None, typer.Option("--corpus", metavar="DIR", help="A built corpus; default: the built-in one.")
        ] = None,
        context: Annotated[int | None, typer.Option("--context", min=2, help="Tokens of a context.")] = None,
        rows: Annotated[int | None, typer.Option("--rows", min=1, help="Contexts of a step.")] = None,
        validation_tokens: Annotated[
            int | None, typer.Option("--validation-tokens", min=1, metavar="N", help="The most of each source.")
        ] = None,
        learning_rate: Annotated[
            float | None, typer.Option("--learning-rate", "--lr", help="Peak rate, the same for all arms.")
        ] = None,
        lr_sweep: Annotated[
            bool,
            typer.Option(
                "--lr-sweep", help="A peak rate for each point: the best of short runs around the shared one."
            ),
        ] = False,
        dtype: Annotated[
            str | None, typer.Option("--dtype", help="float32 or bfloat16. Default: bfloat16 with a GPU.")
        ] = None,
        out: Annotated[
            Path | None,
            typer.Option(
                "--out", metavar="DIR", parser=options.place("--out"), help="The sweep's folder; default: runs/ablate-…"
            ),
        ] = None,
        reuse: Annotated[
            list[Path] | None,
            typer.Option(
                "--reuse",
                metavar="DIR",
                help="The folder of another sweep: its arms are taken over where they are the same runs. Repeatable.",
            ),
        ] = None,
        launcher: Annotated[str, typer.Option("--launcher", help="local, slurm or ray.")] = "local",
        threads: Annotated[
            int, typer.Option("--threads", min=1, max=1024, help="Cores of an arm, where there is no GPU.")
        ] = 1,
        slurm: Annotated[
            list[str] | None,
            typer.Option(
                "--slurm", metavar="NAME=VALUE", help="An option of sbatch, such as partition=gpu. Repeatable."
            ),
        ] = None,
        plan: Annotated[bool, typer.Option("--plan", help="Print the plan and stop.")] = False,
        probe: Annotated[
            bool, typer.Option("--probe/--no-probe", help="Measure a few steps, to say how long it takes.")
        ] = True,
        yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask, however long it takes.")] = False,
        form: options.OutputFormat = "table",
        output: options.Output = None,
        force: options.Force = False,
    ) -> int:
        from smelt_match.cli import ablating

        shown = options.format_option(form)
        options.check_output(output, force)
        asked = ablating.Asked(
            kind=kind, scale=scale, sparsity=sparsity, baseline=baseline, points=points, heads=heads, grid=grid,
            tokens=tokens, branches=branches, seeds=seeds, shortlist=shortlist, corpus=corpus, context=context,
            rows=rows, validation_tokens=validation_tokens, learning_rate=learning_rate,
            lr_sweep=lr_sweep, dtype=dtype,
        )  # fmt: skip
        parameters = ablating.sbatch_options(slurm or [])
        launch = ablating.Launch(out or asked.folder, launcher, threads, parameters, probe, yes, tuple(reuse or ()))
        ablating.check_launch(launch)
        if plan:
            options.emit(ablating.only_plan(asked, shown), output, force)
            return 0
        text, failures = ablating.run_sweep(asked, launch, shown)
        options.emit(text, output, force)
        if failures:
            lines = [f"{name}: {reason}" for name, reason in failures.items()]
            raise AnswerIsNo(
                "\n".join(lines), "the same command tries these arms again and leaves the others as they are"
            )
        return 0

    return sweep


for _kind in HELP:
    app.command(_kind, help=HELP[_kind], epilog=EXAMPLES[_kind])(_command(_kind))


@app.command("status", epilog="Examples:\n\n  smelt-match ablate status runs/ablate-count-nano-s85")
def status(
    folder: Annotated[Path, typer.Argument(help="The folder of a sweep.")],
    form: options.OutputFormat = "table",
    output: options.Output = None,
    force: options.Force = False,
) -> int:
    """Say how far each arm and short run of a sweep is; the command that began the sweep goes on with it."""
    from smelt_match.ablate.run import status as states
    from smelt_match.cli.ablation import status_text

    shown = options.format_option(form)
    options.check_output(output, force)
    options.emit(status_text(states(folder), shown), output, force)
    return 0
