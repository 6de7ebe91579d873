"""The exact solver: golden floors and optima, and agreement with brute force on random problems."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from smelt_match.budget.context import Context
from smelt_match.budget.conventions import convention
from smelt_match.budget.tolerance import Tolerance
from smelt_match.errors import BadInput
from smelt_match.match.answer import answer
from smelt_match.match.certificate import certificate
from smelt_match.match.grid import Grid, find_grid
from smelt_match.match.order import order_key
from smelt_match.match.problem import Points, Problem, Question
from smelt_match.match.solver import kv_floor, pure_minimax, solve
from smelt_match.match.verify import verify
from smelt_match.spec.grammar import parse_layout
from smelt_match.spec.layout import Layout
from smelt_match.spec.model import ModelSpec
from tests.match.brute import Model, Search

Ask = Callable[..., Question]
SPARSE = [f"{scale}_{level}" for scale in ("100m", "200m", "600m", "1.6b") for level in ("s85", "s95", "s97")]


def deviations(problem: Problem, point: tuple[int, ...]) -> dict[str, Fraction]:
    values = problem.values(Points.of(point))
    return {name: problem.relative(name, int(column[0])) for name, column in values.items()}


def test_the_raw_minimax_of_the_paper_s_pair_is_one_sixty_fourth_with_its_ties(ask: Ask) -> None:
    free = Problem(ask("200m_s95", "mid50x2", grid="raw", heads="free-kv"), "uniform")
    assert pure_minimax(free) == (Fraction(1, 64), 53_735)
    two_kv_heads = Problem(ask("200m_s95", "mid50x2", grid="raw", heads="free"), "uniform")
    assert pure_minimax(two_kv_heads) == (Fraction(1, 32), 125_551)


def test_the_raw_grid_has_115_billion_points(ask: Ask) -> None:
    problem = Problem(ask("200m_s95", "mid50x2", grid="raw", heads="free-kv"), "uniform")
    sizes = [len(problem.axes[name]) for name in ("hidden_size", "num_experts", "expert_intermediate_size")]
    assert sizes[0] * sizes[1] * sizes[2] * len(problem.geometries) == 115_172_966_400


@pytest.mark.parametrize("name", SPARSE)
def test_a_sparse_cell_matches_closely_with_heads_kept(ask: Ask, name: str) -> None:
    """H, I, E, d on multiples of 8, mid50x2: the figures each of the paper's twelve sparse cells reaches."""
    uniform, split = answer(ask(name, "mid50x2")).policies
    assert uniform.problem is not None
    assert uniform.solution is not None
    point = uniform.solution.ranked[0]
    assert all(size % 8 == 0 for size in point[:4])
    off = deviations(uniform.problem, point)
    assert abs(off["flops"]) <= Fraction(5, 1000)
    assert abs(off["params"]) <= Fraction(5, 1000)
    assert off["kv"] == (Fraction(-1, 28) if name.startswith("100m") else Fraction(1, 32))
    assert point[4:] == (uniform.problem.question.baseline.num_attention_heads, 2)
    assert split.problem is not None
    assert split.solution is not None
    off = deviations(split.problem, split.solution.ranked[0])
    assert (off["kv"], off["attention"]) == (0, 0)
    assert max(abs(off["flops"]), abs(off["params"])) <= Fraction(35, 10_000)


@pytest.mark.parametrize(
    ("name", "kept_percent", "freed_percent", "query_heads"),
    [("100m_s0", "10.88", "1.05", 18), ("200m_s0", "7.03", "0.34", 20), ("600m_s0", "7.11", "0.05", 32),
     ("1.6b_s0", "7.30", "0.06", 42)],
)  # fmt: skip
def test_a_dense_cell_frees_its_query_heads_and_says_so(
    ask: Ask, name: str, kept_percent: str, freed_percent: str, query_heads: int
) -> None:
    question = ask(name, "mid50x2")
    kept = solve(Problem(question, "uniform"))
    assert kept is not None
    assert f"{float(kept.minimax) * 100:.2f}" == kept_percent  # nothing within 7 %
    uniform = answer(question).policies[0]
    assert "query heads were freed" in uniform.reason
    assert uniform.solution is not None
    assert f"{float(uniform.solution.minimax) * 100:.2f}" == freed_percent
    H, E, I, d, n_q, _ = uniform.solution.ranked[0]
    assert (E, n_q) == (16, query_heads)
    base = question.baseline
    width = Fraction(n_q * d, H) / Fraction(base.num_attention_heads * base.head_dim, base.hidden_size)
    expert = Fraction(I, H) / Fraction(base.expert_intermediate_size, base.hidden_size)
    assert Fraction(1, 2) <= width <= 2
    assert Fraction(1, 2) <= expert <= 2


