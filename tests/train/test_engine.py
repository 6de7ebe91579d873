"""One training step: its objective under accumulation, its precision, and what it measures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from smelt_match.train.batches import Batch, batch
from smelt_match.train.config import TrainConfig
from smelt_match.train.engine import Engine, build_model
from smelt_match.train.shards import Shards
from smelt_match.train.world import World
from tests.train.runs import small

ALONE = World(torch.device("cpu"))


def _batch(shards: Shards, config: TrainConfig) -> Batch:
    return batch(shards.trunk, config.seed, 0, config.rows, config.context)


def _gradients(engine: Engine, rows: Batch) -> dict[str, Tensor]:
    engine._backward(rows, None)
    found = {name: parameter.grad.clone() for name, parameter in engine.model.named_parameters()}
    engine.optimizer.forget_gradients()
    return found


def _naive(config: TrainConfig, rows: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    """The objective as it is defined: all tokens together, each micro-batch's balancing loss by itself."""
    model = build_model(config)
    tokens, segments, targets = (
        torch.from_numpy(array) for array in (rows.tokens_BS, rows.segment_ids_BS, rows.targets_BS)
    )
    logits = model(tokens, segments).logits_BSV
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    cuts = torch.arange(config.rows).split(config.micro_rows)
    balance = torch.stack([model(tokens[cut], segments[cut]).aux_loss for cut in cuts]).mean()
    total = loss + config.balance_coefficient * balance
    total.backward()
    return total, {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("micro_rows", [1, 2, 4])
def test_a_step_minimises_cross_entropy_and_the_mean_balancing_loss_of_its_micro_batches(
    shards: Shards, micro_rows: int
) -> None:
    config = small(shards, micro_rows=micro_rows, balance_coefficient=0.5)
    rows = _batch(shards, config)
    engine = Engine(config, ALONE)
    losses = engine._backward(rows, None)
    found = {name: parameter.grad for name, parameter in engine.model.named_parameters()}
    total, expected = _naive(config, rows)
    torch.testing.assert_close(losses[0] + 0.5 * losses[1], total.detach())
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-7, msg=name)


@pytest.mark.parametrize("micro_rows", [1, 4])
def test_the_balancing_loss_reaches_every_router_under_accumulation(shards: Shards, micro_rows: int) -> None:
    with_loss, without = (small(shards, micro_rows=micro_rows, balance_coefficient=c) for c in (0.5, 0.0))
    rows = _batch(shards, with_loss)
    ours, plain = _gradients(Engine(with_loss, ALONE), rows), _gradients(Engine(without, ALONE), rows)
    for block in range(4):
        name = f"blocks.{block}.feed_forward.router.weight"
        assert (ours[name] - plain[name]).norm() > 1e-5


def test_accumulation_without_balancing_does_not_depend_on_the_cut(shards: Shards) -> None:
    one, many = (small(shards, micro_rows=rows, balance_coefficient=0.0) for rows in (4, 1))
    rows = _batch(shards, one)
    expected = _gradients(Engine(one, ALONE), rows)
    for name, gradient in _gradients(Engine(many, ALONE), rows).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-7, msg=name)


def test_the_reported_loss_leaves_the_balancing_loss_out(shards: Shards) -> None:
    found = []
    for coefficient in (0.0, 10.0):
        config = small(shards, balance_coefficient=coefficient)
        found.append(Engine(config, ALONE).step(_batch(shards, config), 0.01))
    assert found[0].loss == found[1].loss
    assert found[0].balance_loss == found[1].balance_loss == pytest.approx(1, abs=0.1)


def test_changing_one_document_of_a_batch_leaves_the_logits_of_all_others(shards: Shards) -> None:
    config = small(shards, context=64)
    rows = _batch(shards, config)
    engine = Engine(config, ALONE)
    row, document = 1, 1
    assert rows.segment_ids_BS[row].max() >= 2
    changed = rows.tokens_BS.copy()
    here = rows.segment_ids_BS[row] == document
    changed[row, here] = (changed[row, here] + 1) % 256
    before, after = (
        engine.model(torch.from_numpy(tokens), torch.from_numpy(rows.segment_ids_BS)).logits_BSV
        for tokens in (rows.tokens_BS, changed)
    )
    others = torch.ones(rows.tokens_BS.shape, dtype=torch.bool)
    others[row, torch.from_numpy(np.flatnonzero(here))] = False
    torch.testing.assert_close(after[others], before[others], rtol=1e-5, atol=1e-6)
    assert not torch.allclose(after[~others], before[~others], rtol=1e-3)


