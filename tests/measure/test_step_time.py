"""Steps are timed block by block, in turn; these tests ask for structure, never for speed."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import islice
from typing import Any

import pytest
import torch

from smelt_match.errors import BadInput
from smelt_match.measure import step_time
from smelt_match.measure.step_time import Side, StepTimer, block_at, devices, find_device, shapes, step_shape
from tests.model.tiny import VARIANTS, tiny

CPU = torch.device("cpu")


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_step_of_any_block_takes_time_and_leaves_no_gradients(variant: str) -> None:
    side = Side(tiny("mid50x2", **VARIANTS[variant]) if variant != "dense" else tiny(**VARIANTS[variant]), CPU, (2, 9))
    assert side.seconds() > 0
    assert all(parameter.grad is None for block, _ in side.blocks for parameter in block.parameters())
    assert side.x_BSH.grad is None


@pytest.mark.parametrize(
    ("layout", "changes", "expected"),
    [
        ("none", {}, {0: 4}),
        ("mid50x2", {}, {0: 6}),  # one geometry everywhere: one block, six visits
        ("mid50x2", {"loop_num_attention_heads": 2, "loop_num_key_value_heads": 1}, {0: 2, 1: 4}),
        ("none", {"dense_layers": "1", "dense_intermediate_size": 14}, {0: 1, 1: 3}),
    ],
)
def test_blocks_of_one_shape_are_timed_once_and_weighed_by_their_visits(
    layout: str, changes: dict[str, Any], expected: dict[int, int]
) -> None:
    spec = tiny(layout, **changes)
    assert shapes(spec) == expected
    assert sum(expected.values()) == len(spec.visits.visits)


def test_seconds_are_summed_over_visits(monkeypatch: pytest.MonkeyPatch) -> None:
    side = Side(tiny("mid50x2", loop_num_attention_heads=2, loop_num_key_value_heads=1), CPU, (1, 5))
    cost = {id(block): float(10**number) for number, (block, _) in enumerate(side.blocks)}
    monkeypatch.setattr(Side, "_block", lambda _, block: cost[id(block)])
    assert side.seconds() == 2 * 1 + 4 * 10


def test_gradients_reach_every_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    def zero_grad(block: torch.nn.Module, **_: Any) -> None:
        seen.extend(parameter.grad is not None for parameter in block.parameters())

    monkeypatch.setattr(step_time.Block, "zero_grad", zero_grad)
    Side(tiny(), CPU, (1, 40)).seconds()
    assert seen
    assert all(seen)


def test_weights_are_finite_and_differ() -> None:
    for name, parameter in block_at(tiny(), 0, CPU).named_parameters():
        assert parameter.isfinite().all(), name
        assert parameter.dim() == 1 or parameter.std() > 0


@pytest.mark.parametrize(
    ("mean", "tokens", "expected"),
    [(Fraction(392), 1024, (1, 783)), (Fraction(392), 16_384, (20, 783)), (Fraction(4097, 2), 1024, (1, 1024)),
     (Fraction(1, 2), 8, (8, 1)), (Fraction(392), 1, (1, 1))],
)  # fmt: skip
def test_a_step_has_documents_of_the_mean_context(mean: Fraction, tokens: int, expected: tuple[int, int]) -> None:
    assert step_shape(mean, tokens) == expected


class Fake:
    """A step that says who ran."""

    log: list[str]

    def __init__(self, spec: Any, *_: Any) -> None:
        self.name = spec.name

    def seconds(self) -> float:
        self.log.append(self.name)
        return float(len(self.name))


def test_sides_take_turns_in_alternating_order_after_a_warm_up() -> None:
    Fake.log = []
    specs = [tiny(name="a"), tiny(name="bb"), tiny(name="ccc")]
    timer = StepTimer(specs[0], Fraction(4), "cpu", 8, build=Fake)  # type: ignore[arg-type]
    assert list(islice(timer.rounds(specs[1:]), 3)) == [(1.0, 2.0, 3.0)] * 3
    a, b, c = "a", "bb", "ccc"
    assert Fake.log == [a, b, c, a, b, c, c, b, a, a, b, c]
    Fake.log = []
    next(timer.rounds(specs[1:2]))
    assert Fake.log == [b, a, b], "the baseline is built and warmed up once"


def test_a_real_timer_gives_positive_times_and_says_what_it_timed() -> None:
    timer = StepTimer(tiny(), Fraction(8), "cpu", 40)
    rounds: Iterator[tuple[float, ...]] = timer.rounds([tiny("mid50x2")])
    for pair in islice(rounds, 2):
        assert len(pair) == 2
        assert all(seconds > 0 for seconds in pair)
    about = timer.identity
    assert (about["tokens_per_step"], about["tokens_per_row"], about["dtype"]) == ("30", "15", "float32")
    assert about["device"].endswith(("thread", "threads"))


@pytest.mark.parametrize("name", ["cuda:99", "tpu", "meta", "", "cpu:3", "\0"])
def test_a_device_that_does_not_exist_is_refused_with_those_that_do(name: str) -> None:
    with pytest.raises(BadInput, match="this machine has no such device") as caught:
        find_device(name)
    assert caught.value.hint == f"devices here: {', '.join(devices())}"


def test_too_little_memory_is_said_in_words() -> None:
    def greedy(*_: Any) -> Any:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory")

    with pytest.raises(BadInput, match="has too little memory for this step"):
        next(StepTimer(tiny(), Fraction(4), "cpu", 8, build=greedy).rounds([]))


def test_a_fault_of_ours_is_not_taken_for_memory() -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="shapes"):
        next(StepTimer(tiny(), Fraction(4), "cpu", 8, build=broken).rounds([]))