@pytest.mark.parametrize("name", [*SPARSE, "100m_s0", "nano_s85"])
def test_an_unlooped_layout_returns_the_baseline_itself_at_zero(ask: Ask, name: str) -> None:
    uniform, split = answer(ask(name, "none")).policies
    assert uniform.problem is not None
    assert uniform.solution is not None
    config = uniform.problem.question.baseline.config()
    assert uniform.problem.spec_at(uniform.solution.ranked[0], "x").config() == config
    assert set(deviations(uniform.problem, uniform.solution.ranked[0]).values()) == {Fraction(0)}
    assert split.solution is None
    assert "repeats nothing" in split.reason


@pytest.mark.parametrize(
    ("loop", "head_dim", "floor"),
    [("mid33x2", 96, Fraction(0)), ("full x2", 64, Fraction(0)), ("mid50x2", 88, Fraction(1, 32)),
     ("mid50x4", 48, Fraction(-1, 16))],
)  # fmt: skip
def test_the_kv_floor_is_a_matter_of_arithmetic(ask: Ask, loop: str, head_dim: int, floor: Fraction) -> None:
    problem = Problem(ask("200m_s95", loop), "uniform")
    assert kv_floor(problem) == floor
    solution = solve(problem)
    assert solution is not None
    assert solution.ranked[0][3] == head_dim


@pytest.mark.parametrize("loop", ["mid50x2", "full x2", "mid50x3", "mid50x4"])
@pytest.mark.parametrize("level", ["s85", "s95"])
def test_nano_has_the_kv_deviations_of_200m_where_the_same_share_is_looped(ask: Ask, loop: str, level: str) -> None:
    large = solve(Problem(ask(f"200m_{level}", loop), "uniform"))
    small = solve(Problem(ask(f"nano_{level}", loop), "uniform"))
    assert large is not None
    assert small is not None
    assert small.floor == large.floor
    assert small.minimax <= Fraction(2, 100)


@pytest.mark.parametrize("loop", ["mid25x2", "mid75x2"])
@pytest.mark.parametrize("level", ["s85", "s95"])
def test_every_other_span_exists_for_nano(ask: Ask, loop: str, level: str) -> None:
    small = solve(Problem(ask(f"nano_{level}", loop), "uniform"))
    assert small is not None
    assert abs(small.floor) <= Fraction(4, 100)
    assert small.minimax <= Fraction(2, 100)


@pytest.mark.parametrize(("large_depth", "depth"), [(9, 6), (12, 8), (15, 10), (18, 12)])
@pytest.mark.parametrize("loop", ["none", "mid50x2"])
def test_nano_has_the_kv_deviations_of_200m_at_the_same_share_of_its_depth(
    ask: Ask, loop: str, large_depth: int, depth: int
) -> None:
    large = solve(Problem(ask("200m_s85", loop, depth=large_depth), "uniform"))
    small = solve(Problem(ask("nano_s85", loop, depth=depth), "uniform"))
    assert large is not None
    assert small is not None
    if loop == "none" or depth % 4 == 0:  # else the middle half is not the same share of both
        assert small.floor == large.floor
    assert small.minimax <= Fraction(2, 100)


@pytest.mark.parametrize(
    ("loop", "depth", "reason"),
    [("mid33x3", None, "3 visits do not divide the 10 query heads"), ("mid50x2", 10, "the depth is 10"),
     ("1-[2x2]-2-[2x2]-5", None, "more than one group"), ("1-[2x2]-[2x3]-7", None, "more than one group")],
)  # fmt: skip
def test_split_heads_say_why_they_do_not_exist(ask: Ask, loop: str, depth: int | None, reason: str) -> None:
    split = answer(ask("200m_s95", loop, depth=depth)).policies[1]
    assert split.solution is None
    assert reason in split.reason


