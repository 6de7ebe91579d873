"""What is given to the scaling commands beside their rows: it leaves a trace, and what cannot act is refused."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from smelt_match.budget.surface import read_surfaces
from tests.cli.conftest import Cli, refused
from tests.scaling import synthetic


@pytest.fixture(autouse=True)
def files(here: Path) -> None:
    synthetic.write_all(here)


def test_what_is_given_to_a_fit_is_in_its_notes_its_document_and_its_surface_file(cli: Cli) -> None:
    table = [row | {"weight": index % 3} for index, row in enumerate(synthetic.rows(0))]
    synthetic.write(Path("weighted.csv"), table)
    given = ("fit", "weighted.csv", "--fix", "b=0.15", "--exclude", "scale=100m", "--exclude", "scale=9b")
    ran = cli(*given)
    assert ran.err == "warning: --exclude 'scale=9b' leaves out no row\n"
    for told in (
        "given, not fitted: b = 0.15",
        "rows left out: 72 (scale=100m: 36, scale=9b: 0, weight=0: 36)",
        "rows weighted by column 'weight'",
    ):
        assert told in ran.out
    document = json.loads(cli(*given, "-f", "json").out)
    assert document["fixed"] == {"b": 0.15}
    assert document["excluded"][0] == {"condition": "scale=100m", "rows": 36}
    assert (document["num_rows_excluded"], document["weighted"]) == (72, True)
    assert [one["num_points"] for one in document["fits"]] == [36, 36]
    assert cli(*given, "-o", "surface.yaml").code == 0
    assert "given, not fitted: b = 0.15; rows left out: 72" in read_surfaces(Path("surface.yaml"))["smelt"].source


def test_nothing_given_leaves_no_line(cli: Cli) -> None:
    ran = cli("fit", "endpoints.csv")
    assert not any(word in ran.out for word in ("given", "left out", "weighted"))


@pytest.mark.parametrize("by", [(), ("--by", "source", "--sources", "loss_0")])
def test_a_gain_carries_its_seed_and_what_was_given(cli: Cli, by: tuple[str, ...]) -> None:
    given = ("gain", "endpoints.csv", "--draws", 40, "--seed", 7, "--fix", "b=0.15", "-x", "scale=100m", *by)
    document = json.loads(cli(*given, "-f", "json").out)
    assert (document["bootstrap"]["seed"], document["bootstrap"]["draws"]) == (7, 40)
    assert (document["fixed"], document["num_rows_excluded"], document["weighted"]) == ({"b": 0.15}, 36, False)
    out = cli(*given).out
    assert "given, not fitted: b = 0.15" in out
    assert "rows left out: 36 (scale=100m: 36)" in out


@pytest.mark.parametrize("by", [(), ("--by", "source", "--sources", "loss_0")])
@pytest.mark.parametrize("command", ["fit endpoints.csv", "gain endpoints.csv --draws 40 --seed 7 --unpaired"])
def test_csv_names_the_convention_and_what_was_given_in_every_row(cli: Cli, command: str, by: tuple[str, ...]) -> None:
    given = (*command.split(), "--fix", "b=0.15", "--shared", "a,c", "-x", "scale=100m", *by, "-f", "csv")
    rows = list(csv.DictReader(io.StringIO(cli(*given).out)))
    assert rows
    told = {
        "convention": "F as the end points count it", "shared": "a, c", "fixed": "b = 0.15",
        "excluded": "scale=100m: 36", "num_rows_excluded": "36", "weighted": "False",
    }  # fmt: skip
    if command.startswith("gain"):
        told |= {"target": "smelt", "reference": "baseline", "draws": "40", "paired": "False", "seed": "7"}
    for row in rows:
        assert {name: row[name] for name in told} == told
        assert "gain" not in row or row["flops"]


@pytest.mark.parametrize(
    ("form", "convention"),
    [("chinchilla", "F = 6·N, N as the end points count it"), ("isoflop", "C = 6·N·D, N as the end points count it")],
)
def test_csv_of_other_forms_names_their_convention(cli: Cli, form: str, convention: str) -> None:
    given = ("fit", "endpoints.csv", "--form", form, "--column", "params=flops_per_token", "-f", "csv")
    rows = list(csv.DictReader(io.StringIO(cli(*given).out)))
    assert {row["convention"] for row in rows} == {convention}


def test_csv_of_the_papers_surfaces_names_what_it_compares(cli: Cli) -> None:
    for row in csv.DictReader(io.StringIO(cli("gain", "-f", "csv").out)):
        assert (row["target"], row["convention"], row["seed"]) == ("smelt", "F as the end points count it", "")


@pytest.mark.parametrize(
    ("command", "condition", "rows"),
    [
        ("fit endpoints.csv", "scale=100m", 36),
        ("calibrate endpoints.csv --score score_*", "scale=100m", 36),
        ("calibrate endpoints.csv --score score_* --by scale", "scale=100m", 36),
        ("contrast length lengths.csv", "length=512", 32),
        ("contrast shots shots.csv", "shots=1", 10),
    ],
)
def test_rows_that_were_left_out_are_noted_with_their_reason(cli: Cli, command: str, condition: str, rows: int) -> None:
    given = (*command.split(), "--exclude", condition, "-f")
    for form in ("table", "md", "tex"):
        ran = cli(*given, form)
        assert (ran.code, ran.err) == (0, "")
        assert f"rows left out: {rows} ({condition}: {rows})" in ran.out
    document = json.loads(cli(*given, "json").out)
    assert document["excluded"] == [{"condition": condition, "rows": rows}]
    assert document["num_rows_excluded"] == rows
    for row in csv.DictReader(io.StringIO(cli(*given, "csv").out)):
        assert (row["excluded"], row["num_rows_excluded"]) == (f"{condition}: {rows}", str(rows))
    assert "rows left out" not in cli(*command.split()).out


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("fit endpoints.csv --form chinchilla --fix b=0.1", "--fix b: --form chinchilla has no b"),
        ("fit endpoints.csv --form chinchilla --shared a,b", "--shared b: --form chinchilla has no b"),
        ("fit endpoints.csv --sources loss_*", "--sources goes with --by source"),
        ("fit endpoints.csv --exclude tokens<many", "expected a number, found 'many'"),
        ("gain --unpaired", "--unpaired needs ENDPOINTS"),
        ("gain --shared a", "--shared needs ENDPOINTS"),
        ("gain --fix b=0.1", "--fix needs ENDPOINTS"),
        ("gain --exclude sparsity=0", "--exclude needs ENDPOINTS"),
        ("gain --column loss=L", "--column needs ENDPOINTS"),
        ("gain --draws 2000", "--draws needs ENDPOINTS"),
        ("gain --seed 0", "--seed needs ENDPOINTS"),
        ("gain --sources loss_*", "--sources goes with --by"),
        ("gain endpoints.csv --sources loss_*", "--sources goes with --by"),
        ("gain endpoints.csv --categories categories.yaml", "--categories goes with --by"),
    ],
)
def test_an_option_that_cannot_act_is_refused(cli: Cli, command: str, told: str) -> None:
    refused(cli(*command.split()), told)


def test_a_plan_as_csv_holds_the_answer(cli: Cli) -> None:
    command = ("plan", "--budget", "1e20", "--resolve", "0.005", "--seed-spread", "0.002", "-f")
    rows = list(csv.DictReader(io.StringIO(cli(*command, "csv").out)))
    document = json.loads(cli(*command, "json").out)
    kinds = {kind: [row for row in rows if row["row"] == kind] for kind in ("optimum", "model", "seeds")}
    for kind, told in (("optimum", document["allocations"]), ("model", document["models"])):
        assert len(kinds[kind]) == len(told)
        for row, other in zip(kinds[kind], told, strict=True):
            for key, value in other.items():
                assert row[key] == str(value), key
    (seeds,) = kinds["seeds"]
    assert seeds["seeds_per_side"] == str(document["resolution"]["seeds_per_side"])
    assert {row["flops"] for row in rows} == {"1e+20"}
    for form in ("md", "tex"):
        out = cli(*command, form).out
        assert "TPP" in out
        assert "seeds a side" in out


def test_the_list_of_commands_holds_whole_sentences(cli: Cli) -> None:
    lines = cli("--help").out.splitlines()
    for name in ("fit", "calibrate", "gain", "plan"):
        (line,) = [line for line in lines if line.split()[:1] == [name]]
        assert not line.endswith("Eq.")
        assert len(line.split()) > 5
    assert "weight" in cli("fit", "--help").out
    assert "surface file" in cli("fit", "--help").out
