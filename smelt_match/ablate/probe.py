"""How fast an arm trains on this device: a few real steps, in a process of its own that a sweep does not depend on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from smelt_match.ablate.folder import write_run
from smelt_match.ablate.launch import Slot
from smelt_match.ablate.plan import Plan, Probe, probed_point
from smelt_match.ablate.sweep import Sweep, arm_of
from smelt_match.errors import BadInput, SmeltMatchError
from smelt_match.train.config import TrainConfig, read_config

WARM_UP = 2
MOST_STEPS = 12
ENOUGH_SECONDS = 6.0
MOST_SECONDS = 180.0


class _Enough(Exception):
    """Enough steps were measured."""


def probe(plan: Plan, sweep: Sweep, slot: Slot, threads: int) -> Probe:
    """Measure a few steps of the point with the most visits in one slot.

    Raises:
        BadInput: It cannot be measured: too few steps, too little memory, too slow, or the run fails.
    """
    length = sweep.training.steps_total
    if length <= WARM_UP:
        raise BadInput(f"a run of {length} steps is too short to measure")
    point = probed_point(plan.points)
    free = _free_memory()
    if slot.gpu is None and free is not None and plan.bytes_memory > free:
        raise BadInput(f"the largest arm needs more than the {free / 1e9:.1f} GB of memory that are free")
    arm = arm_of(point, point.best, 0, sweep.training, "probe")
    with tempfile.TemporaryDirectory(prefix="smelt-match-probe-") as scratch:
        write_run(Path(scratch), arm.config)
        measured = _measured(Path(scratch), slot, threads)
    return Probe(point.name, measured["tokens_per_second"], int(measured["bytes_peak"]))


def _measured(folder: Path, slot: Slot, threads: int) -> dict[str, float]:
    pinned = ",".join(map(str, slot.cores))
    try:
        ran = subprocess.run(
            [sys.executable, "-m", "smelt_match.ablate.probe", str(folder), pinned],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=MOST_SECONDS, check=False,
            env={**os.environ, **slot.environment(threads)},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise BadInput(f"{WARM_UP + 1} steps take more than {MOST_SECONDS:.0f} s") from None
    try:
        found: dict[str, float] = json.loads(ran.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        reason = (ran.stderr.strip().splitlines() or [f"it ended with code {ran.returncode}"])[-1]
        raise BadInput(f"the probe fails: {reason[:300]}") from None
    return found


def _free_memory() -> int | None:
    """Bytes that can be had without swapping, where the system says."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def steps(config: TrainConfig, folder: Path) -> tuple[float, int]:
    """Train some steps of a run, and say tokens per second and the peak of memory in bytes."""
    from smelt_match.ablate.trainer import here
    from smelt_match.train.progress import Progress
    from smelt_match.train.run import train_run

    times: list[float] = []

    def report(_: Progress) -> None:
        times.append(time.perf_counter())
        beyond = len(times) - WARM_UP
        if beyond >= MOST_STEPS or (beyond >= 1 and times[-1] - times[WARM_UP - 1] >= ENOUGH_SECONDS):
            raise _Enough

    with suppress(_Enough):
        train_run(here(config), folder, report)
    measured = len(times) - WARM_UP
    return measured * config.tokens_per_step / (times[-1] - times[WARM_UP - 1]), _peak()


def _peak() -> int:
    import resource

    import torch

    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def main(folder: str, cores: str) -> int:
    """Measure the run of a folder, and print it as JSON."""
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    try:
        speed, peak = steps(read_config(Path(folder)), Path(folder))
    except SmeltMatchError as error:
        print(error.message.splitlines()[0], file=sys.stderr)
        return 1
    print(json.dumps({"tokens_per_second": speed, "bytes_peak": peak}))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
