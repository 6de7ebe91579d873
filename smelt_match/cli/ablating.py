"""From the options of ``smelt-match ablate`` to a plan, and from a plan to a table."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from smelt_match.errors import BadInput, Stopped, close_names
from smelt_match.units import parse_count

if TYPE_CHECKING:
    from smelt_match.ablate.launch import Launcher
    from smelt_match.ablate.plan import Plan
    from smelt_match.ablate.points import Point
    from smelt_match.ablate.sweep import Sweep
    from smelt_match.ablate.variants import Kind
    from smelt_match.export.table import Format
    from smelt_match.match.problem import Policy
    from smelt_match.spec.family import Entry

SCALES = ("nano", "100m", "200m", "600m", "1.6b")
SPARSITIES = ("s85", "s95", "s97")
LAUNCHERS = ("local", "slurm", "ray")
DTYPES = ("float32", "bfloat16")
NANO_TOKENS = "2M"
PAPER_ROWS = 256  # sequences of a step (arXiv 2609.01343v3, Sec. 3.1)
AN_HOUR = 3600.0


@dataclass(frozen=True)
class Asked:
    """The options that say what is trained."""

    kind: Kind
    scale: str
    sparsity: str
    baseline: str | None
    points: str | None
    heads: str
    grid: str | None
    tokens: str | None
    branches: str | None
    seeds: int
    shortlist: int
    corpus: Path | None
    context: int | None
    rows: int | None
    validation_tokens: int | None
    learning_rate: float | None
    lr_sweep: bool
    dtype: str | None

    def __post_init__(self) -> None:
        chosen("--heads", self.heads, ("uniform", "split"))
        if self.dtype is not None:
            chosen("--dtype", self.dtype, DTYPES)

    @property
    def policy(self) -> Policy:
        """The head policy of every point."""
        return "split" if self.heads == "split" else "uniform"

    @property
    def names(self) -> list[str]:
        """The baselines by name: ``--baseline``, or the scale with each sparsity."""
        if self.baseline is not None:
            return [self.baseline]
        scale = chosen("--scale", self.scale.lower(), SCALES)
        parts = dict.fromkeys(part.strip().lower() for part in self.sparsity.split(","))
        return [f"{scale}_{chosen('--sparsity', part, SPARSITIES)}" for part in parts]

    @property
    def folder(self) -> Path:
        """The sweep's folder by default, such as ``runs/ablate-count-nano-s85``."""
        which = Path(self.baseline).stem if self.baseline else f"{self.scale.lower()}-{self.sparsity.lower()}"
        return Path("runs") / f"ablate-{self.kind}-{re.sub(r'[^a-z0-9._]+', '-', which.lower())}"

    @property
    def settings(self) -> dict[str, Any]:
        """What a document says of the question."""
        return {"sweep": self.kind, "heads": self.heads, "shortlist": self.shortlist, "lr_sweep": self.lr_sweep}


@dataclass(frozen=True)
class Launch:
    """The options that say where and how it runs, and decide no result."""

    out: Path
    launcher: str
    threads: int
    parameters: Mapping[str, str]
    probe: bool
    yes: bool
    reuse: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        chosen("--launcher", self.launcher, LAUNCHERS)
        if self.parameters and self.launcher != "slurm":
            raise BadInput(f"--slurm {next(iter(self.parameters))}: only with --launcher slurm")


def chosen(option: str, value: str, known: tuple[str, ...]) -> str:
    """A value that is one of a few, or `BadInput`."""
    if value not in known:
        raise BadInput(f"{option} {value[:40]!r} is not one of {', '.join(known)}", close_names(value[:40], known))
    return value


def check_launch(launch: Launch) -> None:
    """Refuse a launcher that is not installed and folders to reuse that hold no sweep, before anything is solved."""
    from smelt_match.ablate.folder import read_sweep
    from smelt_match.ablate.launch import check_installed

    check_installed(launch.launcher)
    for folder in launch.reuse:
        read_sweep(folder)


def sbatch_options(texts: list[str]) -> dict[str, str]:
    """Options of sbatch from NAME=VALUE."""
    found: dict[str, str] = {}
    for text in texts:
        name, sign, value = (part.strip() for part in text.partition("="))
        name = name.lstrip("-")
        if not sign or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", name) or not value:
            raise BadInput(f"--slurm {text[:60]!r}: write NAME=VALUE, such as partition=gpu")
        if found.setdefault(name, value) != value:
            raise BadInput(f"--slurm {name} is given twice: {found[name]} and {value}")
    return found


def planned(asked: Asked) -> Plan:
    """The points, solved, and how long each is trained. No corpus is opened."""
    from smelt_match.ablate.extent import extent
    from smelt_match.ablate.plan import Plan
    from smelt_match.spec.family import expand

    entries = [entry for name in asked.names for entry in expand(name)]
    tokens, rows = _length(asked)
    found = tuple(point for entry in entries for point in _points(asked, entry))
    length = extent(found[0].baseline.spec, tokens, asked.branches, asked.context, rows)
    return Plan(found, asked.seeds, length, asked.shortlist, asked.lr_sweep)


def _length(asked: Asked) -> tuple[int, int | None]:
    """Tokens of the trunk and contexts of a step: as asked, else 2M for nano, and the paper's run for all others."""
    from smelt_match.train.defaults import PAPER_CONTEXT
    from smelt_match.train.schedule import PAPER_STEPS

    if asked.tokens is not None:
        return parse_count(asked.tokens, "--tokens"), asked.rows
    if asked.baseline is None and asked.scale.lower() == "nano":
        return parse_count(NANO_TOKENS, "--tokens"), asked.rows
    return PAPER_STEPS * PAPER_ROWS * PAPER_CONTEXT, asked.rows or PAPER_ROWS


