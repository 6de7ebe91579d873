"""`solve --objective step-time`: its row, its sentences and its JSON with a timer by formula, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest

from smelt_match.measure.step_time import StepTimer
from smelt_match.spec.model import ModelSpec
from tests.cli.conftest import Cli, Writer, refused

SOLVE = ("solve", "--baseline", "nano_s85", "--loop", "mid50x2", "--no-measure")
TIMED = (*SOLVE, "--objective", "step-time", "--device", "cpu")


@pytest.fixture
def formula(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds by formula, on a device with a name."""

    def rounds(_: StepTimer, specs: Sequence[ModelSpec]) -> Generator[tuple[float, ...], None, None]:
        while True:
            yield (1.0, *(spec.hidden_size / 128 + spec.num_experts / 1024 for spec in specs))

    monkeypatch.setattr(StepTimer, "rounds", rounds)
    monkeypatch.setattr("smelt_match.measure.step_time.device_name", lambda _: "Pretended 3000, 2 threads")
    monkeypatch.setattr("torch.__version__", "2.0+made.up")
    monkeypatch.setattr("torch.get_num_threads", lambda: 2)


@pytest.mark.usefixtures("formula")
def test_the_fastest_is_a_row_of_the_table_and_told_in_words(cli: Cli, snapshot: Any) -> None:
    ran = cli(*TIMED)
    assert ran.code == 0
    assert ran.out == snapshot
    assert ran.err == snapshot(name="progress")


@pytest.mark.usefixtures("formula")
def test_json_says_plainly_that_it_was_measured(cli: Cli) -> None:
    document = json.loads(cli(*TIMED, "--format", "json").out)
    found = document["step_time"]
    assert (found["measured"], found["repeatable"]) == (True, False)
    assert found["device"] == "Pretended 3000, 2 threads"
    assert (found["dtype"], found["tokens_per_step"], found["tokens_per_row"]) == ("float32", 783, 783)
    assert found["matched_models"] == {"uniform": 1, "split": 3}
    assert found["matched_within"] == {"uniform": 0.001, "split": 0.0035}
    assert (found["trials"], found["pruned"], found["rounds"]) == (4, 0, 9)
    assert found["fastest"]["policy"] == "split"
    assert found["fastest"]["config"]["hidden_size"] == 88
    assert found["fastest"]["step_ratio_to_baseline"]["median"] == 88 / 128 + 91 / 1024
    assert [one["policy"] for one in found["certified"]] == ["uniform", "split"]
    assert document["study"] is None


@pytest.mark.usefixtures("formula")
def test_a_tolerance_is_the_space(cli: Cli) -> None:
    found = json.loads(cli(*TIMED, "--format", "json", "--tolerance", "1%,1%,4%", "--trials", "3").out)["step_time"]
    assert found["matched_within"] == {"uniform": "tolerance", "split": "tolerance"}
    assert found["matched_models"]["split"] > 3
    assert found["trials"] == 3


@pytest.mark.usefixtures("formula")
def test_a_search_is_kept_continued_and_refused_elsewhere(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = (*TIMED, "--study", "s.journal", "--format", "json", "--tolerance", "1%,1%,4%")
    first = cli(*kept, "--trials", "3")
    assert first.code == 0
    again = cli(*kept, "--trials", "3")
    assert (again.out, again.err) == (first.out, "")
    assert json.loads(cli(*kept, "--trials", "5").out)["step_time"]["trials"] == 5
    before = Path("s.journal").read_bytes()
    monkeypatch.setattr("smelt_match.measure.step_time.device_name", lambda _: "Pretended 4000")
    refused(cli(*kept), "s.journal: device is Pretended 3000, 2 threads, this search has Pretended 4000")
    refused(cli(*kept, "--free-heads"), "s.journal: space is ")
    assert Path("s.journal").read_bytes() == before


@pytest.mark.usefixtures("formula")
def test_tables_without_words_have_the_ratio_in_their_note(cli: Cli) -> None:
    assert (
        "fastest: 0.776 (0.776 to 0.776) of the baseline's step, measured on Pretended" in cli(*TIMED, "-f", "md").out
    )
    assert "fastest (split)" in cli(*TIMED, "-f", "csv").out


def test_other_objectives_carry_no_times(cli: Cli) -> None:
    assert "step_time" not in json.loads(cli(*SOLVE, "--format", "json", "--trials", "2").out)


@pytest.mark.usefixtures("formula")
def test_nothing_to_choose_from_is_an_answer_of_no(cli: Cli) -> None:
    ran = cli(*TIMED, "--tolerance", "0.001%")
    assert ran.code == 1
    assert "no point of the grid lies within the tolerance" in ran.err
    assert "fastest" not in ran.out


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--objective", "step-tme"], ["--objective 'step-tme' is not one of certificate, step-time",
                                       "did you mean step-time?"]),
        (["--objective", ""], ["--objective '' is not one of"]),
        (["--objective", "loss"], ["--objective loss: not available yet", "--objective step-time looks"]),
        (["--objective", "step-time", "--no-study"], ["--objective step-time excludes --no-study"]),
        (["--objective", "step-time", "--device", "cuda:77"], ["--device 'cuda:77': this machine has no such device",
                                                              "devices here: cpu"]),
        (["--device", "cpu"], ["--device: only --objective step-time times anything"]),
        (["--tokens", "64"], ["--tokens: only --objective step-time times anything"]),
        (["--objective", "step-time", "--tokens", "0"], ["'--tokens'", "0"]),
    ],
)  # fmt: skip
def test_what_cannot_be_timed_is_refused(cli: Cli, here: Path, args: list[str], told: list[str]) -> None:
    refused(cli(*SOLVE, *args), *told)
    assert not list(here.iterdir())


def test_one_search_has_one_baseline(cli: Cli) -> None:
    refused(cli("solve", "-b", "nano", "-l", "mid50x2", "--objective", "step-time"), "one search has one baseline")


def test_a_model_that_cannot_be_built_is_refused_before_the_search(cli: Cli, spec: Writer) -> None:
    path = spec(attention_sinks="true")
    ran = cli("solve", "-b", path, "-l", "mid50x2", "--objective", "step-time", "--no-measure")
    refused(ran, "mine: attention_sinks: True cannot be built yet")


def test_a_real_search_runs_on_this_machine(cli: Cli, spec: Writer) -> None:
    path = spec(hidden_size=32, expert_intermediate_size=16, head_dim=8)
    small = ("--device", "cpu", "--tokens", "16", "--mean-context", "8", "--trials", "2", "--grid", "nano")
    ran = cli("solve", "-b", path, "-l", "mid50x2", "--objective", "step-time", *small, "--no-measure", "-f", "json")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)["step_time"]
    ratio = found["fastest"]["step_ratio_to_baseline"]
    assert 0 < ratio["quartile_low"] <= ratio["quartile_high"]
    assert found["tokens_per_step"] == 15
    assert ran.err.count("of the baseline's step") == found["trials"]
