"""The commands about scaling laws: whole outputs, files, refusals, and whatever a table holds."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from smelt_match.budget.surface import read_surfaces
from tests.cli.conftest import Cli, refused
from tests.cli.test_fuzz import damaged, ends_well, fewer
from tests.scaling import synthetic

CATEGORIES = "categories:\n  code: [loss_0, loss_1]\n  web: {loss_5: 2, loss_6: 1}\n"
TASKS = "categories:\n  easy: [score_0]\n  hard: {score_1: 0.25, score_2: 0.25}\n"
AT_ROUNDING = re.compile(r" \de(−|\$-\$)1\d|\d\.\d+e-1\d")  # gradients of certificates
LONG = re.compile(r"\d+\.\d{6,}")
RECURRENCE = "run,params_once,params_recurrent,recurrences,tokens,loss\n"


@pytest.fixture(autouse=True)
def files(here: Path) -> None:
    synthetic.write_all(here)
    Path("categories.yaml").write_text(CATEGORIES)
    Path("tasks.yaml").write_text(TASKS)


def recurrences() -> None:
    """loops.csv: runs that follow the law with φ = 0.46 exactly."""
    lines = [
        f"{N}-{r}-{D},{0.4 * N},{0.6 * N},{r},{D},{1.6 + 400 / (N * (0.4 + 0.6 * r**0.46)) ** 0.34 + 900 / D**0.3!r}"
        for N in (5e7, 2e8, 6e8, 1.6e9)
        for r in (1, 2, 4, 8)
        for D in (1e9, 4e9, 2e10)
    ]
    Path("loops.csv").write_text(RECURRENCE + "\n".join(lines) + "\n")


@pytest.mark.parametrize(
    "command",
    [
        "fit endpoints.csv",
        "fit endpoints.csv --format md",
        "fit endpoints.csv --format tex",
        "fit endpoints.csv --format csv",
        "fit endpoints.csv --shared a,b,c --format json",
        "fit endpoints.csv --by source",
        "gain",
        "gain endpoints.csv --draws 200",
        "gain endpoints.csv --draws 50 --unpaired --format json --budget 1e21 --sparsity 0.95",
        "gain endpoints.csv --by source --draws 100",
        "gain endpoints.csv --by quartile --draws 100 --format md",
        "gain endpoints.csv --by category --categories categories.yaml --draws 100 --format json",
        "plan --budget 1e20 --resolve 0.005 --seed-spread 0.002",
        "plan --budget 1e21 --only smelt --format json",
        "calibrate endpoints.csv --score score_*",
        "calibrate endpoints.csv --score score_* --by scale",
        "calibrate endpoints.csv --score score_* --by category --categories tasks.yaml",
        "contrast length lengths.csv",
        "contrast shots shots.csv",
    ],
)
def test_the_whole_output_is_as_before(cli: Cli, snapshot: SnapshotAssertion, command: str) -> None:
    """Tables whole; the last digits of JSON numbers differ between processors and are cut."""
    ran = cli(*command.split())
    assert (ran.code, ran.err) == (0, "")
    if "json" in command:
        assert rounded(json.loads(ran.out)) == snapshot
    else:
        out = AT_ROUNDING.sub("rounding", ran.out)
        assert LONG.sub(lambda found: f"{float(found[0]):.6g}", out) == snapshot


def rounded(value: Any) -> Any:
    """Numbers to six digits; certificates at rounding as such."""
    if isinstance(value, dict):
        return {key: "rounding" if key.startswith("scaled_gradient") and inner < 1e-10 else rounded(inner)
                for key, inner in value.items()}  # fmt: skip
    if isinstance(value, list):
        return [rounded(inner) for inner in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def test_the_same_command_gives_the_same_bytes(cli: Cli) -> None:
    for command in ("gain endpoints.csv --draws 100 --format json", "fit endpoints.csv --format json"):
        assert cli(*command.split()).out == cli(*command.split()).out


def test_a_surface_file_feeds_gain_and_plan(cli: Cli) -> None:
    assert cli("fit", "endpoints.csv", "-o", "surface.yaml").code == 0
    assert list(read_surfaces(Path("surface.yaml"))) == ["baseline", "smelt"]
    fitted = json.loads(cli("gain", "endpoints.csv", "--draws", 0, "--format", "json").out)
    read = json.loads(cli("gain", "--surface", "surface.yaml", "--format", "json").out)
    for ours, theirs in zip(fitted["gains"], read["gains"], strict=True):
        assert ours["gain"] == theirs["gain"]
    assert cli("plan", "--budget", "1e20", "--surface", "surface.yaml").code == 0
    refused(cli("fit", "endpoints.csv", "-o", "surface.yaml"), "exists already")


def test_solved_models_are_planned_with(cli: Cli) -> None:
    solve = ("solve", "-b", "600m_s95", "-l", "mid50x2", "--no-study", "--no-measure", "--format", "json")
    assert cli(*solve, "-o", "match.json").code == 0
    ran = cli("plan", "--budget", "1e21", "--models", "match.json", "--models", "600m_s95", "--format", "json")
    models = {row["model"] for row in json.loads(ran.out)["models"]}
    assert models == {"600m_s95", "600m_s95_uniform", "600m_s95_split"}
    Path("other.json").write_text('{"matches": [{}]}')
    refused(
        cli("plan", "--budget", "1e21", "--models", "other.json"), "not a document that `solve --format json` wrote"
    )


def test_the_recurrence_law(cli: Cli) -> None:
    recurrences()
    document = json.loads(cli("fit", "loops.csv", "--form", "phi", "--format", "json").out)
    assert document["phi"] == pytest.approx(0.46, abs=1e-8)
    assert document["coefficients"]["A"] == pytest.approx(400, rel=1e-5)
    assert "0.4600" in cli("fit", "loops.csv", "--form", "phi").out
    refused(cli("fit", "loops.csv", "--form", "phi", "--fix", "a=0.3"), "goes with none of --shared, --fix")
    refused(cli("fit", "loops.csv", "--form", "phi", "--exclude", "recurrences>1"), "r is 1 in all rows", code=1)


def test_the_form_of_chinchilla_is_a_surface_over_6n(cli: Cli) -> None:
    lines = [
        f"{N},{D},{1.69 + 406.4 / N**0.34 + 410.7 / D**0.28!r}" for N in (1e8, 4e8, 1e9, 7e9) for D in (2e9, 2e10, 2e11)
    ]
    Path("c.csv").write_text("params,tokens,loss\n" + "\n".join(lines) + "\n")
    assert cli("fit", "c.csv", "--form", "chinchilla", "-o", "c.yaml").code == 0
    surface = read_surfaces(Path("c.yaml"))["all"]
    assert surface.A / 6**surface.a == pytest.approx(406.4, rel=1e-7)
    assert (surface.E, surface.K, surface.a, surface.b, surface.c) == pytest.approx(
        (1.69, 410.7, 0.34, 0, 0.28), rel=1e-7
    )
    assert cli("plan", "--budget", "1e21", "--surface", "c.yaml", "--sparsity", "0").code == 0


def test_isoflop_curves(cli: Cli) -> None:
    lines = []
    for C in (1e18, 1e19, 1e20):
        for x in (0.1, 0.3, 0.6, 1, 2, 4, 9):
            N = (C / 12) ** 0.5 * x
            D = C / 6 / N
            lines.append(f"{N!r},{D!r},{1.5 + 300 / N**0.3 + 243.7 / D**0.3!r}")
    Path("iso.csv").write_text("params,tokens,loss\n" + "\n".join(lines) + "\n")
    document = json.loads(cli("fit", "iso.csv", "--form", "isoflop", "--format", "json").out)
    assert document["curves"][0]["exponent"] == pytest.approx(0.5, abs=0.02)
    assert "N* ∝ C^0.5" in cli("fit", "iso.csv", "--form", "isoflop").out


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("fit nowhere.csv", "no such table"),
        ("fit endpoints.csv --form surfaces", "--form 'surfaces' is not one of"),
        ("fit endpoints.csv --optimizer adam", "--optimizer 'adam' is not one of"),
        ("fit endpoints.csv --shared a,d", "--shared 'd' is not one of"),
        ("fit endpoints.csv --fix a", "write a=VALUE"),
        ("fit endpoints.csv --fix a=9", "a value from 0.001 to 5"),
        ("fit endpoints.csv --fix x=1", "--fix 'x' is not one of"),
        ("fit endpoints.csv --format xml", "--format 'xml' is not one of"),
        ("fit endpoints.csv --by category", "--by 'category' is not one of"),
        ("fit endpoints.csv --by source --sources x_*", "no column matches 'x_*'"),
        ("fit endpoints.csv --by source -o x.yaml", "does not go into a surface file"),
        ("fit endpoints.csv --exclude arch=smelt --shared a", "has one architecture only"),
        ("fit endpoints.csv --form chinchilla", "no column 'params'"),
        ("gain endpoints.csv --surface x.yaml", "exclude each other"),
        ("gain --target looped", "no architecture 'looped'"),
        ("gain --target baseline", "both 'baseline'"),
        ("gain --budget 1e21,x", "--budget 'x': write numbers"),
        ("gain --sparsity 85", "--sparsity '85': write numbers from 0 to 1"),
        ("gain --by source", "needs ENDPOINTS"),
        ("gain --charts here", "needs ENDPOINTS"),
        ("gain endpoints.csv --by source --budget 1e20,1e21", "takes one --budget"),
        ("gain endpoints.csv --by category", "need each other"),
        ("gain endpoints.csv --by category --categories tasks.yaml", "no column 'score_0'"),
        ("plan --budget 0", "--budget '0'"),
        ("plan --budget 1e20 --only x", "no such surface"),
        ("plan --budget 1e20 --resolve 0.01", "need each other"),
        ("plan --budget 1e20 --resolve 0.01 --seed-spread nan", "--seed-spread nan"),
        ("plan --budget 1e20 --resolve 0.01 --seed-spread 0.01 --power 1", "--power 1"),
        ("calibrate endpoints.csv --score x_*", "no column matches 'x_*'"),
        ("calibrate endpoints.csv --score score_* --reference x", "no architecture 'x'"),
        ("calibrate endpoints.csv --score score_* --by category", "needs --categories"),
        ("calibrate endpoints.csv --score score_* --by scale --exclude arch=smelt", "the only architecture"),
        ("contrast length shots.csv", "no column"),
        ("contrast length lengths.csv --exclude length>32", "one length only"),
        ("contrast length lengths.csv --reference x", "no architecture 'x'"),
        ("contrast shots shots.csv --target baseline", "both 'baseline'"),
    ],
)
def test_what_cannot_be_done_is_refused(cli: Cli, command: str, told: str) -> None:
    refused(cli(*command.split()), told)


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("fit endpoints.csv --exclude scale!=100m --exclude tokens>1.3e11 --exclude sparsity<0.9", "not identified"),
        ("calibrate endpoints.csv --score score_* --lower-is-better", "no curve that rises"),
        ("contrast length lengths.csv --target baseline --reference smelt", "none of the 16 contrasts improves"),
        ("plan --budget 1e20 --resolve 1e-9 --seed-spread 1", "more than 1,000,000 seeds"),
    ],
)
def test_an_answer_of_no_is_an_error_and_not_a_table(cli: Cli, command: str, told: str) -> None:
    refused(cli(*command.split()), told, code=1)


def test_metrics_without_a_curve_are_left_out_and_told(cli: Cli) -> None:
    table = [row | {"score_up": row["loss"]} for row in synthetic.with_scores(synthetic.rows(0))]
    synthetic.write(Path("endpoints.csv"), table)
    ran = cli("calibrate", "endpoints.csv", "--score", "score_*")
    assert ran.code == 0
    assert "warning: left out: score_up: no curve that falls with the loss fits" in ran.err
    assert "score_2" in ran.out


def test_lengths_and_shots_that_do_not_pair_are_told(cli: Cli) -> None:
    synthetic.write(Path("lengths.csv"), synthetic.lengths()[1:])
    refused(cli("contrast", "length", "lengths.csv"), "baseline 100m, sparsity level 1 lacks length 32")
    synthetic.write(Path("lengths.csv"), [*synthetic.lengths(), synthetic.lengths()[0]])
    refused(
        cli("contrast", "length", "lengths.csv"), "lengths.csv:258: baseline 100m, sparsity level 1 has length 32 twice"
    )
    synthetic.write(Path("shots.csv"), synthetic.shots()[1:])
    refused(cli("contrast", "shots", "shots.csv"), "task-0, k = 0: 1 rows of smelt, 0 of baseline")


def test_warnings_go_to_stderr(cli: Cli) -> None:
    table = synthetic.rows(0)
    table[0]["sparsity"] = 0
    synthetic.write(Path("endpoints.csv"), table)
    ran = cli("fit", "endpoints.csv")
    assert "warning: 1 rows at S = 0 take part" in ran.err
    assert "warning" not in ran.out


whole = ",".join(synthetic.HEADER) + "\n" + "".join(
    ",".join(map(str, row.values())) + "\n" for row in synthetic.rows(0)[::6]
)  # fmt: skip


@fewer
@given(data=st.one_of(st.binary(max_size=300), st.text(max_size=300).map(str.encode), damaged(whole.encode())))
@example(data=b"\xef\xbb\xbf")
@example(data=b"\xef\xbb\xbf\n")
def test_any_bytes_as_end_points(data: bytes) -> None:
    Path("any.csv").write_bytes(data)
    ends_well("fit", "any.csv", "--format", "csv")


@fewer
@given(
    command=st.sampled_from([["gain"], ["plan", "--budget", "1e20"], ["gain", "endpoints.csv", "--draws", "1"]]),
    option=st.sampled_from(["--budget", "--sparsity", "--target", "--only", "--resolve", "--fix", "--by", "--seed"]),
    value=st.one_of(st.text(max_size=12), st.floats().map(str), st.sampled_from(["1e308", "1e-308", "-1", "0", "1"])),
)
def test_any_value_of_an_option(command: list[str], option: str, value: str) -> None:
    ends_well(*command, f"{option}={value}", "-f", "csv")


@fewer
@given(data=st.one_of(st.binary(), damaged(CATEGORIES.encode())))
def test_any_bytes_as_categories(data: bytes) -> None:
    Path("any.yaml").write_bytes(data)
    ends_well("gain", "endpoints.csv", "--by", "category", "--categories", "any.yaml", "--draws", "0", "-f", "csv")


few = settings(fewer, max_examples=20)
counts = st.one_of(st.floats(1, 1e3), st.sampled_from([1.0, 6e8, 1e12, 1e30]))
losses = st.one_of(st.floats(0.5, 4), st.sampled_from([1e-6, 1.0, 1e3]))
shares = st.one_of(st.floats(0, 0.99), st.sampled_from([0.0, 0.85, 0.999999]))
end_point = st.tuples(st.sampled_from(["a", "b"]), st.sampled_from(["1", "2"]), shares, counts, counts, losses)


@few
@given(
    table=st.lists(end_point, min_size=1, max_size=24),
    command=st.sampled_from(
        [["fit"], ["fit", "--shared", "a,b,c"], ["fit", "--by", "source", "--sources", "tokens"],
         ["gain", "--target", "a", "--reference", "b", "--draws", "5", "--unpaired"],
         ["calibrate", "--score", "tokens", "--reference", "a"]]
    ),
)  # fmt: skip
def test_any_numbers_as_end_points(table: list[tuple[Any, ...]], command: list[str]) -> None:
    lines = [",".join(map(str, row)) for row in table]
    Path("any.csv").write_text("arch,scale,sparsity,flops_per_token,tokens,loss\n" + "\n".join(lines) + "\n")
    ends_well(command[0], "any.csv", *command[1:], "-f", "json")


coefficients = st.fixed_dictionaries(
    {
        "E": st.sampled_from([0.0, 1.4, 1e3]),
        **{name: st.sampled_from([1e-100, 1e-3, 1e3, 1e6, 1e100]) for name in "AK"},
        **{name: st.sampled_from([0.001, 0.3, 0.7, 10.0]) for name in "ac"},
        "b": st.sampled_from([-10.0, 0.0, 0.15, 10.0]),
    }
)


@fewer
@given(one=coefficients, two=coefficients, form=st.sampled_from(["json", "table", "csv"]))
def test_any_coefficients_as_surfaces(one: dict[str, float], two: dict[str, float], form: str) -> None:
    pair = [{"name": "smelt", **one}, {"name": "baseline", **two}]
    Path("any.yaml").write_text(json.dumps({"surfaces": pair}))
    assert ends_well("gain", "--surface", "any.yaml", "-f", form) == 0
    assert ends_well("plan", "--budget", "1e21", "--surface", "any.yaml", "--models", "200m_s95", "-f", form) == 0


def test_surfaces_beyond_numbers_are_refused(cli: Cli) -> None:
    surface = {"name": "smelt", "E": 1e9, "A": 1e200, "K": 1e3, "a": 1e-9, "b": 0.1, "c": 0.3}
    Path("any.yaml").write_text(json.dumps({"surfaces": [surface]}))
    refused(cli("plan", "--budget", "1e21", "--surface", "any.yaml"), "smelt: E is 1e+09", "A is 1e+200", "a is 1e-09")


def test_both_optimisers_find_the_same_surface(cli: Cli) -> None:
    given = ("--fix", "a=0.38", "--fix", "b=0.15", "--fix", "c=0.68", "--format", "json")
    ours, theirs = (
        json.loads(cli("fit", "endpoints.csv", "--optimizer", name, *given).out)["fits"]
        for name in ("newton", "lbfgsb")
    )
    for one, two in zip(ours, theirs, strict=True):
        assert one["coefficients"] == pytest.approx(two["coefficients"], rel=1e-5)
        assert one["certificate"]["objective"] == pytest.approx(two["certificate"]["objective"], rel=1e-8)


def test_weights_are_taken_from_the_table(cli: Cli) -> None:
    table = synthetic.rows(0)
    doubled = [row | {"weight": 2 if row["scale"] == "100m" else 1} for row in table]
    synthetic.write(Path("weighted.csv"), doubled)
    again = [row | {"run": row["run"] + "-again"} for row in table if row["scale"] == "100m"]
    synthetic.write(Path("repeated.csv"), table + again)
    one, two = (
        json.loads(cli("fit", name, "--format", "json").out)["fits"] for name in ("weighted.csv", "repeated.csv")
    )
    for weighted, repeated in zip(one, two, strict=True):
        assert weighted["coefficients"] == pytest.approx(repeated["coefficients"], rel=1e-6)
