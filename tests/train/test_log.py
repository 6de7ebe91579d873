"""The log and the validation of a run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from torch.nn import functional as F

from smelt_match.errors import BadInput, MissingExtra
from smelt_match.train import metrics, weights
from smelt_match.train.engine import Engine
from smelt_match.train.metrics import MetricsLog, read_metrics
from smelt_match.train.shards import Shards
from smelt_match.train.validation import SourceLoss, Validation, validate
from smelt_match.train.weights import read_model, write_weights
from smelt_match.train.world import World
from tests.train.runs import small

ALONE = World(torch.device("cpu"))


def _write(folder: Path, start: int, steps: range) -> None:
    with MetricsLog(folder, start) as log:
        for step in steps:
            log.write({"step": step, "loss": 1.0}, {"step": step})


def test_resuming_drops_later_lines_and_one_that_was_cut_off(tmp_path: Path) -> None:
    _write(tmp_path, 0, range(1, 6))
    with (tmp_path / "metrics.jsonl").open("a") as stream:
        stream.write('{"step": 6, "lo')
    _write(tmp_path, 3, range(4, 8))
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 2, 3, 4, 5, 6, 7]
    _write(tmp_path, 0, range(1, 2))
    assert [line["step"] for line in read_metrics(tmp_path)] == [1]


def test_a_log_that_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\nnotes\n')
    with pytest.raises(BadInput, match=r"metrics.jsonl:2: is no line of a log"):
        MetricsLog(tmp_path, 1)
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1}\nnotes\n'


def test_tensorboard_gets_every_number(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    with MetricsLog(tmp_path / "leg", 0, tmp_path / "board") as log:
        log.write(
            {"step": 1, "loss": 2.5, "visits": [{"visit": 0, "block": 0, "update_rms": 0.5}]}, {"step": 1, "mfu": None}
        )
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(tmp_path / "board")).Reload()
    assert set(board.Tags()["scalars"]) == {"loss", "update_rms/visit 0"}
    assert board.Scalars("loss")[0].value == 2.5


def test_the_program_that_shows_the_board_starts() -> None:
    """Before 2.21 it needed ``pkg_resources``, which setuptools no longer has."""
    pytest.importorskip("tensorboard")
    subprocess.run([sys.executable, "-m", "tensorboard.main", "--version_tb"], capture_output=True, check=True)


def test_without_tensorboard_its_option_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(MissingExtra) as told:
        metrics.summary_writer()
    assert told.value.hint == "pip install 'smelt-match[train]'"


def test_means_are_over_tokens_and_over_sources() -> None:
    found = Validation(
        sources=(
            SourceLoss(name="a", category="X", tokens=10, nats=20.0, bytes=40),
            SourceLoss(name="b", category="Y", tokens=30, nats=30.0, bytes=60),
            SourceLoss(name="c", category="Y", tokens=10, nats=40.0, bytes=20),
        )
    )
    assert found.loss() == 90 / 50
    assert found.loss("Y") == 70 / 40
    assert found.loss_mean_sources == pytest.approx((2 + 1 + 4) / 3)
    assert found.bits_per_byte == pytest.approx(90 / 0.6931471805599453 / 120)
    assert found.categories == ("X", "Y")
    unknown = found.model_copy(
        update={"sources": (*found.sources, SourceLoss(name="d", category="X", tokens=1, nats=1.0))}
    )
    assert unknown.bits_per_byte is None
    assert Validation.model_validate_json(found.model_dump_json()) == found


def _documents_alone(engine: Engine, shards: Shards, source: str) -> tuple[float, int]:
    """Nats and tokens of a source's validation documents, each computed by itself."""
    stream, index = shards.validation, shards.source_id(source)
    nats = count = 0.0
    for document in range(stream.num_documents):
        if stream.sources_D[document] == index:
            start, stop = stream.offsets[document : document + 2]
            ids = torch.from_numpy(stream.tokens_N[start:stop].astype("int64"))
            targets = torch.cat((ids[1:], torch.tensor([stream.eos_id])))
            nats += F.cross_entropy(engine.model(ids[None]).logits_BSV[0], targets, reduction="sum").item()
            count += len(ids)
    return nats, int(count)


def test_validation_is_that_of_every_document_by_itself(shards: Shards) -> None:
    longest = int((shards.validation.offsets[1:] - shards.validation.offsets[:-1]).sum())
    engine = Engine(small(shards, context=longest, rows=1, micro_rows=1, steps=1, branches=(), warmup_steps=0,
                          validation_tokens=longest), ALONE)  # fmt: skip
    with torch.no_grad():
        for source in validate(engine, shards).sources:
            nats, count = _documents_alone(engine, shards, source.name)
            assert source.nats == pytest.approx(nats, rel=1e-5)
            assert source.tokens == count


def test_validation_reads_at_most_what_it_may(shards: Shards) -> None:
    found = validate(Engine(small(shards, validation_tokens=48), ALONE), shards)
    assert [source.tokens for source in found.sources] == [48, 48]
    assert all(0 < source.bytes < 48 for source in found.sources)


def test_weights_and_spec_read_back_as_the_same_model(shards: Shards, tmp_path: Path) -> None:
    engine = Engine(small(shards), ALONE)
    write_weights(engine, tmp_path)
    model = read_model(tmp_path)
    assert model.spec == engine.config.spec
    ids = torch.randint(0, 256, (2, 9))
    assert torch.equal(model(ids).logits_BSV, engine.model(ids).logits_BSV)
    (tmp_path / "model.yaml").write_text((tmp_path / "model.yaml").read_text().replace("18", "20"))
    with pytest.raises(BadInput, match="its weights are not those of"):
        read_model(tmp_path)


def test_a_run_that_has_not_ended_has_no_model(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="the run has not ended"):
        read_model(tmp_path)


def test_weights_can_be_read_by_whom_their_spec_can(shards: Shards, tmp_path: Path) -> None:
    write_weights(Engine(small(shards), ALONE), tmp_path)
    assert (tmp_path / "model.safetensors").stat().st_mode == (tmp_path / "model.yaml").stat().st_mode


def test_weights_on_a_full_disk_are_told_by_their_path(
    shards: Shards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(weights, "save_file", full)
    with pytest.raises(BadInput, match=r"model\.safetensors: cannot write there: .*No space left") as told:
        write_weights(Engine(small(shards), ALONE), tmp_path)
    assert "make room" in told.value.hint
    assert not list(tmp_path.glob("*.safetensors"))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("name", ["metrics.jsonl", "timings.jsonl"])
def test_a_log_on_a_full_disk_is_told_by_its_path(tmp_path: Path, name: str) -> None:
    (tmp_path / name).symlink_to("/dev/full")
    with pytest.raises(BadInput, match=f"{name}: cannot write there: No space left"), MetricsLog(tmp_path, 0) as log:
        log.write({"step": 1}, {"step": 1})


def test_metrics_hold_no_time(tmp_path: Path) -> None:
    with MetricsLog(tmp_path, 0) as log:
        log.write({"step": 1, "loss": 1.0}, {"step": 1, "tokens_per_second": 5.0})
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {"step": 1, "loss": 1.0}