def test_a_step_that_is_not_finite_changes_no_weight(shards: Shards, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small(shards)
    engine, rows = Engine(config, ALONE), _batch(shards, config)
    before = {name: tensor.clone() for name, tensor in engine.tensors().items()}
    forward = Engine.forward
    monkeypatch.setattr(Engine, "forward", lambda self, *args: (forward(self, *args)[0] * torch.inf, torch.tensor(0.0)))
    assert not engine.step(rows, 0.01).is_finite
    assert all(torch.equal(tensor, before[name]) for name, tensor in engine.tensors().items())


@pytest.mark.parametrize("changes", [{"dtype": "bfloat16"}, {"recompute": True}])
def test_half_precision_and_recomputation_stay_close(shards: Shards, changes: dict[str, Any]) -> None:
    plain, other = small(shards), small(shards, **changes)
    rows = _batch(shards, plain)
    expected, found = (Engine(config, ALONE).step(rows, 0.01, diagnose=True) for config in (plain, other))
    assert found.loss == pytest.approx(expected.loss, rel=1e-3)
    assert found.gradient_norm == pytest.approx(expected.gradient_norm, rel=2e-2)
    assert len(found.diagnostics["visits"]) == len(expected.diagnostics["visits"]) == 6


# While a graph is traced, torch looks at .grad of every tensor, and warns of that in vain.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_compiled_blocks_train_as_plain_ones_do(shards: Shards, monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    compile_ = torch.nn.Module.compile
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self: compile_(self, backend="eager"))
    plain, compiled = small(shards, micro_rows=4), small(shards, micro_rows=4, compile=True)
    rows = _batch(shards, plain)
    steps = [Engine(config, ALONE).step(rows, 0.01, diagnose=True) for config in (plain, compiled)]
    assert steps[1].loss == pytest.approx(steps[0].loss, rel=1e-5)
    assert steps[1].gradient_norm == pytest.approx(steps[0].gradient_norm, rel=1e-4)
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_batches_of_other_documents_need_no_new_graphs(shards: Shards, monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    graphs: list[Any] = []

    def backend(graph: Any, _inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    compile_ = torch.nn.Module.compile
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self: compile_(self, backend=backend))
    plain, compiled = (Engine(small(shards, micro_rows=4, compile=on), ALONE) for on in (False, True))
    rows = [batch(shards.trunk, 0, step, 4, 16) for step in range(4)]
    assert len({part.segment_ids_BS.tobytes() for part in rows}) == 4
    made = []
    for part in rows:
        expected, found = (engine.step(part, 1e-3) for engine in (plain, compiled))
        assert found.loss == pytest.approx(expected.loss, rel=1e-5)
        made.append(len(graphs))
    assert 0 < made[0] == made[-1]
    torch._dynamo.reset()


def test_diagnostics_are_those_of_the_visits(shards: Shards) -> None:
    config = small(shards, micro_rows=2)
    rows = _batch(shards, config)
    found = Engine(config, ALONE).step(rows, 0.01, diagnose=True).diagnostics
    model, streams = build_model(config), []
    model.embedding.register_forward_hook(lambda *args: streams.append(args[-1]))
    for block in model.blocks:
        block.register_forward_hook(lambda *args: streams.append(args[-1][0]))
    model(torch.from_numpy(rows.tokens_BS), torch.from_numpy(rows.segment_ids_BS))
    assert [line["block"] for line in found["visits"]] == [0, 1, 2, 1, 2, 3]
    for line, before, after in zip(found["visits"], streams, streams[1:], strict=False):
        assert line["update_rms"] == pytest.approx((after - before).square().mean().sqrt().item(), rel=1e-4)
        assert line["state_rms"] == pytest.approx(after.square().mean().sqrt().item(), rel=1e-4)
        assert 1 <= line["load_max"] <= 7 / 3
        assert 0 <= line["load_unused"] < 1
    _, gradients = _naive(config, rows)
    for block, norm in enumerate(found["gradient_norms"]):
        parts = [gradient.norm() for name, gradient in gradients.items() if name.startswith(f"blocks.{block}.")]
        assert norm == pytest.approx(torch.stack(parts).norm().item(), rel=1e-3)


def test_only_matrices_and_embeddings_decay(shards: Shards) -> None:
    engine = Engine(small(shards, weight_decay=0.25), ALONE)
    names = {id(parameter): name for name, parameter in engine.model.named_parameters()}
    decayed, rest = (
        {names[id(parameter)] for parameter in group["params"]} for group in engine.optimizer.adamw.param_groups
    )
    assert [group["weight_decay"] for group in engine.optimizer.adamw.param_groups] == [0.25, 0.0]
    assert all("norm" in name or "bias" in name for name in rest)
    assert not any("norm" in name or "bias" in name for name in decayed)


def test_gradients_are_clipped_to_a_total_norm(shards: Shards) -> None:
    config = small(shards, clip_norm=0.01)
    engine = Engine(config, ALONE)
    engine._backward(_batch(shards, config), None)
    before = float(engine.optimizer.clip())
    after = torch.nn.utils.get_total_norm([parameter.grad for parameter in engine.model.parameters()])
    assert before > 0.01
    assert after.item() == pytest.approx(0.01, rel=1e-3)
