"""Figures of real models: each is counted anew, by its own convention, and a wrong one is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from smelt_match.budget.context import Context
from smelt_match.budget.conventions import convention
from smelt_match.budget.ledger import ledger
from smelt_match.export import published
from smelt_match.export.published import verify_all
from smelt_match.spec.family import expand
from smelt_match.spec.model import ModelSpec
from smelt_match.spec.published import RealModel, real_models
from tests.conftest import Ran

CONFIGS = Path(__file__).parent.parent / "spec" / "configs"
MODELS = {model.spec.name: model for model in real_models()}


def flops(name: str, rule: str, tokens: int = 4096) -> Fraction:
    return ledger(MODELS[name].spec, convention(rule), Context.causal(tokens)).budget.flops


def test_every_figure_that_ships_agrees_to_its_last_digit() -> None:
    found = verify_all()
    assert [line for line in found if line.agrees is False] == []
    assert sum(line.agrees is True for line in found) > 140
    assert {line.basis for line in found} == {"published", "built", "arithmetic"}


def test_the_shapes_that_ship_are_those_of_the_whole_configs() -> None:
    for path in CONFIGS.glob("*.json"):
        model = next((model for name, model in MODELS.items() if name.lower() == path.stem), None)
        if model is None:
            assert path.stem in ("inkling-2-mini",)
            continue
        whole = expand(str(path))[0].spec
        assert isinstance(whole, ModelSpec)
        own = {"name", "source", "rope_theta", "rms_norm_eps"}
        assert model.spec.model_dump(exclude=own) == whole.model_dump(exclude=own)


def test_what_a_class_was_said_to_build_it_builds() -> None:
    pytest.importorskip("transformers")
    from smelt_match.measure.transformers import built

    for path in CONFIGS.glob("*.json"):
        model = next((model for name, model in MODELS.items() if name.lower() == path.stem), None)
        for figure in model.figures if model is not None else ():
            if figure.basis == "built" and "code" not in figure.source:
                found = built(path)
                assert (type(found).__name__, found.num_parameters()) == (figure.source, int(figure.value))


def test_causal_flops_per_token_of_deepseek() -> None:
    """Table 2 of arXiv 2505.09343 prints 155 and 250: all active parameters but the input embedding, half of s."""
    assert f"{float(flops('DeepSeek-V2', 'deepseek')) / 1e9:.2f}" == "155.31"
    assert f"{float(flops('DeepSeek-V3', 'deepseek')) / 1e9:.2f}" == "250.46"
    # Ratios of MFU in Table 4, all pairs to causal ones, where routers and norms are left out: 43.73 / 38.94.
    assert float(flops("DeepSeek-V3", "megatron") * 272.80e9 / 86_400 / 2048 / 989e12) == pytest.approx(
        0.3894, abs=5e-5
    )


@pytest.mark.parametrize(
    ("config", "heads", "sizes"),
    [
        ("llama-3.1-8b", 32 * 32, 2 * 128), ("qwen3-0.6b", 28 * 16, 2 * 128), ("qwen3-30b-a3b", 48 * 32, 2 * 128),
        ("deepseek-v2-lite", 27 * 16, 192 + 128), ("deepseek-v3", 61 * 128, 192 + 128), ("olmoe-1b-7b", 16 * 16, 256),
    ],
)  # fmt: skip
def test_the_integers_of_torchtitan_come_from_the_modules_it_would_count(config: str, heads: int, sizes: int) -> None:
    """torchtitan/models/utils.py: experts weighted by k / E, look-ups left out unless they are the head, 6·h·d·s."""
    pytest.importorskip("transformers")
    from smelt_match.measure.transformers import built

    model = built(CONFIGS / f"{config}.json")
    spec = expand(str(CONFIGS / f"{config}.json"))[0].spec
    assert isinstance(spec, ModelSpec)
    active = Fraction(0)
    for name, parameter in model.named_parameters():  # a tied head has the name of the embedding
        share = Fraction(spec.experts_per_token, spec.num_experts) if ".experts." in name else Fraction(1)
        lookup = "embed_tokens" in name and not spec.tie_word_embeddings
        active += 0 if lookup else share * parameter.numel()
    wanted = 6 * active + 6 * heads * sizes * 4096
    assert ledger(spec, convention("torchtitan"), Context.causal(4096)).budget.flops == wanted


def test_a_loop_stores_what_its_blocks_store_and_executes_what_its_visits_do() -> None:
    looped, deeper = MODELS["Pythia-1B-looped"].spec, MODELS["Pythia-1.4B"].spec
    by_six_n = [ledger(spec, convention("6n"), Context.causal(4096)).budget for spec in (looped, deeper)]
    assert by_six_n[0].flops == by_six_n[1].flops
    assert by_six_n[0].params < by_six_n[1].params
    assert by_six_n[0].kv == by_six_n[1].kv


def test_count_verify_prints_a_row_for_each_figure(cli: Callable[..., Ran]) -> None:
    ran = cli("count", "--verify")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines()[0].split() == [
        "model", "what", "convention", "figure", "counted", "agrees", "basis", "source",
    ]  # fmt: skip
    assert "  671,026,419,200  671,026,419,200  yes " in ran.out
    assert "14,848 of them: 58·256 correction biases" in ran.out
    assert "figures agree to their last digit; 28 printed figures cannot be counted" in ran.out


def test_count_verify_in_json_names_its_conventions(cli: Callable[..., Ran]) -> None:
    document = json.loads(cli("count", "--verify", "--format", "json").out)
    assert document["schema_version"] == 1
    row = next(row for row in document["figures"] if row["figure"] == "250.46e9")
    assert row == {
        "model": "DeepSeek-V3", "quantity": "flops_train_per_token", "convention": "deepseek, 4,096 tokens",
        "figure": "250.46e9", "counted": 250_455_926_784, "agrees": True, "basis": "arithmetic",
        "source": row["source"], "note": "",
    }  # fmt: skip


def test_a_figure_that_disagrees_is_told_and_ends_with_no(
    cli: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = MODELS["OLMoE-1B-7B"]
    wrong = model.figures[0].model_copy(update={"value": "6919161857"})
    monkeypatch.setattr(published, "real_models", lambda: [RealModel(model.spec, (wrong,))])
    ran = cli("count", "--verify")
    assert ran.code == 1
    line = next(line for line in ran.out.splitlines() if line.startswith("OLMoE"))
    assert line.split()[4:7] == ["6,919,161,857", "6,919,161,856", "NO"]
    assert "OLMoE-1B-7B: params_total (all parameters) is 6,919,161,857" in ran.err


@pytest.mark.parametrize(
    "args", [("200m_s95",), ("--measure",), ("--convention", "deepseek"), ("--context", "64"), ("--include-head",)]
)
def test_count_verify_takes_no_other_question(cli: Callable[..., Ran], args: tuple[str, ...]) -> None:
    ran = cli("count", "--verify", *args)
    assert (ran.code, ran.out) == (2, "")
    assert "every published figure has its own" in ran.err


def test_without_a_spec_the_two_ways_are_told(cli: Callable[..., Ran]) -> None:
    ran = cli("count")
    assert ran.code == 2
    assert "error: Missing argument 'SPEC'" in ran.err
    assert "--verify" in ran.err


def test_broken_data_is_told_by_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Any) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("models:\n  - name: x\n    config: {model_type: llama}\n    figures:\n      - {quantity: weight}\n")
    monkeypatch.setattr("smelt_match.spec.published.data_files", lambda _: [path])
    ran = cli("count", "--verify")
    assert ran.code == 2
    assert f"{path}:5: models.0.figures.0.quantity" in ran.err