def test_a_tolerance_is_inclusive_and_never_binds_attention(ask: Ask) -> None:
    question = ask("200m_s95", "mid50x2", heads="q-width")
    best = solve(Problem(question, "uniform"))
    assert best is not None
    off = deviations(best.problem, best.ranked[0])
    assert abs(off["attention"]) > Fraction(1, 10)
    exact = Tolerance(abs(off["flops"]), abs(off["params"]), abs(off["kv"]))
    again = solve(Problem(replace(question, tolerance=exact), "uniform"))
    assert again is not None
    assert again.ranked[0] == best.ranked[0]
    hair = Fraction(1, 10**12)
    tighter = Tolerance(exact.flops, exact.params, exact.kv - hair)
    assert solve(Problem(replace(question, tolerance=tighter), "uniform")) is None


def test_a_tolerance_reaches_past_a_floor_that_has_no_point(ask: Ask) -> None:
    """At the KV floor nothing lies within 0.05 % in FLOPs and parameters; a little further from it something does."""
    tolerance = Tolerance(Fraction(5, 10_000), Fraction(5, 10_000), Fraction(20, 100))
    uniform = answer(ask("200m_s95", "mid50x2", tolerance=tolerance)).policies[0]
    assert uniform.problem is not None
    assert uniform.solution is not None
    off = deviations(uniform.problem, uniform.solution.ranked[0])
    assert max(abs(off["flops"]), abs(off["params"])) <= Fraction(5, 10_000)
    assert Fraction(1, 32) < abs(off["kv"]) <= Fraction(20, 100)
    assert uniform.floor == Fraction(1, 32)


def test_ranks_go_on_past_the_first_rung(ask: Ask) -> None:
    problem = Problem(ask("200m_s95", "mid50x2"), "uniform")
    solution = solve(problem, top=6)
    assert solution is not None
    assert (solution.within, len(solution.ranked)) == (1, 6)
    keys = [order_key(problem, point) for point in solution.ranked]
    assert keys == sorted(keys)
    assert keys[1][1] > solution.rung


def test_one_sided_answers_never_exceed_the_baseline(ask: Ask) -> None:
    for policy in answer(ask("200m_s95", "mid50x2", one_sided=True)).solved:
        assert policy.problem is not None
        assert policy.solution is not None
        off = deviations(policy.problem, policy.solution.ranked[0])
        assert max(off["flops"], off["params"], off["kv"]) <= 0


def test_a_pinned_dimension_stays_where_it_is(ask: Ask) -> None:
    found = answer(ask("200m_s95", "mid50x2", fixed={"hidden_size": 1024, "num_experts": 300}))
    for policy in found.solved:
        assert policy.solution is not None
        assert policy.solution.ranked[0][:2] == (1024, 300)


def test_budgets_that_are_left_out_do_not_bind(ask: Ask) -> None:
    solution = solve(Problem(ask("200m_s95", "mid50x2", match=("flops", "params")), "uniform"))
    assert solution is not None
    assert solution.floor is None
    off = deviations(solution.problem, solution.ranked[0])
    assert off["attention"] == Fraction(3, 128) * 0 or abs(off["attention"]) <= Fraction(1, 32)
    with pytest.raises(BadInput, match="at least flops or params"):
        ask("200m_s95", "mid50x2", match=("kv",))


def test_the_answer_can_change_with_the_context_and_the_convention(ask: Ask) -> None:
    at_392 = answer(ask("200m_s95", "mid50x2")).policies[0]
    at_4096 = answer(ask("200m_s95", "mid50x2", context=Context.causal(4096))).policies[0]
    megatron = answer(ask("200m_s95", "mid50x2", convention=convention("megatron"))).policies[0]
    points = {policy.solution.ranked[0] for policy in (at_392, at_4096, megatron) if policy.solution}
    assert len(points) == 3


