"""A run: the trunk and its branches, in a folder that is all of its state.

    run.json                what is trained
    trunk/                  metrics.jsonl, timings.jsonl, latest, step-NNNNNNNN/, validation.json at its end
    branch-NNNNNNNN/        the same, for the branch that forks after so many steps of the trunk
    model.safetensors       the weights at the end of the last leg, and model.yaml, their spec; those of the other
                            branches lie in their folders
    result.json             validation losses of all legs

Each branch is trained when the trunk gets to its fork, whose checkpoint stays until the branch has ended. Running again
goes on from the latest checkpoints; a run that has ended is only read.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from smelt_match.errors import AnswerIsNo, BadInput, Stopped
from smelt_match.files import read_text, remove_scratch, write_atomic
from smelt_match.train.batches import batch
from smelt_match.train.checkpoint import KEPT, Checkpoints
from smelt_match.train.config import RUN_FILE, TrainConfig, check_corpus, check_same, read_config
from smelt_match.train.engine import Engine, Step, pieces_of
from smelt_match.train.metrics import MetricsLog, summary_writer
from smelt_match.train.progress import Pace, Progress, Report
from smelt_match.train.schedule import TRUNK, Leg
from smelt_match.train.shards import Shards
from smelt_match.train.stop import Asked, never
from smelt_match.train.validation import Validation, validate
from smelt_match.train.weights import write_weights
from smelt_match.train.world import World, open_world

RESULT_FILE, VALIDATION_FILE = "result.json", "validation.json"


@dataclass(frozen=True)
class LegResult:
    """The end of a leg.

    Attributes:
        leg: Which.
        tokens: Tokens that the model has trained on, the trunk's before the fork included.
        validation: Its losses.
    """

    leg: Leg
    tokens: int
    validation: Validation


def train_run(
    config: TrainConfig,
    folder: Path,
    report: Report | None = None,
    tensorboard: bool = False,
    asked_to_stop: Asked = never,
) -> list[LegResult]:
    """Train a run, or go on with it, and return the ends of its legs: the branches by their forks, then the trunk.

    Under torchrun, every rank calls it.

    Args:
        config: What to train (`smelt_match.train.config.plan_run`).
        folder: The run's; it is made if it is not there.
        report: Called after each step, on the first rank.
        tensorboard: Whether to write TensorBoard's files into ``tensorboard/``, too.
        asked_to_stop: Whether to save after the step that runs, and stop (`smelt_match.train.stop`); it is enough that
            one rank is asked.

    Raises:
        Stopped: That was asked. Running again goes on after the step that was saved.
        AnswerIsNo: The loss is no number any more; nothing of that step was kept.
        BadInput: The folder holds another run, the corpus does not fit or was changed, a checkpoint cannot be read or
            written, or the device is not there.
    """
    if tensorboard:
        summary_writer()
    with open_world(config.device) as world:
        pieces_of(config, world)
        check_corpus(config, shards := Shards.open(Path(config.corpus)))
        with _alone(folder, world):
            shards.verify_if_quick()
            _state(config, folder, world)
            run = _Run(config, folder, world, shards, report, tensorboard, asked_to_stop)
            for fork in config.forks:
                run.train(TRUNK, fork)
                run.train(Leg(fork), config.branch_steps)
            run.train(TRUNK, config.steps)
            results = read_results(config, folder)
            if world.leads:
                write_atomic(folder / RESULT_FILE, _result_json(config, results), force=True)
            return results


@contextmanager
def _alone(folder: Path, world: World) -> Iterator[None]:
    """The folder for this run alone: two processes that write the same checkpoints would ruin both."""
    if not world.leads:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadInput(f"{folder}: another process is training there", "wait for it, or stop it") from None
        remove_scratch(folder)
        yield


def _state(config: TrainConfig, folder: Path, world: World) -> None:
    """Write what the folder is for, or refuse a folder that is for something else."""
    fault = ""
    if world.leads:
        try:
            if (folder / RUN_FILE).exists():
                check_same(read_config(folder), config, folder)
            elif any(path.name != ".lock" for path in folder.iterdir()):
                raise BadInput(f"{folder}: holds files, and no {RUN_FILE}: no run was begun there")
            write_atomic(folder / RUN_FILE, config.to_json(), force=True)
        except BadInput as error:
            fault = "\n".join(filter(None, (error.message, error.hint)))
    faults = world.agree(fault)
    if faults:
        message, _, hint = faults[0].rpartition("\n")
        raise BadInput(message or hint, hint if message else "")


class _Run:
    """A run on its way: an engine that stands after some step of a leg."""

    def __init__(
        self,
        config: TrainConfig,
        folder: Path,
        world: World,
        shards: Shards,
        report: Report | None,
        tensorboard: bool,
        asked_to_stop: Asked,
    ) -> None:
        self.config, self.folder, self.world, self.shards = config, folder, world, shards
        self.report, self.tensorboard, self.asked_to_stop = report, tensorboard, asked_to_stop
        self.engine: Engine | None = None
        self.position: tuple[Leg, int] | None = None

    def train(self, leg: Leg, until: int) -> None:
        """Train a leg up to a step of it, from its latest checkpoint, or from where it begins."""
        if (self.folder / leg.name / VALIDATION_FILE).is_file():
            return
        checkpoints = self._checkpoints(leg)
        start = checkpoints.latest or 0
        ends = until == self.config.schedule.length(leg)
        if start >= until and not ends:
            return
        engine = self._engine_at(leg, start)
        if start < until:
            self._steps(engine, leg, start, until, checkpoints)
        if ends:
            self._finish(engine, leg, checkpoints)

    def _checkpoints(self, leg: Leg) -> Checkpoints:
        return Checkpoints(self.folder / leg.name, self.world)

    def _engine_at(self, leg: Leg, step: int) -> Engine:
        """The engine with the state after a step of a leg; that of a branch's beginning is the trunk's at its fork."""
        place = (TRUNK, leg.fork) if leg.fork is not None and step == 0 else (leg, step)
        if self.engine is None:
            self.engine = Engine(self.config, self.world)
            self.position = (TRUNK, 0)
        if self.position != place:
            self._checkpoints(place[0]).load(place[1] or 0, self.engine.tensors())
        self.engine.optimizer.count_from((leg.fork or 0) + step)
        self.position = (leg, step)
        return self.engine

    def _steps(self, engine: Engine, leg: Leg, start: int, until: int, checkpoints: Checkpoints) -> None:
        config, pool = self.config, self.shards.trunk if leg.fork is None else self.shards.branch
        board = self.folder / "tensorboard" / leg.name if self.tensorboard else None
        pace = Pace(config, self.world)
        with MetricsLog(self.folder / leg.name, start, board) if self.world.leads else nullcontext() as log:
            for step in range(start, until):
                rows = batch(pool, config.seed, step, config.rows, config.context, self.world.rank, self.world.size)
                logged = (step + 1) % config.log_every == 0 or step + 1 == until
                measured = engine.step(rows, config.schedule.learning_rate(leg, step), diagnose=logged)
                self.position = (leg, step + 1)
                if not measured.is_finite:
                    raise _diverged(measured, leg, step + 1, checkpoints, self._checkpoints(TRUNK))
                pace.tick()
                self._tell(leg, step + 1, measured, pace, log if logged else None)
                stop = self.world.any(self.asked_to_stop())
                if stop or (step + 1) % config.save_every == 0 or step + 1 == until:
                    self._save(engine, step + 1, checkpoints, log)
                    pace.restart()
                if stop:
                    raise Stopped(f"{leg.name}: stopped after step {step + 1:,} of {config.schedule.length(leg):,}, "
                                  f"as SIGTERM asks; saved in {checkpoints.path(step + 1)}",
                                  "the same command goes on")  # fmt: skip

    def _save(self, engine: Engine, step: int, checkpoints: Checkpoints, log: MetricsLog | None) -> None:
        if log is not None:
            log.sync()
        checkpoints.save(step, engine.tensors())
        if self.config.keep_checkpoints == "last":
            checkpoints.prune(KEPT)

    def _tell(self, leg: Leg, step: int, measured: Step, pace: Pace, log: MetricsLog | None) -> None:
        if not self.world.leads:
            return
        per_step, tokens = self.config.tokens_per_step, self._tokens_done(leg, step)
        if log is not None:
            line = {
                "step": step, "tokens": ((leg.fork or 0) + step) * per_step, "loss": measured.loss,
                "balance_loss": measured.balance_loss, "gradient_norm": measured.gradient_norm,
                "learning_rate": measured.learning_rate, **(measured.diagnostics or {}),
            }  # fmt: skip
            log.write(line, {"step": step, "tokens_per_second": pace.tokens_per_second, "mfu": pace.mfu})
        if self.report is not None:
            left = (self.config.tokens_total - tokens) / pace.tokens_per_second
            length = self.config.schedule.length(leg)
            self.report(Progress(leg, step, length, measured, tokens, self.config.tokens_total,
                                 pace.tokens_per_second, pace.mfu, left))  # fmt: skip

    def _tokens_done(self, leg: Leg, step: int) -> int:
        """Of all legs, in the order that they are trained in."""
        trunk = step if leg.fork is None else leg.fork
        branches = [fork for fork in self.config.forks if fork < trunk]
        steps = trunk + len(branches) * self.config.branch_steps + (0 if leg.fork is None else step)
        return steps * self.config.tokens_per_step

    def _finish(self, engine: Engine, leg: Leg, checkpoints: Checkpoints) -> None:
        """Validate the end of a leg; its file marks it as done."""
        found, last = validate(engine, self.shards), self.config.legs[-1]
        if leg == last or leg != TRUNK:
            write_weights(engine, self.folder if leg == last else self.folder / leg.name)
        if not self.world.leads:
            return
        path = self.folder / leg.name / VALIDATION_FILE
        write_atomic(path, found.model_dump_json(indent=2) + "\n", force=True)
        if self.config.keep_checkpoints == "last":
            checkpoints.prune(KEPT if leg == TRUNK else 1 if leg == last else 0)


def _diverged(measured: Step, leg: Leg, step: int, own: Checkpoints, trunk: Checkpoints) -> AnswerIsNo:
    what = "the loss" if measured.loss - measured.loss != 0 else "the gradient"
    value = measured.loss if what == "the loss" else measured.gradient_norm
    if own.latest is not None:
        good = f"the last good checkpoint is {own.path(own.latest)}"
    elif leg.fork is not None:
        good = f"the last good checkpoint is {trunk.path(leg.fork)}"
    else:
        good = "no checkpoint was written before"
    return AnswerIsNo(f"{leg.name}: step {step:,}: {what} is {value}", f"{good}; a lower --lr may keep it finite")


def read_results(config: TrainConfig, folder: Path) -> list[LegResult]:
    """The ends of the legs that have ended: the branches by their forks, then the trunk."""
    results = []
    for leg in (*config.legs[1:], TRUNK):
        path = folder / leg.name / VALIDATION_FILE
        if path.is_file():
            try:
                found = Validation.model_validate_json(read_text(path, "file"))
            except ValidationError:
                raise BadInput(f"{path}: holds no validation losses", "delete the file to validate again") from None
            steps = config.steps if leg.fork is None else leg.fork + config.branch_steps
            results.append(LegResult(leg, steps * config.tokens_per_step, found))
    return results


def is_done(config: TrainConfig, folder: Path) -> bool:
    """Whether every leg of a run has ended."""
    return all((folder / leg.name / VALIDATION_FILE).is_file() for leg in config.legs)


def _result_json(config: TrainConfig, results: list[LegResult]) -> str:
    return json.dumps(
        {"schema_version": 1, "spec": config.spec.name, "legs": [leg_json(result) for result in results]}, indent=2
    ) + "\n"  # fmt: skip


def leg_json(result: LegResult) -> dict[str, object]:
    """The end of a leg under the names that JSON and tables use. Losses are nats per token."""
    found = result.validation
    return {
        "leg": result.leg.name,
        "fork_step": result.leg.fork,
        "tokens": result.tokens,
        "validation_loss": found.loss(),
        "validation_loss_mean_sources": found.loss_mean_sources,
        "validation_bits_per_byte": found.bits_per_byte,
        "validation_loss_by_category": {name: found.loss(name) for name in found.categories},
    }
