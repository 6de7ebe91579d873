"""The command: plans as whole outputs, a sweep from nothing to its table, and refusals."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from smelt_match.ablate.launch import Local, Slot
from smelt_match.cli import ablating
from tests.ablate.trainers import worker
from tests.cli.conftest import refused, start
from tests.conftest import Ran

Cli = Callable[..., Ran]
SHORT = ("--tokens", "8k", "--context", "64", "--rows", "2")
COUNT = ("ablate", "count", "--points", "1-2", *SHORT)
FOLDER = Path("runs/ablate-count-nano-s85")
SPEC = """\
name: tiny
hidden_size: 32
num_layers: 4
num_experts: 16
experts_per_token: 2
expert_intermediate_size: 16
num_attention_heads: 2
num_key_value_heads: 2
head_dim: 16
mean_attended_context: 32
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that train nothing."""
    monkeypatch.setattr(ablating, "_launcher", lambda _: Local([Slot("one"), Slot("two")], worker=worker))


@pytest.mark.parametrize("kind", ["span", "depth", "count"])
@pytest.mark.parametrize("form", ["table", "csv"])
def test_the_plan_of_each_of_the_papers_sweeps(cli: Cli, snapshot: SnapshotAssertion, kind: str, form: str) -> None:
    sparsity = "s85,s95" if kind == "span" else "s85"
    ran = cli("ablate", kind, "--scale", "200m", "--sparsity", sparsity, "--plan", "--format", form)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == snapshot


@pytest.mark.parametrize("form", ["md", "tex", "json"])
def test_a_plan_in_every_form(cli: Cli, snapshot: SnapshotAssertion, form: str) -> None:
    ran = cli(*COUNT, "--plan", "--format", form, "--shortlist", "2", "--branches", "50%,100%")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == snapshot


def test_the_papers_own_run_is_the_default_beyond_nano(cli: Cli) -> None:
    plan = json.loads(cli("ablate", "count", "--scale", "200m", "--plan", "--format", "json").out)
    assert (plan["steps_trunk"], plan["rows"], plan["context"]) == (196_075, 256, 4096)
    six = json.loads(cli("ablate", "count", "--scale", "200m", "--plan", "--branches", "paper", "--format", "json").out)
    assert six["forks"] == [10_000, 20_000, 50_000, 100_000, 150_000, 196_075]


def test_a_plan_writes_nothing(cli: Cli, here: Path) -> None:
    assert cli(*COUNT, "--plan").code == 0
    assert list(here.iterdir()) == []


@pytest.mark.usefixtures("quick")
def test_a_sweep_from_nothing_to_its_table_and_again(cli: Cli, snapshot: SnapshotAssertion) -> None:
    first = cli(*COUNT, "--seeds", "2", "--yes", "--no-probe")
    assert first.code == 0
    assert "nano_s85-count-2-seed1: done" in first.err
    assert "training FLOPs in total" in first.err
    assert first.out == snapshot
    again = cli(*COUNT, "--seeds", "2", "--no-probe")
    assert (again.code, again.out) == (0, first.out)
    assert "4 of 4 arms are done already" in again.err
    assert "time on this device" not in again.err
    for form in ("md", "tex", "csv", "json"):
        other = cli(*COUNT, "--seeds", "2", "--format", form)
        assert other.code == 0
        assert other.out == snapshot(name=form)
    told = cli("ablate", "status", FOLDER)
    assert (told.code, told.err) == (0, "")
    assert told.out == snapshot(name="status")
    assert json.loads(cli("ablate", "status", FOLDER, "--format", "json").out)["arms"][0]["state"] == "done"


@pytest.mark.usefixtures("quick")
def test_a_sweep_of_learning_rates_says_which_each_point_has(cli: Cli) -> None:
    swept = (*COUNT, "--lr", "1e-3", "--lr-sweep", "--yes", "--no-probe", "--out", "swept")
    ran = cli(*swept)
    assert ran.code == 0, ran.err
    assert "learning rate: each point its own, the best of short runs on the same validation set: count-1 0.001, " in (
        ran.out
    )
    assert "short runs of learning rates: at most " in ran.err
    assert "nano_s85-count-1: learning rate 0.001, of 0.0005, 0.001, 0.002" in ran.err
    again = cli(*swept, "--format", "json")
    assert "started" not in again.err
    document = json.loads(again.out)
    assert document["lr_sweep"] is True
    assert list(document["learning_rates"]["nano_s85-count-1"]["losses"]) == ["0.0005", "0.001", "0.002"]
    assert document["tables"][0]["rows"][0]["learning_rate"] == 0.001
    shared = cli(*COUNT, "--lr", "1e-3", "--yes", "--no-probe", "--out", "shared")
    assert "learning rate: 0.001, one for all arms" in shared.out


@pytest.mark.usefixtures("quick")
def test_the_status_lists_short_runs_apart_from_the_arms(cli: Cli, snapshot: SnapshotAssertion) -> None:
    asked = (*COUNT, "--shortlist", "2", "--lr-sweep", "--yes", "--no-probe", "--out", "swept")
    assert cli(*asked).code == 0
    lost = Path("swept/shortlist/nano_s85-count-2-match2-rung1")
    (lost / "ablation.json").unlink()
    (lost / "failure.json").write_text('{"message": "loss is nan at step 7", "hint": ""}')
    for form in ("table", "md", "tex", "csv", "json"):
        told = cli("ablate", "status", "swept", "--format", form)
        assert (told.code, told.err) == (0, "")
        assert told.out == snapshot(name=form)
    document = json.loads(told.out)
    assert [arm["name"] for arm in document["arms"]] == ["nano_s85-count-1-seed0", "nano_s85-count-2-seed0"]
    assert {run["part"] for run in document["short_runs"]} == {"shortlist", "rates"}


@pytest.mark.usefixtures("quick")
def test_failed_arms_are_told_at_the_end_beside_the_table_of_the_others(cli: Cli) -> None:
    assert cli(*COUNT, "--yes", "--no-probe", "--out", "kept").code == 0
    for place in Path("kept/arms").iterdir():
        (place / "ablation.json").unlink()
    (Path("kept/arms") / "nano_s85-count-2-seed0.mood").write_text("bad input")
    ran = cli(*COUNT, "--yes", "--no-probe", "--out", "kept")
    assert ran.code == 1
    assert "count-1" in ran.out
    assert "error: nano_s85-count-2-seed0: loss is nan at step 7" in ran.err
    assert "hint: the same command tries these arms again" in ran.err


@pytest.mark.usefixtures("quick")
def test_what_may_take_long_is_asked_for(cli: Cli) -> None:
    ran = cli(*COUNT, "--no-probe")
    assert ran.code == 2
    assert "how long this takes is not known, and nobody can be asked here" in ran.err
    assert "--yes goes on without asking" in ran.err
    assert not list(FOLDER.glob("arms/*"))


@pytest.mark.usefixtures("quick")
def test_another_sweep_in_the_same_folder_is_refused(cli: Cli) -> None:
    assert cli(*COUNT, "--yes", "--no-probe").code == 0
    ran = cli(*COUNT, "--yes", "--no-probe", "--lr", "0.5")
    assert ran.code == 2
    assert "training.learning_rate is" in ran.err
    assert "this sweep has 0.5" in ran.err


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--scale", "300m"], ["--scale '300m' is not one of nano, 100m, 200m, 600m, 1.6b"]),
        (["--sparsity", "s90"], ["--sparsity 's90' is not one of s85, s95, s97"]),
        (["--sparsity", ""], ["--sparsity '' is not one of"]),
        (["--heads", "both"], ["--heads 'both' is not one of uniform, split"]),
        (["--heads", "split"], ["count-3: split heads are unavailable", "hint: leave these points out"]),
        (["--baseline", "nothing"], ["unknown spec 'nothing'"]),
        (["--baseline", "200m_s85_smelt"], ["is itself looped"]),
        (["--grid", "nothing"], ["unknown grid 'nothing'"]),
        (["--points", "x"], ["'x' is not understood", "hint: write visits of the middle half"]),
        (["--tokens", "much"], ["--tokens: 'much'"]),
        (["--tokens", "100"], ["--tokens 100: less than one step"]),
        (["--branches", "200%"], ["--branches 200%: does not lie in the trunk's"]),
        (["--branches", "0%"], ["--branches 0%: does not lie"]),
        (["--branches", "soon"], ["--branches: 'soon'"]),
        (["--tokens", "10k", "--branches", "50%,51%"], ["--branches: 50% and 51% both fork after step"]),
        (["--reuse", "nowhere"], ["nowhere: holds no sweep"]),
        (["--launcher", "cloud"], ["--launcher 'cloud' is not one of local, slurm, ray"]),
        (["--slurm", "partition=a"], ["--slurm partition: only with --launcher slurm"]),
        (["--launcher", "slurm", "--slurm", "partition"], ["--slurm 'partition': write NAME=VALUE"]),
        (["--launcher", "slurm", "--slurm", "a=1", "--slurm", "a=2"], ["--slurm a is given twice: 1 and 2"]),
        (["--dtype", "int8"], ["--dtype 'int8' is not one of float32, bfloat16"]),
        (["--corpus", "nowhere"], ["nowhere: no such corpus folder"]),
        (["--format", "pdf"], ["--format 'pdf' is not one of"]),
    ],
)
def test_bad_input_is_refused_before_anything_is_made(cli: Cli, here: Path, args: list[str], told: list[str]) -> None:
    refused(cli("ablate", "count", "--plan", *args), *told)
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(("launcher", "library"), [("slurm", "submitit"), ("ray", "ray")])
@pytest.mark.parametrize("plan", [True, False])
def test_a_launcher_that_is_not_installed_is_told_before_anything_is_solved(
    cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch, launcher: str, library: str, plan: bool
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.setattr(ablating, "planned", lambda _: pytest.fail("a plan was solved"))
    ran = cli("ablate", "count", "--launcher", launcher, *(["--plan"] if plan else []))
    assert (ran.code, ran.out) == (3, "")
    assert ran.err == (
        f"error: --launcher {launcher} needs {library}, which is not installed\n"
        f"hint: pip install 'smelt-match[{launcher}]'\n"
    )
    assert list(here.iterdir()) == []


def test_the_status_of_no_sweep_is_refused(cli: Cli) -> None:
    refused(cli("ablate", "status", "."), "holds no sweep", "hint: name a folder that `smelt-match ablate` made")


def test_a_corpus_that_is_too_small_is_refused_before_anything_is_trained(cli: Cli) -> None:
    _corpus(Path("small"))
    ran = cli("ablate", "count", "--tokens", "100M", "--corpus", "small")
    refused(ran, "trunk: 99,991,552 tokens are asked for, and the corpus has", "hint: ask for fewer --tokens")
    assert not Path("runs").exists()


@pytest.mark.usefixtures("quick")
def test_a_run_that_is_too_short_to_measure_starts_no_probe(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smelt_match.ablate.probe._measured", lambda *_: pytest.fail("a probe was started"))
    ran = cli("ablate", "count", "--points", "1-2", "--tokens", "64", "--context", "64", "--rows", "1", "--yes")
    assert ran.code == 0
    assert "time on this device: not measured: a run of 2 steps is too short to measure" in ran.err


def test_a_real_sweep_of_a_tiny_model(cli: Cli) -> None:
    """Two arms by the trainer itself, probed, trained in processes of their own, and read again."""
    Path("tiny.yaml").write_text(SPEC)
    _corpus(Path("small"))
    args: tuple[Any, ...] = (
        "ablate", "count", "--baseline", "tiny.yaml", "--grid", "nano", "--points", "1-2", "--corpus", "small",
        "--tokens", "1k", "--context", "32", "--rows", "2", "--validation-tokens", "64", "--out", "out",
        "--format", "json",
    )  # fmt: skip
    first = cli(*args)
    assert first.code == 0, first.err
    assert "time on this device: about" in first.err
    document = json.loads(first.out)
    (table,) = document["tables"]
    assert [row["point"] for row in table["rows"]] == ["count-1", "count-2"]
    for row in table["rows"]:
        assert 2.5 < row["loss_nats_per_token"]["mean"] < 5.55  # a byte at random
        assert row["bits_per_byte"]["mean"] > 0
    assert table["rows"][1]["difference_nats"]["values"][0] != 0
    again = cli(*args)
    assert (again.code, again.out) == (0, first.out)


def test_sigterm_has_the_arms_save_their_steps_and_the_same_command_goes_on(cli: Cli) -> None:
    Path("tiny.yaml").write_text(SPEC)
    _corpus(Path("small"))
    args = (
        "ablate", "count", "--baseline", "tiny.yaml", "--grid", "nano", "--points", "1-2", "--corpus", "small",
        "--tokens", "5k", "--context", "32", "--rows", "2", "--validation-tokens", "64", "--out", "out", "--no-probe",
        "--yes", "--format", "csv",
    )  # fmt: skip
    process = start(*args)
    end = time.monotonic() + 60
    while not any("trunk 1/" in log.read_text() for log in Path("out").glob("arms/*/log.txt")):
        assert time.monotonic() < end
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (143, "")
    assert err.endswith("error: out: stopped, as SIGTERM asks\nhint: the same command goes on\n")
    reached = {path.parents[1]: int(path.read_text().strip()[-8:]) for path in Path("out").glob("arms/*/trunk/latest")}
    assert reached
    for arm, step in reached.items():
        assert 1 <= step < 78
        assert f"{arm.name}: stopped before its end; what it had trained is saved" in err
    again = cli(*args)
    assert again.code == 0, again.err
    for arm, step in reached.items():
        assert f"trunk {step + 1}/78" in (arm / "log.txt").read_text()


def _corpus(place: Path) -> None:
    from smelt_match.train.corpus.build import Recipe, build
    from smelt_match.train.corpus.builtin import BuiltIn
    from smelt_match.train.corpus.encoders import Bytes

    build(BuiltIn(sample_only=True), Bytes(), place, Recipe(max_validation_tokens=200, near=None))


def test_the_committed_sample_holds_no_near_copies() -> None:
    """That is why the sweep's own corpus is built without looking for them."""
    pytest.importorskip("datasketch")
    from smelt_match.train.corpus.build import Recipe, build
    from smelt_match.train.corpus.builtin import BuiltIn
    from smelt_match.train.corpus.encoders import Bytes

    assert build(BuiltIn(sample_only=True), Bytes(), Path("all"), Recipe()).removed.near == 0