def test_a_context_with_a_huge_denominator_is_still_exact(ask: Ask) -> None:
    """Products beyond int64 fall back to Python integers: the same answer as a nearby context, and no wrap."""
    c = 392 + Fraction(1, 10**15 + 37)
    near, exact = (solve(Problem(ask("200m_s95", "mid50x2", context=Context.given(value, "test")), "uniform"))
                   for value in (Fraction(392), c))  # fmt: skip
    assert near is not None
    assert exact is not None
    assert exact.ranked[0] == near.ranked[0]
    assert exact.minimax != near.minimax
    found = answer(ask("200m_s95", "mid50x2", context=Context.given(c, "test")))
    assert all(check.holds for check in verify(certificate(found), "it"))


def test_sizes_near_the_limits_do_not_wrap() -> None:
    spec = ModelSpec(
        name="huge", hidden_size=2**22, num_layers=100, num_experts=2**14, experts_per_token=8,
        expert_intermediate_size=2**20, num_attention_heads=2**12, num_key_value_heads=8, head_dim=1024,
    )  # fmt: skip
    grid = find_grid("bf16").model_copy(
        update={name: find_grid("bf16").hidden_size.model_copy(update={"step": step}) for name, step in
                (("hidden_size", 2**17), ("expert_intermediate_size", 2**15), ("num_experts", 2**9))}
    )  # fmt: skip
    question = Question(spec, parse_layout("full x2", 100), convention("paper"), Context.causal(2**20), grid)
    found = answer(question)
    assert found.policies[0].solution is not None
    assert all(check.holds for check in verify(certificate(found), "it"))


def test_a_point_however_far_off_is_found_and_verified(ask: Ask) -> None:
    """The only point of a grid may deviate by a factor of a million; it obeys the rules all the same."""
    far = {"hidden_size": [1], "num_experts": [8], "expert_intermediate_size": [1], "head_dim": [2**20],
           "num_attention_heads": [2**20], "num_key_value_heads": [1]}  # fmt: skip
    grid = Grid.model_validate({"name": "far"} | {name: {"values": values} for name, values in far.items()})
    question = replace(ask("nano_s85", "mid50x2", heads="free", match=("params", "kv")), grid=grid)
    found = answer(question)
    assert found.policies[0].solution is not None
    assert found.policies[0].solution.minimax > 10**6
    assert all(check.holds for check in verify(certificate(found), "it"))


def test_where_the_envelope_leaves_nothing_that_is_certified(ask: Ask) -> None:
    data = find_grid("nano").model_dump(exclude_none=True) | {"hidden_size": {"values": [1]}, "name": "narrow"}
    found = answer(replace(ask("nano_s85", "mid50x2"), grid=Grid.model_validate(data)))
    assert not found.solved
    proof = certificate(found)
    assert proof["policies"]["uniform"]["minimax_all"] is None
    assert all(check.holds for check in verify(proof, "it"))