def _points(asked: Asked, entry: Entry) -> list[Point]:
    from smelt_match.ablate.points import points
    from smelt_match.budget.conventions import convention
    from smelt_match.match.grid import find_grid
    from smelt_match.spec.family import countable

    grid = find_grid(asked.grid if asked.grid is not None else entry.grid or "bf16")
    spec = countable(entry)
    return points(asked.kind, spec, convention("paper"), grid, asked.policy, asked.points, asked.shortlist)


def only_plan(asked: Asked, shown: Format) -> str:
    """The plan as a result; a corpus is opened where one is named, and none is built."""
    from smelt_match.cli.ablation import plan_text

    plan = planned(asked)
    if asked.corpus is not None:
        plan, _ = sweep_of(asked, plan, asked.corpus)
    return plan_text(plan, shown, asked.settings)


def sweep_of(asked: Asked, plan: Plan, corpus: Path) -> tuple[Plan, Sweep]:
    """The sweep on a corpus, with everything decided that an arm needs, and its plan."""
    from smelt_match.ablate.extent import extent_of
    from smelt_match.ablate.sweep import Sweep
    from smelt_match.ablate.trainer import training
    from smelt_match.train.shards import Shards

    base = plan.points[0].baseline.spec
    config = training(base, Shards.open(corpus), plan.extent, asked.learning_rate, asked.dtype, asked.validation_tokens)
    sweep = Sweep(asked.kind, plan.points, asked.policy, asked.seeds, config, asked.shortlist, asked.lr_sweep)
    return replace(plan, extent=extent_of(config)), sweep


def run_sweep(asked: Asked, launch: Launch, shown: Format) -> tuple[str, Mapping[str, str]]:
    """Plan, ask, train what is missing, and compare: the result's text, and why arms have none."""
    from smelt_match.ablate.compare import tables
    from smelt_match.ablate.corpus import built_in
    from smelt_match.ablate.folder import open_folder
    from smelt_match.ablate.run import run
    from smelt_match.cli.ablation import plan_text, result_text

    plan = planned(asked)
    plan, sweep = sweep_of(asked, plan, asked.corpus or built_in(plan.extent, launch.out.parent, _tell))
    launcher = _launcher(launch)
    open_folder(launch.out, sweep.file())
    _tell(plan_text(plan, "table", asked.settings))
    _agree(plan, sweep, launch)
    try:
        finished = run(sweep, launch.out, launcher, _tell, launch.reuse)
    except SystemExit:  # that is how SIGTERM ends the program
        raise Stopped(f"{launch.out}: stopped, as SIGTERM asks", "the same command goes on") from None
    found = tables(asked.kind, finished.points, finished.results)
    return result_text(finished, found, shown, asked.settings), finished.failures


def _tell(line: str) -> None:
    typer.echo(line, err=True)


def _agree(plan: Plan, sweep: Sweep, launch: Launch) -> None:
    """Say how long it takes, and ask where that is more than an hour, or is not known."""
    from smelt_match.ablate.folder import arm_folder, state
    from smelt_match.ablate.reuse import trained_elsewhere

    arms = [arm for arm in sweep.arms() if state(arm_folder(launch.out, arm.name)) != "done"]
    elsewhere = trained_elsewhere(arms, launch.reuse)
    missing = [arm.point.name for arm in arms if arm.name not in elsewhere]
    if not missing:
        return
    duration, words = _duration(plan, sweep, launch, missing)
    _tell(f"time on this device: {words}")
    if launch.yes or (duration is not None and duration <= AN_HOUR):
        return
    why = "how long this takes is not known" if duration is None else "this takes more than an hour"
    if sys.stdin is not None and sys.stdin.isatty():
        if typer.confirm(f"{why}; go on?", err=True):
            return
        raise typer.Abort
    raise BadInput(f"{why}, and nobody can be asked here", "--yes goes on without asking; --plan only prints the plan")


def _duration(plan: Plan, sweep: Sweep, launch: Launch, missing: list[str]) -> tuple[float | None, str]:
    """Seconds that the missing arms take, and the words for them; None where that was not measured."""
    from smelt_match.ablate.launch import local_slots
    from smelt_match.ablate.plan import seconds
    from smelt_match.ablate.probe import probe

    if launch.launcher != "local" or not launch.probe:
        return None, "not measured" + (
            "" if launch.launcher == "local" else f": the arms run where {launch.launcher} puts them"
        )
    slots = local_slots(launch.threads)
    try:
        measured = probe(plan, sweep, slots[0], launch.threads)
    except BadInput as error:
        return None, f"not measured: {error.message}"
    beside = min(len(slots), len(missing))
    duration = seconds(plan, measured, missing, beside)
    short = duration * float(plan.flops_short_runs / plan.flops_total)
    words = f", and at most {_in_words(short)} for short runs before" if short else ""
    return duration + short, (
        f"about {_in_words(duration)} for {len(missing)} arms, {beside} at a time{words}, validation on top; "
        f"{measured.point} makes {measured.tokens_per_second:,.0f} tokens/s with a peak of "
        f"{measured.bytes_peak / 1e9:.2f} GB"
    )


def _in_words(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 2 * AN_HOUR else f"{seconds / AN_HOUR:.1f} h"


def _launcher(launch: Launch) -> Launcher:
    from smelt_match.ablate.launch import Local, local_slots
    from smelt_match.ablate.trainer import train_arm

    if launch.launcher == "slurm":
        from smelt_match.ablate.slurm import Slurm

        return Slurm(launch.out, launch.parameters, train_arm)
    if launch.launcher == "ray":
        from smelt_match.ablate.ray import Ray

        return Ray(launch.threads, train_arm)
    return Local(local_slots(launch.threads), launch.threads)
