"""The pair 200m_s85 trained for 100 steps on a GPU: loss, resume and compile. A part of the prepared GPU run.

python benchmarks/gpu_train.py
python benchmarks/gpu_train.py --steps 20 --json pair.json

Each arm is trained three times: without a stop, stopped half-way and resumed, and with compiled blocks. Losses fall;
those of the resumed run agree with the first's, since a GPU's kernels need not add up in the same order twice; those of
the compiled one agree for the first steps, before differences grow. Speed and MFU are printed beside them.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from smelt_match.spec.family import countable, expand
from smelt_match.spec.model import ModelSpec
from smelt_match.train.config import TrainConfig, plan_run
from smelt_match.train.corpus.build import Recipe, build
from smelt_match.train.corpus.builtin import BuiltIn
from smelt_match.train.corpus.encoders import Bytes
from smelt_match.train.metrics import TIMINGS, read_metrics
from smelt_match.train.peaks import mfu_convention
from smelt_match.train.progress import Progress
from smelt_match.train.run import train_run
from smelt_match.train.shards import Shards

PAIR = ("200m_s85", "200m_s85_smelt")
RESUMED, COMPILED = 5e-2, 5e-2  # nats; the second over the first ten steps


class _Stopped(Exception):
    """Half-way."""


def _losses(folder: Path) -> list[float]:
    return [line["loss"] for line in read_metrics(folder / "trunk")]


def _speed(folder: Path) -> dict[str, Any]:
    """The last line of a run's timings."""
    last: dict[str, Any] = json.loads((folder / "trunk" / TIMINGS).read_text().splitlines()[-1])
    return {"tokens_per_second": last["tokens_per_second"], "mfu": last["mfu"]}


def check_arm(config: TrainConfig, folder: Path) -> dict[str, Any]:
    """Train one arm three times: what was checked, whether it holds, and the figures."""

    def stop(progress: Progress) -> None:
        if progress.step == config.steps // 2 + 1:
            raise _Stopped

    runs = {name: folder / f"{config.spec.name}-{name}" for name in ("whole", "resumed", "compiled")}
    train_run(config, runs["whole"])
    try:
        train_run(config, runs["resumed"], stop)
    except _Stopped:
        train_run(config, runs["resumed"])
    train_run(config.model_copy(update={"compile": True}), runs["compiled"])
    whole, resumed, compiled = (_losses(run) for run in runs.values())
    apart = [max(abs(a - b) for a, b in zip(whole, other, strict=True)) for other in (resumed, compiled)]
    early = max(abs(a - b) for a, b in zip(whole[:10], compiled[:10], strict=True))
    return {
        "first_loss": whole[0], "last_loss": whole[-1], "resumed_apart": apart[0], "compiled_apart": apart[1],
        "loss falls": whole[-1] < whole[0] - 0.5, "resume agrees": apart[0] <= RESUMED, "compile agrees":
        early <= COMPILED, "speed": _speed(runs["whole"]), "speed_compiled": _speed(runs["compiled"]),
    }  # fmt: skip


def check_pair(
    folder: Path, steps: int = 100, device: str = "cuda", specs: list[ModelSpec] | None = None, **fields: Any
) -> dict[str, Any]:
    """Train a baseline and its looped match for some steps on the committed sample, and check what must hold.

    Args:
        folder: An empty one, for the corpus and the runs (four checkpoints of each arm at most).
        steps: Of each run.
        device: ``cuda``, or ``cpu`` for a look at small specs.
        specs: Default: the pair 200m_s85.
        **fields: Of the run, over the defaults below.
    """
    build(BuiltIn(sample_only=True), Bytes(), folder / "corpus", Recipe())
    shards = Shards.open(folder / "corpus")
    fields = {
        "context": 2048, "rows": 6, "micro_rows": 6, "learning_rate": 3e-4, "warmup_steps": steps // 10,
        "dtype": "bfloat16", "log_every": 1, "save_every": max(1, steps // 2), "device": device,
    } | fields  # fmt: skip
    found = {}
    for spec in specs or [countable(expand(name)[0]) for name in PAIR]:
        config = plan_run(spec, shards, steps * fields["rows"] * fields["context"], (), **fields)
        found[spec.name] = check_arm(config, folder) | {"mfu_convention": mfu_convention(spec)}
    return found


def failures(found: dict[str, Any]) -> list[str]:
    """What did not hold."""
    return [f"{arm}: {what}" for arm, checks in found.items() for what, holds in checks.items() if holds is False]


def main() -> int:
    """Read the options and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        found = check_pair(Path(name), args.steps)
    print(json.dumps(found, indent=2))
    if args.json:
        args.json.write_text(json.dumps(found, indent=2) + "\n")
    for failure in failures(found):
        print(f"failed: {failure}")
    return 1 if failures(found) else 0


if __name__ == "__main__":
    sys.exit(main())
