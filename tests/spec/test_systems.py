"""Published systems: what a source prints comes out, and what it leaves open stays open."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from smelt_match.budget.active import active_counts
from smelt_match.budget.context import Context
from smelt_match.budget.conventions import CONVENTIONS, convention
from smelt_match.budget.deviation import deviation
from smelt_match.budget.ledger import Budget, ledger
from smelt_match.budget.passes import flops_forward
from smelt_match.errors import BadInput
from smelt_match.export.expected import compare
from smelt_match.spec.family import countable, expand, read_specs, shipped
from smelt_match.spec.model import IncompleteSystem, ModelSpec
from tests.conftest import Ran

CONFIGS = Path(__file__).parent / "configs"
SYSTEMS = {name: entry.spec for name, entry in shipped().items() if entry.family not in ("smelt", "nano")}
COUNTED = sorted(name for name, spec in SYSTEMS.items() if isinstance(spec, ModelSpec))
OPEN = sorted(name for name, spec in SYSTEMS.items() if isinstance(spec, IncompleteSystem))
PAPER = convention("paper")


def system(name: str) -> ModelSpec:
    return countable(shipped()[name])


def budget(name: str, rule: str = "paper", tokens: int = 2048) -> Budget:
    return ledger(system(name), convention(rule), Context.causal(tokens)).budget


@pytest.mark.parametrize("name", COUNTED)
def test_every_figure_that_a_source_prints_comes_out(name: str) -> None:
    assert [line for line in compare(SYSTEMS[name]) if not line.agrees] == []


def test_every_system_says_where_it_is_from_and_what_was_checked() -> None:
    for name, spec in SYSTEMS.items():
        assert spec.source, name
        assert spec.verified, name
        assert spec.matches is None or spec.matches in SYSTEMS, name


@pytest.mark.parametrize("name", OPEN)
def test_what_a_source_leaves_open_is_named_and_not_guessed(name: str) -> None:
    spec = shipped()[name].spec
    assert isinstance(spec, IncompleteSystem)
    with pytest.raises(BadInput) as caught:
        countable(shipped()[name])
    assert "not determinable from what is published: " in caught.value.message
    assert all(missing in caught.value.message for missing in spec.missing)


def test_the_systems_of_the_survey_table_are_all_there() -> None:
    families = {entry.family for entry in shipped().values()}
    assert families >= {"huginn", "ouro", "saunshi", "schwethelm", "parcae", "lee", "loopmoe", "loopie", "smelt"}
    assert families >= {"universal-transformer", "albert", "moeut", "relaxed-recursive", "mixture-of-recursions"}
    assert families >= {"rins", "hrm-text", "inkling-2"}


# Huginn


def test_huginn_has_the_published_total() -> None:
    assert active_counts(system("huginn-3.5b")).total == 3_564_976_800
    assert active_counts(system("huginn-3.5b-r1")).total == 3_564_976_800


@pytest.mark.parametrize("passes", [2, 4, 8, 16, 32])
def test_forward_flops_of_huginn_are_linear_in_its_passes(passes: int) -> None:
    """By hand: blocks of 4·5280² and 3·5280·17920 matmul parameters, an adapter of 2·5280², a head of 65536·5280."""
    s = 4096
    block, adapter, head = 4 * 5280**2 + 3 * 5280 * 17920, 2 * 5280**2, 65536 * 5280
    executed = 4 + 4 * passes
    by_hand = 2 * (executed * block + passes * adapter + head) + executed * 4 * 5280 * Fraction(s + 1, 2)
    spec = system("huginn-3.5b").changed(layout=f"2-4-2x{passes}", backward_visits=min(8, passes))
    assert flops_forward(spec, convention("paper", include_head=True), Context.causal(s)) == by_hand


# Imports and entries are two readings of one model


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ("huginn-0125", "huginn-3.5b"), ("ouro-1.4b", "ouro-1.4b"), ("ouro-2.6b", "ouro-2.6b"),
        ("hrm-text-1b", "hrm-text-1b"), ("inkling-2-mini", "inkling-2-mini"),
    ],
)  # fmt: skip
def test_an_entry_counts_as_the_import_of_its_config(config: str, name: str) -> None:
    imported = countable(expand(str(CONFIGS / f"{config}.json"))[0])
    for rule in CONVENTIONS.values():
        context = Context.causal(2048)
        assert ledger(system(name), rule, context).budget == ledger(imported, rule, context).budget


def test_ouro_stores_a_cache_for_each_of_its_steps() -> None:
    assert active_counts(system("ouro-2.6b")).total == 2_667_974_657
    assert active_counts(system("ouro-1.4b")).total == 1_434_652_673
    for name, layers in (("ouro-1.4b", 24), ("ouro-2.6b", 48)):
        assert budget(name).kv == 4 * layers * 2 * 16 * 128
        assert budget(f"{name}-r1").kv == layers * 2 * 16 * 128
        assert active_counts(system(f"{name}-r1")).total == active_counts(system(name)).total
        last = system(name).changed(loop={"kv_policy": "last", "norm_after_visit": True})
        assert ledger(last, PAPER, Context.causal(9)).budget.kv == budget(f"{name}-r1").kv


# Saunshi


@pytest.mark.parametrize("name", ["saunshi-12x2", "saunshi-8x3", "saunshi-6x4", "saunshi-4x6", "saunshi-middle"])
def test_saunshi_pairs_match_flops_and_cache_exactly_and_halve_the_blocks(name: str) -> None:
    off = deviation(budget(name), budget("saunshi-24x1"))
    assert (off.flops, off.kv, off.attention) == (0, 0, 0)
    stored, blocks = budget(name).params - 2048, budget("saunshi-24x1").params - 2048
    assert Fraction(stored, blocks) == Fraction(system(name).num_layers, 24)


@pytest.mark.parametrize("gated", [True, False])
def test_no_ratio_of_saunshi_depends_on_the_gating_that_is_left_open(gated: bool) -> None:
    one, two = (system(name).changed(gated_mlp=gated) for name in ("saunshi-12x2", "saunshi-24x1"))
    off = deviation(*(ledger(spec, PAPER, Context.causal(1280)).budget for spec in (one, two)))
    assert off.flops == 0


# Schwethelm

SIZES = (6, 8, 10, 12, 14, 16, 18, 20, 24, 28, 34)


@pytest.mark.parametrize("r", [1, 2, 4, 8])
@pytest.mark.parametrize("size", SIZES)
def test_blocks_of_schwethelm_for_every_size_and_count(size: int, r: int) -> None:
    H, spec = 64 * size, system(f"schwethelm-s{size}-r{r}")
    by_hand = (20 if r == 1 else 4 + 16 // r) * 12 * H * H + (2 * H * H if r > 1 else 0)
    book = ledger(spec, PAPER, Context.causal(2048))
    assert sum(row.stored for row in book.rows if row.matmul) == by_hand
    assert sum(spec.visits.counts) == 20
    gains = 2 * spec.num_layers + 3  # norms of the blocks, the embedding, a pass, and the end
    assert book.budget.params == by_hand + gains * H


@pytest.mark.parametrize(("r", "over"), [(2, Fraction(1, 60)), (4, Fraction(1, 30)), (8, Fraction(1, 15))])
@pytest.mark.parametrize("size", SIZES)
def test_the_adapter_takes_schwethelm_over_by_its_passes(size: int, r: int, over: Fraction) -> None:
    """On matmul FLOPs of the blocks: 2·H²·r over 240·H², which is 6.7 % at r = 8."""
    looped, base = (ledger(system(f"schwethelm-s{size}-r{n}"), PAPER, Context.causal(2048)).totals for n in (r, 1))
    assert Fraction(looped.matmul - base.matmul, base.matmul) == over
    assert looped.scores == base.scores
    assert looped.kv == base.kv


@pytest.mark.parametrize(("r", "span"), [(2, "67 %"), (4, "50 %"), (8, "33 %")])
def test_spans_of_schwethelm_belong_to_two_four_and_eight_passes(r: int, span: str) -> None:
    layout = system(f"schwethelm-s20-r{r}").visits
    assert f"{len(layout.loop) / layout.num_layers:.0%}".replace("%", " %") == span


# Parcae


@pytest.mark.parametrize(
    ("name", "bare", "tables"),
    [
        ("parcae-140m-transformer", 67_643_712, 75_497_472), ("parcae-140m", 68_825_664, 75_497_472),
        ("parcae-370m-transformer", 184_576_512, 201_326_592), ("parcae-370m", 186_676_736, 201_326_592),
        ("parcae-770m-transformer", 395_887_680, 377_487_360), ("parcae-770m", 399_168_320, 377_487_360),
        ("parcae-1.3b-transformer", 729_888_768, 603_979_776), ("parcae-1.3b", 734_611_968, 603_979_776),
    ],
)  # fmt: skip
def test_totals_of_parcae_with_and_without_its_tables(name: str, bare: int, tables: int) -> None:
    H, L = system(name).hidden_size, system(name).num_layers
    gates = (L // 2) * 32 * (H // 128)
    blocks = L * (12 * H * H + 2 * H) + gates + 32768 * H + H
    loop = 0 if name.endswith("transformer") else 2 * H * H + 3 * H  # input matrix and readout; decay, step, a norm
    assert bare == blocks + loop
    assert tables == (L // 2) * 32768 * H
    assert active_counts(system(name)).total == bare + tables


def test_the_tables_of_parcae_decide_whether_its_parameters_match() -> None:
    for size in ("140m", "370m", "770m"):
        mine, theirs = f"parcae-{size}", f"parcae-{size}-transformer"
        assert deviation(budget(mine), budget(theirs)).params > Fraction(9, 1000)
        assert deviation(budget(mine, "torchtitan"), budget(theirs, "torchtitan")).params < Fraction(1, 100)


def test_adapters_of_rank_512_save_the_fifth_of_gemma_that_is_claimed() -> None:
    saved = 1 - Fraction(budget("relaxed-recursive-gemma-2b-r512").params, budget("gemma-2b").params)
    assert f"{float(saved):.1%}" == "19.4%"


# Lee

LEE = {
    128: (16, 18, 23), 256: (39, 45, 65), 384: (67, 81, 124), 512: (103, 129, 207), 640: (144, 184, 303),
    768: (190, 247, 417), 896: (246, 325, 560), 1024: (305, 407, 711),
}  # fmt: skip


@pytest.mark.parametrize("width", LEE)
def test_the_three_counts_of_each_width_of_lee(width: int) -> None:
    active, looped, plain = LEE[width]
    ends = 2 * 50257 * width
    for name in ("base", "looped"):
        assert round((active_counts(system(f"lee-d{width}-{name}")).executed + ends) / 1e6) == active
    for name, total in (("looped-moe", looped), ("moe", plain)):
        assert round((active_counts(system(f"lee-d{width}-{name}")).total or 0) / 1e6) == total


@pytest.mark.parametrize("width", LEE)
def test_lee_matches_flops_and_cache_up_to_the_routers(width: int) -> None:
    base = budget(f"lee-d{width}-base")
    looped, sparse = (deviation(budget(f"lee-d{width}-{name}"), base) for name in ("looped", "looped-moe"))
    assert (looped.flops, looped.kv, sparse.kv) == (0, 0, 0)
    assert 0 < sparse.flops < Fraction(1, 100)
    assert looped.params == Fraction(-1, 2)


# Files


def test_an_incomplete_system_of_a_users_own_is_read_and_refused(tmp_path: Path, cli: Callable[..., Ran]) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\nstatus: incomplete\nmissing: [head_dim]\nknown: {hidden_size: 64}\n")
    assert isinstance(read_specs(path)[0].spec, IncompleteSystem)
    ran = cli("count", str(path))
    assert ran.code == 2
    assert "mine: cannot be counted: not determinable from what is published: head_dim" in ran.err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("missing: []\n", "missing"),
        ("missing: [head_dim]\nknown: {head_dim: 4}\n", "'head_dim' is known"),
        ("missing: [head_dim]\nknown: {hidden: 4}\n", "'hidden' is not a field of a model"),
        ("", "missing"),
    ],
)
def test_an_incomplete_system_says_what_is_missing_and_what_is_known(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"name: mine\nstatus: incomplete\n{text}")
    with pytest.raises(BadInput) as caught:
        read_specs(path)
    assert message in caught.value.message


def test_every_shipped_spec_is_listed_once(cli: Callable[..., Ran]) -> None:
    lines = cli("specs", "list").out.splitlines()
    assert sorted(line.split()[0] for line in lines[2:]) == sorted(shipped())


def test_a_drawn_number_of_passes_is_told_with_its_worst_case(cli: Callable[..., Ran]) -> None:
    def counted(name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(cli("count", name, "--format", "json").out)["results"][0]
        return found

    bounded, unbounded, fixed = map(counted, ("mor-360m-expert3", "huginn-3.5b", "ouro-1.4b"))
    assert bounded["passes_drawn"]["expected"] == bounded["budget"]
    assert bounded["passes_drawn"]["worst"]["kv_elements_per_token"] == 32 * 2 * 5 * 64
    assert unbounded["passes_drawn"]["worst"] is None
    assert fixed["passes_drawn"] is None


def test_incomplete_systems_are_listed_and_shown(cli: Callable[..., Ran]) -> None:
    listed = cli("specs", "list", "loopie*")
    assert listed.code == 0
    assert listed.out.count("not determinable") == 3
    shown = cli("specs", "show", "loopie-20b-a2b")
    assert shown.code == 0
    assert shown.out.rstrip().endswith("not determinable from what is published: head_dim, tie_word_embeddings")
    assert '"missing": [' in cli("specs", "list", "loopie*", "--format", "json").out
    assert cli("specs", "show", "parcae-140m").code == 0
    assert cli("solve", "-b", "loopie-20b-a2b", "-l", "each x2").code == 2
