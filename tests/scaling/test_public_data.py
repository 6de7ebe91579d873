"""Fits of end points that others published; skipped where the files are absent."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from smelt_match.errors import AnswerIsNo
from smelt_match.scaling.calibration import calibrate
from smelt_match.scaling.design import Points
from smelt_match.scaling.endpoints import EndPoints, end_points, excluded
from smelt_match.scaling.fit import certified, fit
from smelt_match.scaling.isoflop import isoflop
from smelt_match.scaling.subsets import subset_fit
from smelt_match.scaling.table import SCORE, Faults, read_table

DATA = Path(__file__).parents[3] / "shared" / "data"


def load(name: str, form: str, exclude: Sequence[str] = (), **headers: str) -> EndPoints:
    """A public file, or a skip."""
    path = DATA / name
    if not path.exists():
        pytest.skip(f"{name} is not here")
    return end_points(excluded(read_table(path), exclude), form, headers)


def test_olmo_ladder_subsets_with_the_exponents_of_c4() -> None:
    """Without the repeated runs: code doubles, pes2o and pile rise by 21 to 25 %, web-like domains by 0 to 4 %."""
    found = load("olmo_ladder_endpoints.csv", "chinchilla", ["run=*-rerun"],
                 params="N", tokens="D", loss="loss_c4_en")  # fmt: skip
    assert len(found.table) == 25
    aggregate = certified(fit({"all": found.points("all")}, fixed={"b": 0.0}), "c4")
    ratio = {name: subset_fit(aggregate, "all", loss, name) for name, loss in found.sources("loss_*").items()}
    assert ratio["loss_dolma_stack"].ratio == pytest.approx(2.0, abs=0.1)
    for name in ("loss_dolma_pes2o", "loss_pile"):
        assert 1.205 <= ratio[name].ratio <= 1.255, name
    for name in ("loss_dolma_common-crawl", "loss_dolma_reddit", "loss_dolma_books"):
        assert 1.0 <= ratio[name].ratio <= 1.04, name
    assert {name for name, one in ratio.items() if one.flagged} == {
        "loss_dolma_stack", "loss_dolma_pes2o", "loss_pile",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("hparams", "warmup", "decay", "printed", "within"),
    [
        ("base", "long", "kaplan", 0.701, 0.005),
        ("base", "short", "kaplan", 0.604, 0.003),
        ("base", "short", "chinchilla", 0.571, 0.003),
        ("tuned", "short", "const", 0.497, 0.003),
    ],
)
def test_optimal_sizes_of_porian_et_al(hparams: str, warmup: str, decay: str, printed: float, within: float) -> None:
    others = ["dataset!=rw", f"hparams!={hparams}", f"warmup!={warmup}", f"decay!={decay}"]
    v = load("porian_isoflop.csv", "isoflop", others, params="N", tokens="D").values
    assert isoflop(v["params"], v["tokens"], v["loss"]).exponent == pytest.approx(printed, abs=within)


def test_calibration_of_gadre_et_al() -> None:
    found = load("gadre_overtrain.csv", "calibration", loss="loss_c4_val")
    least = {"acc_hellaswag": 0.98, "acc_hellaswag_zeroshot": 0.98, "acc_arc_easy": 0.96, "acc_lambada_openai": 0.96,
             "acc_piqa": 0.95, "acc_winograd": 0.93, "acc_bigbench_qa_wikidata": 0.97}  # fmt: skip
    curves = {}
    for name, bound in least.items():
        curves[name] = calibrate(found.values["loss"], found.table.numbers(name, SCORE, Faults()), -1, name)
        assert curves[name].r2 > bound, name
    assert curves["acc_hellaswag"].unidentified == []
    assert curves["acc_hellaswag"].b == pytest.approx(0.25, abs=0.005)  # chance of four choices, which nobody told it
    assert "a" in curves["acc_piqa"].unidentified  # no model is near the top


def test_routed_language_models_of_clark_et_al_converge() -> None:
    """Another law fits these, and the tokens hardly vary: the fit converges, and says that it has no data term."""
    found = load("clark_routed_endpoints.csv", "calibration", loss="loss_validation")
    numbers = {name: found.table.numbers(name, SCORE, Faults())
               for name in ("dense_parameter_count", "total_parameter_count", "tokens")}  # fmt: skip
    F = 6 * numbers["dense_parameter_count"]
    S = 1 - numbers["dense_parameter_count"] / numbers["total_parameter_count"]
    ok = (S >= 0) & (S < 1) & (numbers["tokens"] > 0)
    points = Points(F, np.clip(S, 0, None), numbers["tokens"], found.values["loss"], np.ones(len(F))).take(ok)
    one = fit({"all": points}, fixed={"c": 0.3})
    assert one.certificate.gradient < 1e-6
    assert one.rmse("all") < 0.05
    with pytest.raises(AnswerIsNo, match="at a bound: K"):
        certified(one, "all")