@st.composite
def problems(draw: st.DrawFn) -> tuple[Question, Search]:
    """A baseline that no paper printed, a small grid around it, and the same problem for brute force."""
    k = draw(st.integers(1, 3))
    n_kv = draw(st.integers(1, 3))
    depth = draw(st.integers(1, 4))
    base = ModelSpec(
        name="random", hidden_size=draw(st.integers(8, 60)), num_layers=depth,
        num_experts=draw(st.integers(k, 12)), experts_per_token=k, expert_intermediate_size=draw(st.integers(4, 40)),
        num_attention_heads=n_kv * draw(st.integers(1, 3)), num_key_value_heads=n_kv,
        head_dim=2 * draw(st.integers(1, 10)),
    )  # fmt: skip
    new_depth = draw(st.sampled_from([depth, depth, draw(st.integers(1, 4))]))
    text = draw(st.sampled_from(["full x2", "each x3", "mid50x2", "early50x3", "none"]))
    try:
        layout = parse_layout(text, new_depth)
    except BadInput:
        layout = parse_layout("full x2", new_depth)
    assume(layout.visits != base.visits.visits)

    def axis(low: int, high: int, most: int) -> list[int]:
        return sorted(draw(st.sets(st.integers(low, high), min_size=1, max_size=most)))

    axes = {
        "H": axis(4, 80, 6), "E": axis(1, 20, 5), "I": axis(2, 60, 7), "d": [2 * x for x in axis(1, 10, 3)],
        "n_q": axis(1, 8, 4), "n_kv": axis(1, 4, 3),
    }  # fmt: skip
    envelope = draw(st.sampled_from([None, Fraction(2), Fraction(5, 4)]))
    names = dict(zip(("H", "E", "I", "d", "n_q", "n_kv"), ("hidden_size", "num_experts", "expert_intermediate_size",
                 "head_dim", "num_attention_heads", "num_key_value_heads"), strict=True))  # fmt: skip
    grid = Grid.model_validate(
        {"name": "small", "precision": "none", "envelope": None if envelope is None else str(envelope)}
        | {names[key]: {"values": values} for key, values in axes.items()}
    )
    rule = convention(draw(st.sampled_from(["paper", "torchtitan", "megatron"])))
    context = Context.given(Fraction(draw(st.integers(3, 60)), draw(st.integers(1, 3))), "random")
    heads = draw(st.sampled_from(["kept", "q-width", "free", "free-kv"]))
    match = draw(st.sampled_from([("flops", "params", "kv"), ("flops", "params"), ("flops", "kv"), ("params",)]))
    one_sided = draw(st.booleans())
    question = Question(base, layout, rule, context, grid, heads, match, one_sided)  # type: ignore[arg-type]
    model = Model(base.hidden_size, base.num_experts, k, base.expert_intermediate_size, base.head_dim,
                  base.num_attention_heads, n_kv, (1,) * depth)  # fmt: skip
    search = Search(
        model, layout.counts, axes, rule.attended(context), heads, envelope, one_sided, match,
        norms_cost=rule.norms, router_costs=rule.router,
    )  # fmt: skip
    return question, search


def _against_brute_force(problem: Problem, search: Search) -> None:
    try:
        mine = solve(problem, top=1000)
    except BadInput:
        mine = None
    theirs = search.answer()
    if theirs is None:
        assert mine is None
        return
    points, rung, within, minimax, pure = theirs
    assert mine is not None
    assert mine.ranked == points[:1000]
    assert (mine.rung, mine.within, mine.minimax) == (rung, within, minimax)
    if len(problem.question.match) == 3:
        assert pure_minimax(problem) == pure


@given(problems())
@settings(max_examples=150, deadline=None)
def test_the_solver_agrees_with_brute_force_on_baselines_no_paper_printed(pair: tuple[Question, Search]) -> None:
    question, search = pair
    try:
        problem = Problem(question, "uniform")
        assert problem.geometries
    except BadInput:
        assert not list(search.every_point())
        return
    _against_brute_force(problem, search)


@given(problems())
@settings(max_examples=60, deadline=None)
def test_split_heads_agree_with_brute_force(pair: tuple[Question, Search]) -> None:
    question, search = pair
    try:
        problem = Problem(question, "split")
    except BadInput:
        return
    _against_brute_force(problem, replace(search, divisor=problem.ways))


@given(problems())
@settings(max_examples=60, deadline=None)
def test_every_certificate_verifies(pair: tuple[Question, Search]) -> None:
    try:
        found = answer(pair[0])
    except BadInput:
        return
    failed = [check for check in verify(certificate(found), "it") if not check.holds]
    assert not failed


@given(problems())
@settings(max_examples=60, deadline=None)
def test_the_ranking_is_the_total_order_of_single_points(pair: tuple[Question, Search]) -> None:
    try:
        problem = Problem(pair[0], "uniform")
        solution = solve(problem, top=50)
    except BadInput:
        return
    if solution is not None:
        keys = [order_key(problem, point) for point in solution.ranked]
        assert keys == sorted(keys)
        assert len(set(keys)) == len(keys)


def test_a_layout_as_visits_solves_like_the_layout_as_text(ask: Ask) -> None:
    question = ask("200m_s95", "mid50x2")
    visits = replace(question, layout=Layout(12, question.layout.visits))
    first, second = (answer(asked).policies[0].solution for asked in (question, visits))
    assert first is not None
    assert second is not None
    assert first.ranked == second.ranked
