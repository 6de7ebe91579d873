"""Trainers that train nothing: results that follow from the run alone, and a worker that is killed, fails or hangs."""

from __future__ import annotations

import hashlib
import math
import os
import signal
import sys
import time
from pathlib import Path

from smelt_match.ablate.result import ArmResult, Horizon, SourceLoss
from smelt_match.ablate.work import end_with_parent, run
from smelt_match.errors import BadInput, Stopped
from smelt_match.train.config import TrainConfig
from smelt_match.train.stop import Asked, never, on_signal

SOURCES = (("stdlib", "Code", 4000, 12000), ("pages", "Web", 1000, 5000))


def noise(*parts: object) -> float:
    """A number between -1 and 1 that follows from some values."""
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:4], "big") / 2**31 - 1


def loss_of(config: TrainConfig, fork: int) -> float:
    """Lower with more steps and with a wider model; a seed shifts all models alike, and each a little.

    Best at a rate of 1e-3 for a width of 128, and at twice as much for every eight less.
    """
    best = 1e-3 * 2 ** ((128 - config.spec.hidden_size) // 8)
    return (
        6.0
        + 0.01 * abs(math.log2(config.learning_rate / best))
        - 0.3 * math.log(fork + config.branch_steps)
        - 0.001 * config.spec.hidden_size
        + 0.05 * noise(config.seed)
        + 0.002 * noise(config.seed, config.spec.name, fork)
    )


def quick(config: TrainConfig, folder: Path) -> ArmResult:
    """A result at once; it counts its calls in the folder."""
    with (folder / "calls").open("a") as stream:
        stream.write("x")
    horizons = []
    for fork in config.forks:
        nats = loss_of(config, fork)
        sources = [
            SourceLoss(source=name, category=category, tokens=tokens, bytes=size, nats=(nats + 0.1 * index) * tokens)
            for index, (name, category, tokens, size) in enumerate(SOURCES)
        ]
        tokens = (fork + config.branch_steps) * config.tokens_per_step
        horizons.append(Horizon(tokens=tokens, sources=sources))
    digest = hashlib.sha256(f"{config.corpus_digest} {config.seed} {config.steps}".encode()).hexdigest()
    return ArmResult(horizons=horizons, tokens_digest=digest)


def moody(config: TrainConfig, folder: Path, asked_to_stop: Asked = never) -> ArmResult:
    """As `quick`, unless a file of the sweep's folder says what this arm does instead."""
    mood = folder.parent / f"{folder.name}.mood"
    match mood.read_text() if mood.exists() else "":
        case "bad input":
            raise BadInput("loss is nan at step 7", "lower the rate")
        case "bug":
            raise ZeroDivisionError("division by zero")
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "hangs":
            (folder / "begun").touch()
            time.sleep(600)
        case "once":
            if not (folder / "begun").exists():
                (folder / "begun").touch()
                time.sleep(600)
        case "until asked":
            if not (folder / "begun").exists():
                (folder / "begun").touch()
                while not asked_to_stop():
                    time.sleep(0.01)
                raise Stopped("trunk: stopped, and saved")
    return quick(config, folder)


def worker(folder: Path, cores: tuple[int, ...]) -> list[str]:
    """The command line of a worker that trains with `moody`."""
    return [sys.executable, "-P", __file__, str(folder), ",".join(map(str, cores))]


def tied(folder: Path, cores: tuple[int, ...]) -> list[str]:
    """The same, for a worker that ends with its parent."""
    return [*worker(folder, cores), "tied"]


if __name__ == "__main__":
    if sys.argv[3:] == ["tied"]:
        end_with_parent()
    with on_signal(signal.SIGTERM) as asked:
        sys.exit(run(Path(sys.argv[1]), moody, asked))
