"""Tables that are wrong: every fault is told, row by row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smelt_match.errors import BadInput
from smelt_match.scaling.endpoints import EndPoints, end_points, excluded, mapping
from smelt_match.scaling.table import MAX_ROWS, read_table
from tests.scaling.synthetic import HEADER, rows, write

FILE = "endpoints.csv"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def load(**options: Any) -> EndPoints:
    return end_points(read_table(Path(FILE)), **options)


def refused(*told: str, **options: Any) -> None:
    with pytest.raises(BadInput) as caught:
        load(**options)
    text = f"{caught.value.message}\n{caught.value.hint}"
    for part in told:
        assert part in text, text


def changed(index: int, **changes: Any) -> None:
    """The sound table with one row changed."""
    table = rows()
    table[index] |= changes
    write(Path(FILE), table)


def test_a_sound_table_keeps_every_number() -> None:
    table = rows(3)
    write(Path(FILE), table)
    found = load()
    assert found.architectures == ["baseline", "smelt"]
    assert found.warnings == ()
    points = found.points("smelt")
    assert points.loss.tolist() == [row["loss"] for row in table if row["arch"] == "smelt"]
    assert np.all(points.weight == 1)


def test_json_lines_say_the_same_and_may_nest() -> None:
    table = rows(3)
    lines = [
        json.dumps({**{k: v for k, v in row.items() if k != "loss"}, "losses": {"all": row["loss"]}}) for row in table
    ]
    Path("endpoints.jsonl").write_text("\n".join(lines) + "\n\n")
    found = end_points(read_table(Path("endpoints.jsonl")), headers={"loss": "losses.all"})
    write(Path(FILE), table)
    assert np.array_equal(found.points("smelt").loss, load().points("smelt").loss)


def test_cells_pair_by_rank_within_a_scale() -> None:
    write(Path(FILE), rows())
    ours, theirs, count = load().paired_cells("smelt", "baseline")
    assert count == 12
    assert np.array_equal(ours, theirs)
    assert np.bincount(ours).tolist() == [6] * 12


@pytest.mark.parametrize(
    ("cell", "told"),
    [
        ("nan", "expected a finite number, found 'nan'"),
        ("inf", "expected a finite number, found 'inf'"),
        ("", "expected a finite number, found nothing"),
        ("1_0", "expected a finite number, found '1_0'"),
        ("1,5", "expected a finite number, found '1,5'"),
        ("two", "expected a finite number, found 'two'"),
        ("-1.5", "expected a loss from 1e-6 to 1000 nats, found '-1.5'"),
        ("0", "expected a loss from 1e-6 to 1000 nats, found '0'"),
        ("1e300", "expected a loss from 1e-6 to 1000 nats, found '1e300'"),
    ],
)
def test_a_loss_that_is_none_is_told_with_its_line(cell: str, told: str) -> None:
    changed(4, loss=cell)
    refused(f"endpoints.csv:6: loss: {told}")


def test_sparsity_in_per_cent_is_refused_with_a_hint() -> None:
    changed(0, sparsity=85)
    refused("endpoints.csv:2: sparsity: expected a share from 0 to 0.999999, found '85'", "0.85, not 85")


def test_every_fault_is_told_at_once_and_many_are_counted() -> None:
    table = rows()
    for row in table[:30]:
        row["tokens"] = -1
    table[40]["flops_per_token"] = "x"
    write(Path(FILE), table)
    refused("endpoints.csv:2: tokens", "endpoints.csv:42: flops_per_token", "more faults")


@pytest.mark.parametrize("column", [name for name in HEADER if name not in ("run", "arch", "scale")])
def test_a_missing_column_is_named(column: str) -> None:
    write(Path(FILE), [{k: v for k, v in row.items() if k != column} for row in rows()])
    refused(f"no column {column!r}", "--column ROLE=HEADER")


def test_columns_map_by_flags() -> None:
    write(Path(FILE), [{{"loss": "L", "tokens": "D"}.get(k, k): v for k, v in row.items()} for row in rows()])
    assert len(load(headers=mapping(["loss=L", "tokens = D"])).points("smelt")) == 72
    refused("no column 'loss'")
    refused("no column 'M'", headers={"loss": "M", "tokens": "D"})
    for text, told in (("loss", "write ROLE=HEADER"), ("lost=L", "did you mean loss"), ("loss=", "write ROLE=HEADER")):
        with pytest.raises(BadInput) as caught:
            mapping([text])
        assert told in caught.value.message + caught.value.hint


@pytest.mark.parametrize(("sign", "name"), [(";", "semicolons"), ("\t", "tabs"), ("|", "bars")])
def test_a_wrong_separator_is_named(sign: str, name: str) -> None:
    write(Path(FILE), rows())
    Path(FILE).write_text(Path(FILE).read_text().replace(",", sign))
    refused(f"cells are separated by {name}, not by commas")


def test_rows_of_another_length_are_told() -> None:
    write(Path(FILE), rows())
    with Path(FILE).open("a") as stream:
        stream.write("run,smelt\n")
    refused("endpoints.csv:146: 2 cells, the header has 7")


def test_headers_twice_or_empty_are_told() -> None:
    Path(FILE).write_text("a,a,,loss\n1,2,3,4\n")
    refused("two columns are named 'a'", "column 3 has no name")


def test_a_run_that_stands_twice_is_told_with_both_lines() -> None:
    write(Path(FILE), [*rows(), rows()[3]])
    refused("endpoints.csv:146: run '100m-s85' (baseline) ends at", "twice (first on line 5)")


def test_replicates_under_another_name_are_a_stated_warning() -> None:
    write(Path(FILE), [*rows(), rows()[3] | {"run": "again"}])
    assert load().warnings == ("1 rows repeat the cost of another row: they count as replicates",)


def test_sparsity_of_zero_is_a_stated_warning() -> None:
    changed(0, sparsity=0)
    (told,) = load().warnings
    assert "1 rows at S = 0 take part" in told
    assert "--exclude sparsity=0" in told


@pytest.mark.parametrize(("column", "exponent"), [("flops_per_token", "a"), ("sparsity", "b"), ("tokens", "c")])
def test_a_constant_column_names_the_exponent_that_it_leaves_open(column: str, exponent: str) -> None:
    value = rows()[0][column]
    write(Path(FILE), [row | {column: value, "run": str(i)} for i, row in enumerate(rows())])
    refused(
        f"baseline: {column} is", "in all 72 rows", f"exponent {exponent} cannot be told", f"--fix {exponent}=VALUE"
    )
    assert len(load(fixed=[exponent]).points("smelt")) == 72


def test_a_single_scale_cannot_tell_the_exponent_of_size() -> None:
    table = [row | {"flops_per_token": 6e8} for row in rows() if row["scale"] == "100m"]
    write(Path(FILE), table)
    refused("flops_per_token is 6e+08 in all 18 rows")


def test_cells_without_a_partner_are_named() -> None:
    write(Path(FILE), [row for row in rows() if row["run"] != "200m-s95" or row["arch"] == "smelt"])
    with pytest.raises(BadInput) as caught:
        load().paired_cells("smelt", "baseline")
    assert "scale 200m, sparsity level 3: only smelt has it" in caught.value.message
    assert "--unpaired" in caught.value.hint


def test_levels_too_far_apart_are_not_a_pair() -> None:
    write(Path(FILE), [row | ({"sparsity": 0.5} if row["run"] == "200m-s85" and row["arch"] == "smelt" else {})
                       for row in rows()])  # fmt: skip
    with pytest.raises(BadInput, match=r"smelt has 0\.5, baseline has 0\.84"):
        load().paired_cells("smelt", "baseline")


def test_a_million_rows_meet_a_stated_limit_at_once() -> None:
    line = "r,baseline,100m,0.85,6e8,2e10,2.0\n"
    Path(FILE).write_text(",".join(HEADER) + "\n" + line * 1_000_000)
    refused(f"more than {MAX_ROWS:,} rows", "an end point is one finished run")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is empty"),
        (",".join(HEADER) + "\n", "no rows"),
        ('run,loss\n"a,1\n', "not valid CSV"),
        ("a" * 200_000 + "\n1\n", "not valid CSV"),
        ("{}\n[1]\n", "endpoints.csv:2: expected an object"),
        ('{"a": 1}\n{"a": \n', "endpoints.csv:2: not JSON"),
        (",".join(map(str, range(3000))) + "\n", "3,000 columns"),
        ("loss\n\0\n", "binary data"),
    ],
)
def test_what_is_no_table_is_refused(text: str, told: str) -> None:
    Path(FILE).write_text(text)
    refused(told)


@pytest.mark.parametrize(
    ("condition", "left"),
    [
        ("scale=100m", 108), ("scale!=100m", 36), ("sparsity>0.9", 48), ("sparsity<=0.9", 96), ("run=*-s85", 96),
        ("arch = smelt", 72), ("tokens>=2e11", 120),
    ],
)  # fmt: skip
def test_rows_are_excluded_by_conditions(condition: str, left: int) -> None:
    write(Path(FILE), rows())
    assert len(excluded(read_table(Path(FILE)), [condition])) == left


@pytest.mark.parametrize(
    ("condition", "told"),
    [("scale", "write COLUMN=VALUE"), ("size=1", "no column 'size'"), ("loss>0", "every row is excluded")],
)
def test_conditions_that_mean_nothing_are_refused(condition: str, told: str) -> None:
    write(Path(FILE), rows())
    with pytest.raises(BadInput, match=told):
        excluded(read_table(Path(FILE)), [condition])


@pytest.mark.parametrize("header", ["architecture", "Arch", "ARCH", "archs", "architectures"])
def test_a_column_named_almost_arch_is_asked_about(header: str) -> None:
    write(Path(FILE), [{header if k == "arch" else k: v for k, v in row.items()} for row in rows()])
    refused(f"endpoints.csv: no column 'arch'; did you mean {header!r}?", f"--column arch={header}")
    assert load(headers={"arch": header}).architectures == ["baseline", "smelt"]


def test_a_column_named_almost_weight_is_asked_about() -> None:
    write(Path(FILE), [row | {"Weights": 2} for row in rows()])
    refused("no column 'weight'; did you mean 'Weights'?")


def test_rows_without_an_architecture_are_one_and_that_is_a_warning() -> None:
    table = [{k: v for k, v in row.items() if k != "arch"} for row in rows() if row["arch"] == "smelt"]
    write(Path(FILE), table)
    assert load().warnings == ("no column 'arch': 72 rows are fitted as one architecture",)


def test_replicates_on_an_isoflop_curve_are_a_stated_warning() -> None:
    table = [{"run": i, "arch": "smelt", "params": N, "tokens": 1e9, "loss": 2} for i, N in enumerate((1e8, 2e8, 2e8))]
    write(Path(FILE), table)
    (told,) = load(form="isoflop").warnings
    assert told == "1 rows repeat the cost of another row: they count as replicates, of which the least loss is taken"


def test_rows_of_weight_zero_are_no_points() -> None:
    table = [row | {"weight": 0 if index % 6 == 5 else 1} for index, row in enumerate(rows())]
    write(Path(FILE), table)
    found = load()
    assert len(found.points("smelt")) == 60
    assert found.points("smelt").D.max() < max(row["tokens"] for row in rows())
    assert found.table.left_out == {"weight=0": 24}
    write(Path(FILE), [row | {"weight": 0} for row in rows()])
    refused("every row is excluded")


def test_the_rows_that_a_condition_leaves_out_are_counted_and_none_is_a_warning() -> None:
    write(Path(FILE), rows())
    table = excluded(read_table(Path(FILE)), ["scale=100m", "scale=10*", "scale=3b"])
    assert table.left_out == {"scale=100m": 36, "scale=10*": 36, "scale=3b": 0}
    assert len(table) == 108
    assert end_points(table).warnings == ("--exclude 'scale=3b' leaves out no row",)


@pytest.mark.parametrize(
    ("condition", "told"),
    [
        ("loss<x", "--exclude 'loss<x': expected a number, found 'x'"),
        ("tokens>=", "expected a number, found ''"),
        ("scale>100", "endpoints.csv:2: scale: expected a number for --exclude 'scale>100', found '100m'"),
    ],
)
def test_only_numbers_are_more_or_less(condition: str, told: str) -> None:
    write(Path(FILE), rows())
    with pytest.raises(BadInput) as caught:
        excluded(read_table(Path(FILE)), [condition])
    assert told in caught.value.message
