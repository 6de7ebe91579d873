"""The search for the fastest step, as `solve` runs it: the timer, which needs torch, is handed to the search."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from smelt_match.errors import BadInput, MissingExtra, close_names

if TYPE_CHECKING:
    from smelt_match.match.answer import Answer
    from smelt_match.match.fastest import Fastest, Timer
    from smelt_match.match.problem import Question

Objective = Annotated[
    str,
    typer.Option(
        "--objective",
        help="What the study is for: certificate checks the solver; step-time looks for the fastest training step "
        "among all matched models, on this device.",
    ),
]
Device = Annotated[
    str | None,
    typer.Option(
        "--device", metavar="NAME", help="Where steps are timed, such as cpu or cuda:1. Default: a GPU, if any."
    ),
]
Tokens = Annotated[
    int | None,
    typer.Option(
        "--tokens", min=1, max=2**24, metavar="N",
        help="Most tokens of a timed step: 1,024 by default on a CPU, 16,384 elsewhere.",
    ),
]  # fmt: skip
OBJECTIVES = ("certificate", "step-time")


def check_objective(objective: str, baselines: int, no_study: bool, device: str | None, tokens: int | None) -> bool:
    """Whether steps are timed.

    Raises:
        BadInput: The objective is unknown or not available, or other options do not go with it.
    """
    if objective not in (*OBJECTIVES, "loss"):
        known = ", ".join(OBJECTIVES)
        raise BadInput(f"--objective {objective[:40]!r} is not one of {known}", close_names(objective[:40], OBJECTIVES))
    if objective == "loss":
        raise BadInput(
            "--objective loss: not available yet: it needs short training runs, and there is no training yet",
            "--objective step-time looks for the fastest step among matched models",
        )
    if objective == "certificate":
        given = [name for name, value in (("--device", device), ("--tokens", tokens)) if value is not None]
        if given:
            raise BadInput(f"{' and '.join(given)}: only --objective step-time times anything")
        return False
    if no_study:
        raise BadInput("--objective step-time excludes --no-study: it is a study")
    if baselines > 1:
        raise BadInput(f"--objective step-time: one search has one baseline, not {baselines}", "name one of them")
    return True


def step_timer(question: Question, device: str | None, tokens: int | None) -> Timer:
    """The timer of a question's baseline.

    Raises:
        BadInput: There is no such device.
        MissingExtra: torch is not installed.
    """
    try:
        from smelt_match.measure.step_time import StepTimer
    except ImportError as error:
        raise MissingExtra("--objective step-time: torch is not installed", "pip install smelt-match") from error
    return StepTimer(question.baseline, question.context.mean, device, tokens)


def fastest(found: Answer, timer: Timer, trials: int | None, seed: int, storage: str | None) -> Fastest | None:
    """Search among the matched models of all policies; None where there are none. Trials are told on stderr."""
    from smelt_match.match.fastest import TRIALS, find_fastest

    if not found.solved:
        return None

    def told(line: str) -> None:
        typer.echo(line, err=True)

    return find_fastest(found.solved, timer, trials if trials is not None else TRIALS, seed, storage, told)
