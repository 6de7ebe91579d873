"""Built = counted: parameters by component, the operations' FLOPs, the start, and what decays."""

from __future__ import annotations

import resource

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from smelt_match.budget.context import Context
from smelt_match.budget.conventions import convention
from smelt_match.budget.ledger import ledger
from smelt_match.model.initial import STD, initialize
from smelt_match.model.loop import LoopedTransformer
from smelt_match.model.parameters import component_parameters, decay_groups
from smelt_match.spec.family import shipped
from smelt_match.spec.model import ModelSpec
from tests.model.tiny import VARIANTS, V, build, tiny

SHIPPED = {
    name: entry.spec
    for name, entry in shipped().items()
    if isinstance(entry.spec, ModelSpec) and entry.family in ("smelt", "nano")
}
LAYOUTS = ["none", "mid50x2", "early50x2", "full x4", "each x2"]
OUTSIDE = {"input embedding", "output head"}


def _counted(spec: ModelSpec, name: str = "paper") -> dict[str, int]:
    found: dict[str, int] = {}
    for row in ledger(spec, convention(name), Context.causal(8)).rows:
        found[row.component] = found.get(row.component, 0) + row.stored
    return {component: count for component, count in found.items() if count}


def _built(spec: ModelSpec) -> dict[str, int]:
    with torch.device("meta"):
        return component_parameters(LoopedTransformer(spec, vocab_size=spec.vocab_size or V))


def _inside(built: dict[str, int]) -> dict[str, int]:
    return {component: count for component, count in built.items() if component not in OUTSIDE}


def test_the_papers_rows_are_built_as_counted_at_full_width_without_memory() -> None:
    paper = {name: spec for name, spec in SHIPPED.items() if not name.startswith("nano")}
    assert len(paper) == 28
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for spec in paper.values():
        assert _inside(_built(spec)) == _counted(spec)
    assert max(sum(_built(spec).values()) for spec in paper.values()) > 53e9
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # KiB


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_spec_is_built_as_counted_in_every_layout(name: str, layout: str) -> None:
    narrow = SHIPPED[name].changed(hidden_size=24, expert_intermediate_size=6, head_dim=4, layout=layout)
    assert _inside(_built(narrow)) == _counted(narrow)


@pytest.mark.parametrize("layout", ["none", "mid50x2"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_part_is_built_as_counted_with_embedding_and_head(variant: str, layout: str) -> None:
    spec = tiny(layout, **VARIANTS[variant])
    assert _built(spec) == _counted(spec, "torchtitan")


def test_split_heads_are_built_as_counted() -> None:
    spec = tiny("mid50x2", loop_num_attention_heads=2, loop_num_key_value_heads=1)
    assert _built(spec) == _counted(spec, "torchtitan")


@pytest.mark.parametrize("layout", ["none", "mid50x2", "full x3"])
def test_executed_flops_are_the_counted_ones(layout: str) -> None:
    """On the meta device attention is plain products over the whole square, so that S is what a token attends to."""
    spec, S = SHIPPED["nano_s85"].changed(layout=layout), 16
    with torch.device("meta"):
        model, ids = LoopedTransformer(spec, vocab_size=V), torch.zeros(2, S, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter:
        model(ids).logits_BSV.sum().backward()
    sums = ledger(spec, convention("paper"), Context.causal(S)).totals
    assert counter.get_total_flops() == 2 * S * (sums.matmul + S * sums.scores + 6 * V * spec.hidden_size)


def test_matrices_decay_and_gains_and_biases_do_not() -> None:
    model = build(tiny("mid50x2", **VARIANTS["two matrices, biases everywhere"]), balance="bias")
    matrices, rest = decay_groups(model, 0.1)
    assert (matrices["weight_decay"], rest["weight_decay"]) == (0.1, 0.0)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = sorted(names[id(parameter)] for group in (matrices, rest) for parameter in group["params"])
    assert found == sorted(names.values())
    kept = {names[id(parameter)] for parameter in rest["params"]}
    assert kept == {name for name in names.values() if name.endswith(("bias", "norm.weight"))}
    assert "blocks.0.feed_forward.router.weight" not in kept
    torch.optim.AdamW(decay_groups(model, 0.1))


def test_weights_start_small_and_writes_smaller_by_the_visits() -> None:
    model = LoopedTransformer(tiny("full x4", hidden_size=64, mlp_bias=True))
    block = model.block(1)
    assert block.attention.query.weight.std().item() == pytest.approx(STD, rel=0.1)
    assert block.feed_forward.experts.up.std().item() == pytest.approx(STD, rel=0.1)
    written = STD / (2 * 16) ** 0.5
    assert block.attention.output.weight.std().item() == pytest.approx(written, rel=0.1)
    assert block.feed_forward.experts.down.std().item() == pytest.approx(written, rel=0.1)
    assert block.feed_forward.experts.up.abs().max().item() <= 3 * STD
    assert torch.equal(block.attention_norm.weight, torch.ones(64))
    assert not block.feed_forward.experts.up_bias.any()


def test_a_model_from_the_meta_device_starts_like_any_other() -> None:
    with torch.device("meta"):
        model = LoopedTransformer(tiny("mid50x2", mlp_bias=True), balance="bias")
    model.to_empty(device="cpu")
    initialize(model, torch.Generator().manual_seed(3))
    other = LoopedTransformer(tiny("mid50x2", mlp_bias=True), balance="bias")
    initialize(other, torch.Generator().manual_seed(3))
    expected = other.state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in model.state_dict().items())
    assert not model.block(0).feed_forward.router.load_E.any()
