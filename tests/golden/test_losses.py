"""Twenty steps of a nano baseline and of its looped match, against losses that were written down.

On the kind of machine that wrote them the losses are equal to the last bit; elsewhere, other kernels add up in another
order, and they agree within `ELSEWHERE`. After a change that is meant to change them: ``python -m
tests.golden.test_losses`` writes them anew.
"""

from __future__ import annotations

import json
import platform
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from smelt_match.spec.family import countable, expand
from smelt_match.spec.model import ModelSpec
from smelt_match.train.batches import batch
from smelt_match.train.config import plan_run
from smelt_match.train.corpus.build import Recipe, build
from smelt_match.train.corpus.builtin import BuiltIn
from smelt_match.train.corpus.encoders import Bytes
from smelt_match.train.engine import Engine
from smelt_match.train.schedule import TRUNK
from smelt_match.train.shards import Shards
from smelt_match.train.world import World

FILE = Path(__file__).with_name("losses.json")
STEPS = 20
ELSEWHERE = 1e-3  # nats; with AVX2 kernels on the machine that wrote them, the losses differ by at most 8e-5


def kind() -> dict[str, str]:
    """What decides the order in which kernels add up: the machine's, one thread."""
    return {
        "machine": platform.machine(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__.split("+")[0],
    }


def pair() -> dict[str, ModelSpec]:
    """The baseline, and the point that `smelt-match solve --baseline nano_s85 --loop mid50x2` finds, uniform heads."""
    baseline = countable(expand("nano_s85")[0])
    looped = baseline.changed(
        name="nano_s85-mid50x2", layout="mid50x2", hidden_size=116, num_experts=105, expert_intermediate_size=30,
        head_dim=22,
    )  # fmt: skip
    return {"baseline": baseline, "looped": looped}


def losses(spec: ModelSpec, shards: Shards) -> list[float]:
    """The loss of each step."""
    config = plan_run(
        spec, shards, STEPS * 4 * 128, (), context=128, rows=4, micro_rows=2, learning_rate=5e-4, warmup_steps=5
    )
    engine, found = Engine(config, World(torch.device("cpu"))), []
    for step in range(STEPS):
        rows = batch(shards.trunk, config.seed, step, config.rows, config.context)
        found.append(engine.step(rows, config.schedule.learning_rate(TRUNK, step)).loss)
    return found


def sample(folder: Path) -> Shards:
    """The committed sample, in bytes."""
    build(BuiltIn(sample_only=True), Bytes(), folder, Recipe())
    return Shards.open(folder)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    return sample(tmp_path_factory.mktemp("golden") / "corpus")


@pytest.mark.parametrize("arm", ["baseline", "looped"])
def test_losses_are_those_that_were_written_down(arm: str, shards: Shards) -> None:
    written: dict[str, Any] = json.loads(FILE.read_text())
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    found = losses(pair()[arm], shards)
    torch.set_num_threads(threads)
    if written["kind"] == kind():
        assert found == written[arm]
    else:
        assert found == pytest.approx(written[arm], abs=ELSEWHERE)
    assert found[-1] < found[0] - 1


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        corpus = sample(Path(folder) / "corpus")
        found = {"kind": kind()} | {arm: losses(spec, corpus) for arm, spec in pair().items()}
    FILE.write_text(json.dumps(found, indent=2) + "\n")
