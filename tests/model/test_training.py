"""A training step: compiled without a break, checkpointed to the same gradients, and one that learns."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from smelt_match.model.loop import LoopedTransformer
from smelt_match.model.parameters import decay_groups
from tests.model.tiny import VARIANTS, V, build, tiny, tokens

SEGMENTS = torch.tensor([[0] * 4 + [1] * 7, [0] * 11])


def _loss(model: LoopedTransformer, ids: Tensor, segments: Tensor | None) -> Tensor:
    out = model(ids, segments)
    return F.cross_entropy(out.logits_BSV.flatten(0, 1), ids.flatten()) + 0.1 * out.aux_loss


def _step(model: LoopedTransformer, ids: Tensor, segments: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
    model.zero_grad()
    loss = _loss(model, ids, segments)
    loss.backward()
    return loss.detach(), {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def _agree(found: tuple[Tensor, dict[str, Tensor]], expected: tuple[Tensor, dict[str, Tensor]]) -> None:
    torch.testing.assert_close(found[0], expected[0])
    for name, gradient in expected[1].items():
        torch.testing.assert_close(found[1][name], gradient, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("segments", [None, SEGMENTS])
def test_checkpointing_gives_the_same_gradients(variant: str, segments: Tensor | None) -> None:
    model, ids = build(tiny("mid50x2", **VARIANTS[variant])), tokens()
    expected = _step(model, ids, segments)
    model.checkpoint = True
    _agree(_step(model, ids, segments), expected)


def test_checkpointing_keeps_fewer_states() -> None:
    model, ids = build(tiny("full x3")), tokens(4, 32)

    def kept() -> int:
        total = 0

        def pack(tensor: Tensor) -> Tensor:
            nonlocal total
            total += tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            model(ids)
        return total

    plain = kept()
    model.checkpoint = True
    assert kept() < plain / 5


def test_checkpointing_counts_the_load_once() -> None:
    model = build(tiny("mid50x2"), balance="bias", checkpoint=True)
    _step(model, tokens(), None)
    assert model.block(1).feed_forward.router.load_E.sum() == 2 * 22 * 3


@pytest.mark.parametrize(
    ("balance", "checkpoint", "backend"),
    [("loss", False, "aot_eager"), ("loss", True, "eager"), ("bias", False, "eager")],
)
def test_a_training_step_compiles_without_a_break(balance: str, checkpoint: bool, backend: str) -> None:
    torch._dynamo.reset()
    model = build(tiny("1-[1x2]", num_layers=2), balance=balance, checkpoint=checkpoint)
    ids = tokens()
    expected = _step(model, ids, SEGMENTS)
    compiled = torch.compile(_loss, fullgraph=True, backend=backend)
    model.zero_grad()
    loss = compiled(model, ids, SEGMENTS)
    loss.backward()
    _agree((loss.detach(), {name: parameter.grad for name, parameter in model.named_parameters()}), expected)
    torch._dynamo.reset()


# While a graph is traced, torch looks at .grad of every tensor, and warns of that in vain.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_blocks_compile_one_by_one_to_the_same_logits() -> None:
    torch._dynamo.reset()
    model, ids = build(tiny("1-[1x2]", num_layers=2)), tokens()
    expected = model(ids, SEGMENTS).logits_BSV
    for block in model.blocks:
        block.compile(fullgraph=True, backend="eager")
    torch.testing.assert_close(model(ids, SEGMENTS).logits_BSV, expected)
    torch._dynamo.reset()


@pytest.mark.parametrize("balance", ["loss", "bias"])
def test_a_few_steps_learn_a_sequence(balance: str) -> None:
    model = LoopedTransformer(tiny("mid50x2", hidden_size=32), balance=balance)
    optimizer = torch.optim.AdamW(decay_groups(model, 0.1), lr=1e-2)
    ids = (torch.arange(12) * 5 % V).repeat(2, 1)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        out = model(ids)
        loss = F.cross_entropy(out.logits_BSV[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        (loss + 0.01 * out.aux_loss).backward()
        optimizer.step()
        if balance == "bias":
            model.update_router_bias()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(torch.tensor(float(V)).log().item(), rel=0.05)
    assert losses[-1] < 0.1
