"""Checkpoints: whole or not there, read back to the last bit, refused when they are damaged."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.filesystem import FileSystem

from smelt_match.errors import BadInput
from smelt_match.train.checkpoint import Checkpoints
from smelt_match.train.run import train_run
from smelt_match.train.shards import Shards
from smelt_match.train.world import World
from tests.train.runs import small
from tests.train.test_run import Stopped, stop_after

ALONE = World(torch.device("cpu"))


def _tensors(value: float) -> dict[str, torch.Tensor]:
    return {"weight.a": torch.full((3, 4), value), "exp_avg.a": torch.full((5,), -value)}


@pytest.fixture
def saved(tmp_path: Path) -> Checkpoints:
    """Checkpoints after steps 2 and 4."""
    found = Checkpoints(tmp_path / "leg", ALONE)
    for step in (2, 4):
        found.save(step, _tensors(step))
    return found


def test_a_checkpoint_reads_back_and_the_last_one_is_the_latest(saved: Checkpoints) -> None:
    assert (saved.steps, saved.latest) == ([2, 4], 4)
    into = _tensors(0)
    saved.load(2, into)
    assert all(torch.equal(tensor, _tensors(2)[name]) for name, tensor in into.items())
    assert all(path.suffix == ".safetensors" for path in saved.path(4).iterdir())  # nothing in it can execute


def test_pruning_keeps_the_last(saved: Checkpoints) -> None:
    (saved.folder / ".step-00000006").mkdir()
    saved.save(8, _tensors(8))
    saved.prune(2)
    assert (saved.steps, saved.latest) == ([4, 8], 8)
    assert not list(saved.folder.glob(".step-*"))
    saved.prune(0)
    assert (saved.steps, saved.latest) == ([], None)


class Full:
    """A file on a full disk: it takes some bytes, and no more."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def write(self, _: Any) -> int:
        self.stream.write(b"some")
        raise OSError(28, "No space left on device")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def _fill(monkeypatch: pytest.MonkeyPatch) -> None:
    from contextlib import contextmanager

    create = FileSystem.create_stream

    @contextmanager
    def limited(self: Any, path: Any, mode: str) -> Any:
        with create(self, path, mode) as stream:
            yield Full(stream) if "w" in mode else stream

    monkeypatch.setattr(FileSystem, "create_stream", limited)


def test_a_full_disk_leaves_the_one_before_it(saved: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        _fill(patch)
        with pytest.raises(BadInput, match="cannot be written: No space left on device") as told:
            saved.save(6, _tensors(6))
    assert f"{saved.path(4)} is whole and stays the latest" in told.value.hint
    assert sorted(path.name for path in saved.folder.iterdir()) == ["latest", "step-00000002", "step-00000004"]
    saved.load(4, _tensors(0))
    saved.save(6, _tensors(6))
    assert saved.latest == 6


def test_a_run_on_a_full_disk_stops_and_goes_on_when_there_is_room(
    shards: Shards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small(shards, branches=(), steps=6)
    with pytest.raises(Stopped):
        train_run(config, tmp_path / "run", stop_after(3))
    with monkeypatch.context() as patch:
        _fill(patch)
        with pytest.raises(BadInput, match="No space left on device"):
            train_run(config, tmp_path / "run")
    assert train_run(config, tmp_path / "run")[0].tokens == 6 * 64


@pytest.mark.parametrize("damage", ["cut off", "empty", "no tensors", "missing file", "text"])
def test_a_damaged_checkpoint_is_refused_by_name(
    saved: Checkpoints, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = next(saved.path(4).iterdir())
    if damage == "cut off":
        file.write_bytes(file.read_bytes()[:-10])
    elif damage == "empty":
        file.write_bytes(b"")
    elif damage == "text":
        file.write_text("hello")
    elif damage == "missing file":
        file.unlink()
    else:
        saved.save(4, {"other": torch.zeros(2)})
    with pytest.raises(BadInput, match="the checkpoint cannot be read") as told:
        saved.load(4, _tensors(0))
    assert str(saved.path(4)) in told.value.message
    assert told.value.hint == f"write the name of another checkpoint into {saved.folder / 'latest'}: step-00000002"
    assert "root" not in {record.name for record in caplog.records}  # where torch tells tracebacks beside its error


def test_without_another_checkpoint_a_damaged_one_is_refused_with_what_to_delete(saved: Checkpoints) -> None:
    saved.prune(1)
    next(saved.path(4).iterdir()).unlink()
    with pytest.raises(BadInput, match="the checkpoint cannot be read") as told:
        saved.load(4, _tensors(0))
    assert told.value.hint == f"there is no other checkpoint; delete {saved.folder} to begin it anew"


def test_a_tensor_of_another_shape_is_refused(saved: Checkpoints) -> None:
    with pytest.raises(BadInput, match="the checkpoint cannot be read"):
        saved.load(4, {"weight.a": torch.zeros(4, 4), "exp_avg.a": torch.zeros(5)})


@pytest.mark.parametrize("text", ["step-00000099", "../elsewhere", "step-4"])
def test_a_latest_that_is_not_there_is_refused_with_those_that_are(saved: Checkpoints, text: str) -> None:
    (saved.folder / "latest").write_text(text)
    with pytest.raises(BadInput, match="names no checkpoint that is there") as told:
        assert saved.latest
    assert "step-00000002, step-00000004" in told.value.hint


def test_a_checkpoint_that_was_complete_but_not_yet_the_latest_is_replaced(saved: Checkpoints) -> None:
    shutil.copytree(saved.path(4), saved.path(6))
    saved.save(6, _tensors(6))
    into = _tensors(0)
    saved.load(6, into)
    assert torch.equal(into["weight.a"], _tensors(6)["weight.a"])
