"""The pair 200m_s85 trained for 100 steps on a GPU: loss, resume and compile. A part of the prepared GPU run.

python benchmarks/gpu_train.py
python benchmarks/gpu_train.py --steps 20 --json pair.json

Each arm is trained three times: without a stop, stopped half-way and resumed, and with compiled blocks. Losses fall;
those of the resumed run agree with the first's, since a GPU's kernels need not add up in the same order twice; those of
the compiled one agree for the first steps, before differences grow. Speed and MFU are printed beside them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from smelt_match.errors import Stopped
from smelt_match.spec.family import countable, expand
from smelt_match.spec.model import ModelSpec
from smelt_match.train.config import TrainConfig, plan_run
from smelt_match.train.corpus.build import Recipe, build
from smelt_match.train.corpus.builtin import BuiltIn
from smelt_match.train.corpus.encoders import Bytes
from smelt_match.train.metrics import TIMINGS, read_metrics
from smelt_match.train.peaks import mfu_convention
from smelt_match.train.run import train_run
from smelt_match.train.shards import Shards

PAIR = ("200m_s85", "200m_s85_smelt")
ROOM = 45e9  # bytes; two checkpoints of the pair and its weights are 37e9
RESUMED, COMPILED = 5e-2, 5e-2  # nats; the second over the first ten steps


def check_pair(
    folder: Path,
    steps: int = 100,
    device: str = "cuda",
    specs: list[ModelSpec] | None = None,
    found: dict[str, Any] | None = None,
    **fields: Any,
) -> dict[str, Any]:
    """Train a baseline and its looped match for some steps on the committed sample, and check what must hold.

    Args:
        folder: An empty one, for the corpus and one run at a time (two checkpoints and the weights: 37 GB at most).
        steps: Of each run.
        device: ``cuda``, or ``cpu`` for a look at small specs.
        specs: Default: the pair 200m_s85.
        found: Filled as runs end, so that what is there survives an end of time.
        **fields: Of the run, over the defaults below.
    """
    build(BuiltIn(sample_only=True), Bytes(), folder / "corpus", Recipe(near=None))  # a test says it holds none
    shards = Shards.open(folder / "corpus")
    fields = {
        "context": 2048, "rows": 6, "micro_rows": 6, "learning_rate": 3e-4, "warmup_steps": steps // 10,
        "dtype": "bfloat16", "log_every": 1, "save_every": steps, "device": device,
    } | fields  # fmt: skip
    found = {} if found is None else found
    arms = [
        plan_run(spec, shards, steps * fields["rows"] * fields["context"], (), **fields)
        for spec in specs or [countable(expand(name)[0]) for name in PAIR]
    ]
    whole = {}
    for config in arms:
        losses, speed = trained(config, folder / "run")
        whole[config.spec.name] = losses
        found[config.spec.name] = {
            "first_loss": losses[0], "last_loss": losses[-1], "loss falls": losses[-1] < losses[0] - 0.5,
            "speed": speed, "mfu_convention": mfu_convention(config.spec),
        }  # fmt: skip
    for config in arms:
        losses, _ = trained(config, folder / "run", stop_after=steps // 2)
        apart = _apart(losses, whole[config.spec.name])
        found[config.spec.name] |= {"resumed_apart": apart, "resume agrees": apart <= RESUMED}
    for config in arms:
        losses, speed = trained(config.model_copy(update={"compile": True}), folder / "run")
        apart = _apart(losses[:10], whole[config.spec.name][:10])
        found[config.spec.name] |= {
            "compiled_apart": apart, "compile agrees": apart <= COMPILED, "speed_compiled": speed,
        }  # fmt: skip
    return found


def trained(config: TrainConfig, folder: Path, stop_after: int | None = None) -> tuple[list[float], dict[str, Any]]:
    """Train a run, with a stop after some steps or none, and delete its folder: its losses, and its last speed."""
    if stop_after is not None:
        asked = itertools.chain([False] * (stop_after - 1), itertools.repeat(True))
        with suppress(Stopped):
            train_run(config, folder, asked_to_stop=lambda: next(asked))
        if [line["step"] for line in read_metrics(folder / "trunk")][-1] != stop_after:
            raise AssertionError(f"the run was to stop after {stop_after} steps")
    train_run(config, folder)
    losses = [line["loss"] for line in read_metrics(folder / "trunk")]
    last = json.loads((folder / "trunk" / TIMINGS).read_text().splitlines()[-1])
    shutil.rmtree(folder)
    return losses, {"tokens_per_second": last["tokens_per_second"], "mfu": last["mfu"]}


def _apart(found: list[float], expected: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(found, expected, strict=True))


def roomy() -> str | None:
    """Where the checkpoints go: memory where it holds enough, else the usual place."""
    shared = Path("/dev/shm")
    return str(shared) if shared.is_dir() and shutil.disk_usage(shared).free > ROOM else None


def failures(found: dict[str, Any]) -> list[str]:
    """What did not hold."""
    return [f"{arm}: {what}" for arm, checks in found.items() for what, holds in checks.items() if holds is False]


def main() -> int:
    """Read the options and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=roomy()) as name:
        found = check_pair(Path(name), args.steps)
    print(json.dumps(found, indent=2))
    if args.json:
        args.json.write_text(json.dumps(found, indent=2) + "\n")
    for failure in failures(found):
        print(f"failed: {failure}")
    return 1 if failures(found) else 0


if __name__ == "__main__":
    sys.exit(main())
