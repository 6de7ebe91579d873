"""Two ranks compute what one computes, whatever the loop, and read each other's checkpoints."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from smelt_match.errors import BadInput
from smelt_match.train import run as running
from smelt_match.train import world as worlds
from smelt_match.train.batches import batch
from smelt_match.train.config import TrainConfig
from smelt_match.train.engine import Engine
from smelt_match.train.metrics import read_metrics
from smelt_match.train.optimizer import full
from smelt_match.train.progress import Progress
from smelt_match.train.run import train_run
from smelt_match.train.shards import Shards
from smelt_match.train.world import World, open_world
from tests.train.ranks import run_ranks, save_gradients
from tests.train.runs import small

ALONE = World(torch.device("cpu"))


class Stopped(Exception):
    """Where a test ends a run."""


def _stop(progress: Progress) -> None:
    if progress.step == 5:
        raise Stopped


def _config(shards: Shards, **changes: Any) -> TrainConfig:
    return small(shards, layout="1-[1x2]-[1x3]-1", micro_rows=1, branches=(4,), steps=7, **changes)


def _gradients(config: TrainConfig, world: World) -> dict[str, torch.Tensor]:
    shards = Shards.open(Path(config.corpus))
    engine = Engine(config, world)
    rows = batch(shards.trunk, config.seed, 0, config.rows, config.context, world.rank, world.size)
    losses = world.total(engine._backward(rows, None)) / world.size
    found = {name: full(parameter.grad) for name, parameter in engine.model.named_parameters()}
    return found | {"losses": losses}


def _work(config_text: str, folder: Path) -> None:
    config = TrainConfig.model_validate_json(config_text)
    with open_world("cpu") as world:
        gradients = _gradients(config, world)
        if world.leads:
            save_gradients(folder, gradients)
        train_run(config, folder / "two")
        assert world.any(world.rank == 1)
        assert not world.any(False)
        train_run(config, folder / "one, then two")
        begin_together(config, folder / "two, then one", world)


def begin_together(config: TrainConfig, folder: Path, world: World) -> None:
    """Six steps of a run, whose last checkpoint is at the fourth of them."""
    shorter = config.model_copy(update={"forks": (), "steps": 4})
    train_run(shorter, folder)
    if world.leads:  # what a run that was stopped after the fourth step leaves
        (folder / "run.json").write_text(config.to_json())
        (folder / "trunk" / "validation.json").unlink()
    world.wait()


@pytest.fixture(scope="module")
def both(shards: Shards, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TrainConfig]:
    """What two ranks leave behind, some of it begun or ended by one."""
    folder, config = tmp_path_factory.mktemp("ranks"), _config(shards)
    train_run(config, folder / "one")
    with pytest.raises(Stopped):
        train_run(config, folder / "one, then two", _stop)
    run_ranks(2, _work, config.to_json(), folder)
    train_run(config, folder / "two, then one")
    return folder, config


def test_two_ranks_have_the_gradients_of_one_where_blocks_are_visited_several_times(
    both: tuple[Path, TrainConfig],
) -> None:
    folder, config = both
    found, expected = load_file(folder / "gradients.safetensors"), _gradients(config, ALONE)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-6, atol=1e-6, msg=name)


@pytest.mark.parametrize("how", ["two", "one, then two", "two, then one"])
def test_any_ranks_read_the_checkpoints_of_any_others_and_end_where_one_does(
    both: tuple[Path, TrainConfig], how: str
) -> None:
    folder, _ = both
    for leg in ("trunk", "branch-00000004"):
        expected = read_metrics(folder / "one" / leg)
        found = read_metrics(folder / how / leg)
        assert [line["step"] for line in found] == [line["step"] for line in expected]
        for ours, theirs in zip(found, expected, strict=True):
            for key in ("loss", "balance_loss", "gradient_norm", "learning_rate"):
                assert ours[key] == pytest.approx(theirs[key], rel=1e-4), (leg, ours["step"], key)
            assert ours["gradient_norms"] == pytest.approx(theirs["gradient_norms"], rel=1e-3)
            for visit, other in zip(ours["visits"], theirs["visits"], strict=True):
                assert visit == pytest.approx(other, rel=1e-3)
    ours, theirs = (load_file(folder / name / "model.safetensors") for name in (how, "one"))
    for name, weight in theirs.items():
        torch.testing.assert_close(ours[name], weight, rtol=1e-3, atol=2e-5, msg=name)


def test_validation_is_that_of_one_rank(both: tuple[Path, TrainConfig]) -> None:
    folder, _ = both
    ours, theirs = ((folder / how / "result.json").read_text() for how in ("two", "one"))
    import json

    for leg, other in zip(json.loads(ours)["legs"], json.loads(theirs)["legs"], strict=True):
        assert leg["validation_loss"] == pytest.approx(other["validation_loss"], rel=1e-4)
        assert leg["tokens"] == other["tokens"]


def _hybrid(config_text: str, folder: Path) -> None:
    config = TrainConfig.model_validate_json(config_text)
    with open_world("cpu") as world:
        assert world.mesh is not None
        assert world.mesh.mesh_dim_names == ("replicate", "shard")
        gradients = _gradients(config, world)
        if world.leads:
            save_gradients(folder, gradients)
        train_run(config, folder / "run")


def test_ranks_on_two_nodes_average_over_nodes(shards: Shards, tmp_path: Path) -> None:
    config = small(shards, micro_rows=1, branches=(), steps=3)
    run_ranks(2, _hybrid, config.to_json(), tmp_path, per_node=1)
    found, expected = load_file(tmp_path / "gradients.safetensors"), _gradients(config, ALONE)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-6, atol=1e-6, msg=name)


def test_ranks_that_do_not_divide_a_step_are_refused(shards: Shards) -> None:
    config = small(shards, micro_rows=4)
    with pytest.raises(BadInput, match="2 ranks cannot share the 1 micro-batches of a step"):
        Engine(config, World(torch.device("cpu"), 0, 2))


def test_ranks_that_do_not_divide_a_step_leave_no_folder(
    shards: Shards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "open_world", lambda _: nullcontext(World(torch.device("cpu"), 0, 2)))
    with pytest.raises(BadInput, match="2 ranks cannot share"):
        running.train_run(small(shards, micro_rows=4), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("size", [1, 2])
def test_a_rank_that_was_lost_is_told_as_such(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worlds, "ranks_started", lambda: size)
    for name, value in {"is_initialized": True, "get_rank": 0, "get_world_size": size}.items():
        monkeypatch.setattr(worlds.dist, name, lambda value=value: value)
    monkeypatch.setattr(worlds, "_mesh", lambda *_: None)
    for text, expected in {
        "[/src/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]": BadInput if size > 1 else RuntimeError,
        "shapes do not match": RuntimeError,
    }.items():
        with pytest.raises(expected) as told, worlds.open_world("cpu"):
            raise RuntimeError(text)
        assert text in str(told.value)
