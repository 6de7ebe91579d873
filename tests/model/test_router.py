"""Routing weights, the balancing loss, and the bias that balances without one."""

from __future__ import annotations

import pytest
import torch

from smelt_match.errors import BadInput
from smelt_match.model.loop import LoopedTransformer
from smelt_match.model.router import Router
from tests.model.tiny import build, tiny, tokens


def _router(balance: str = "loss", **changes: object) -> Router:
    return build(tiny(**changes), balance=balance).block(0).feed_forward.router


def test_weights_sum_to_one_exactly_where_the_spec_normalises_them() -> None:
    x_TH = torch.randn(30, 18)
    normalised, raw = _router(), _router(normalize_topk=False)
    raw.load_state_dict(normalised.state_dict())
    torch.testing.assert_close(normalised(x_TH).weights_TK.sum(-1), torch.ones(30))
    probs_TE = torch.softmax(x_TH @ raw.weight.t(), dim=-1)
    torch.testing.assert_close(raw(x_TH).weights_TK.sort(-1).values, probs_TE.topk(3).values.flip(-1))
    assert (raw(x_TH).weights_TK.sum(-1) < 0.999).any()


def test_the_chosen_experts_are_the_most_probable_and_the_load_counts_them() -> None:
    router, x_TH = _router(router_bias=True), torch.randn(30, 18)
    routing = router(x_TH)
    logits_TE = x_TH @ router.weight.t() + router.bias
    assert torch.equal(routing.experts_TK.sort(-1).values, logits_TE.topk(3).indices.sort(-1).values)
    assert torch.equal(routing.load_E, torch.bincount(routing.experts_TK.flatten(), minlength=7))
    assert routing.load_E.sum() == 90


def test_the_loss_of_equally_probable_experts_is_one() -> None:
    router = _router()
    torch.nn.init.zeros_(router.weight)
    assert router(torch.randn(50, 18)).loss.item() == pytest.approx(1)


def test_the_loss_of_one_favoured_expert_is_its_share_of_both() -> None:
    router = _router(experts_per_token=1, router_bias=True)
    torch.nn.init.zeros_(router.weight)
    with torch.no_grad():
        router.bias.zero_()[2] = 50.0
    assert router(torch.randn(50, 18)).loss.item() == pytest.approx(7)  # E · 1 · 1


def test_the_models_loss_is_the_mean_over_visits_with_experts() -> None:
    model = build(tiny("mid50x2", dense_layers="1", dense_intermediate_size=8))
    losses: list[torch.Tensor] = []
    for index in range(1, 4):
        model.block(index).feed_forward.router.register_forward_hook(lambda *found: losses.append(found[-1].loss))
    out = model(tokens())
    assert len(losses) == 5
    torch.testing.assert_close(out.aux_loss, torch.stack(losses).mean())
    out.aux_loss.backward()
    assert model.block(3).feed_forward.router.weight.grad.abs().sum() > 0


def test_a_dense_model_has_nothing_to_balance() -> None:
    spec = tiny(dense_layers="1-4", dense_intermediate_size=8, num_experts=0, experts_per_token=0,
                expert_intermediate_size=0)  # fmt: skip
    assert LoopedTransformer(spec)(tokens()).aux_loss.item() == 0


def test_a_bias_chooses_experts_but_does_not_weigh_them() -> None:
    router, x_TH = _router("bias", normalize_topk=False), torch.randn(30, 18)
    router.bias_E[5] = 10.0
    routing = router(x_TH)
    assert (routing.experts_TK == 5).any(-1).all()
    probs_TE = torch.softmax(x_TH @ router.weight.t(), dim=-1)
    torch.testing.assert_close(routing.weights_TK, probs_TE.gather(1, routing.experts_TK))
    assert routing.loss.item() == 0


def test_the_bias_moves_by_the_sign_of_the_load_error_and_forgets_the_load() -> None:
    model = build(tiny("mid50x2"), balance="bias")
    ids = tokens(3)
    assert model(ids).aux_loss.item() == 0
    loads = [model.block(index).feed_forward.router.load_E.clone() for index in range(4)]
    assert [load.sum().item() for load in loads] == [33 * 3 * visits for visits in (1, 2, 2, 1)]
    model.update_router_bias(0.25)
    for index, load in enumerate(loads):
        router = model.block(index).feed_forward.router
        expected = 0.25 * torch.sign(load.float().mean() - load)
        assert torch.equal(router.bias_E, expected)
        assert not router.load_E.any()


def test_repeated_updates_even_out_the_load() -> None:
    router, x_TH = _router("bias"), torch.randn(200, 18) + 1  # what all tokens share makes some experts popular
    before = router(x_TH).load_E.float().std()
    assert before > 20
    for _ in range(300):
        router.count(router(x_TH).load_E)
        router.update_bias(2e-3)
    assert router(x_TH).load_E.float().std() < before / 5


def test_only_training_counts_the_load() -> None:
    model = build(tiny(), balance="bias").eval()
    model(tokens())
    assert not model.block(0).feed_forward.router.load_E.any()


def test_the_bias_is_saved_with_the_model_and_is_no_parameter() -> None:
    model = build(tiny(), balance="bias")
    assert "blocks.0.feed_forward.router.bias_E" in model.state_dict()
    assert not any(name.endswith("bias_E") for name, _ in model.named_parameters())


def test_a_model_without_the_bias_says_so() -> None:
    with pytest.raises(BadInput, match="balance='loss'"):
        build(tiny()).update_router_bias()
    with pytest.raises(BadInput, match="'aux' is not one of loss, bias"):
        LoopedTransformer(tiny(), balance="aux")
