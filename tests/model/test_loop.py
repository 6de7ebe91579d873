"""A loop is its unrolled copy, to the last bit and in every gradient."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from smelt_match.errors import BadInput
from smelt_match.model.generate import generate
from smelt_match.model.loop import LoopedTransformer
from smelt_match.spec.model import ModelSpec
from tests.model.tiny import VARIANTS, WRITES, V, build, tiny, tokens, unrolled

POWERS_OF_TWO = ["mid50x2", "full x4", "each x2", "1-[1x2]-[1x4]-1", "[[1x2]-1]x2-2", "visits 1-4,4,1"]


def _loss(model: LoopedTransformer, ids: Tensor, weights: Tensor) -> Tensor:
    out = model(ids)
    return (out.logits_BSV * weights).sum() + 10 * out.aux_loss


def _gradients_agree(model: LoopedTransformer, plain: LoopedTransformer, visits: list[int]) -> bool:
    """Whether each stored tensor's gradient is the sum of its copies', a folded 1/r taken back."""
    ids = tokens()
    weights = torch.randn(*ids.shape, V)
    for each in (model, plain):
        each.zero_grad()
        _loss(each, ids, weights).backward()
    agree = True
    for index, count in enumerate(model.spec.visits.counts):
        copies = [dict(plain.block(visit).named_parameters()) for visit, at in enumerate(visits) if at == index]
        for name, parameter in model.block(index).named_parameters():
            expected = sum(one[name].grad for one in copies) / (count if name.startswith(WRITES) else 1)
            assert parameter.grad is not None
            scale = expected.abs().max()
            assert scale > 0, f"no gradient reaches {name}"
            agree &= bool((parameter.grad - expected).abs().max() < 2e-4 * scale)
    return agree


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("layout", POWERS_OF_TWO)
def test_a_loop_equals_its_unrolled_copy_to_the_last_bit(layout: str, variant: str) -> None:
    model = build(tiny(layout, **VARIANTS[variant]))
    plain, _ = unrolled(model)
    ids = tokens()
    out, expected = model(ids), plain(ids)
    assert torch.equal(out.logits_BSV, expected.logits_BSV)
    assert torch.equal(out.aux_loss, expected.aux_loss)


@pytest.mark.parametrize("layout", ["mid50x2", "1-[1x2]-[1x4]-1"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_gradient_is_the_sum_over_the_copies(layout: str, variant: str) -> None:
    model = build(tiny(layout, **VARIANTS[variant]))
    assert _gradients_agree(model, *unrolled(model))


@pytest.mark.parametrize("visit", [1, 4])
def test_a_copy_without_its_scale_is_noticed(visit: int) -> None:
    model = build(tiny("mid50x2"))
    plain, visits = unrolled(model, without_scale=visit)
    ids = tokens()
    assert not torch.allclose(model(ids).logits_BSV, plain(ids).logits_BSV, rtol=1e-3)
    assert not _gradients_agree(model, plain, visits)


@settings(max_examples=10, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=0, max_size=6), st.randoms(use_true_random=False))
def test_any_layout_equals_its_unrolled_copy(extra: list[int], random: object) -> None:
    visits = [0, 1, 2, 3, *extra]
    random.shuffle(visits)  # type: ignore[attr-defined]
    model = build(tiny("visits " + ",".join(str(index + 1) for index in visits)))
    plain, _ = unrolled(model)
    ids = tokens(1, 5)
    torch.testing.assert_close(model(ids).logits_BSV, plain(ids).logits_BSV, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("variant", VARIANTS)
def test_one_visit_is_the_plain_model(variant: str) -> None:
    looped = build(tiny("mid50x1", **VARIANTS[variant]))
    plain = LoopedTransformer(tiny("none", **VARIANTS[variant]), residual_scale="1")
    plain.load_state_dict(looped.state_dict())
    ids = tokens()
    assert torch.equal(looped(ids).logits_BSV, plain(ids).logits_BSV)


def test_the_scale_is_the_blocks_own_number_of_visits_unless_it_is_one() -> None:
    spec = tiny("1-[1x2]-[1x4]-1")
    assert [LoopedTransformer(spec).block(index).scale for index in range(4)] == [1, 1 / 2, 1 / 4, 1]
    flat = LoopedTransformer(spec, residual_scale="1")
    assert [flat.block(index).scale for index in range(4)] == [1, 1, 1, 1]


def test_blocks_are_stored_once_and_visited_in_order() -> None:
    model = build(tiny("mid50x2"))
    seen: list[int] = []
    for index in range(4):
        model.block(index).register_forward_hook(lambda *_, index=index: seen.append(index))
    model(tokens())
    assert seen == [0, 1, 2, 1, 2, 3]
    assert len(model.blocks) == 4


def test_split_heads_give_looped_blocks_their_own_heads() -> None:
    spec = tiny("mid50x2", loop_num_attention_heads=2, loop_num_key_value_heads=1)
    model = build(spec)
    shapes = [tuple(model.block(index).attention.key.weight.shape) for index in range(4)]
    assert shapes == [(12, 18), (6, 18), (6, 18), (12, 18)]
    assert tuple(model.block(1).attention.output.weight.shape) == (18, 12)
    ids = tokens()
    assert torch.equal(model(ids).logits_BSV, unrolled(model)[0](ids).logits_BSV)


def test_later_tokens_do_not_change_earlier_logits() -> None:
    model = build(tiny("mid50x2"))
    ids = tokens(1, 8)
    changed = ids.clone()
    changed[0, 5:] = (changed[0, 5:] + 1) % V
    ours, theirs = model(ids).logits_BSV, model(changed).logits_BSV
    torch.testing.assert_close(ours[:, :5], theirs[:, :5])
    assert not torch.allclose(ours[:, 5:], theirs[:, 5:])


def test_a_tied_head_is_the_embedding() -> None:
    model = build(tiny(tie_word_embeddings=True))
    assert model.head is None
    assert model(tokens()).logits_BSV.shape == (2, 11, V)


def test_the_vocabulary_comes_from_the_caller_where_the_spec_states_none() -> None:
    spec = tiny(vocab_size=None)
    assert LoopedTransformer(spec, vocab_size=13).embedding.num_embeddings == 13
    with pytest.raises(BadInput, match="vocab_size is not stated"):
        LoopedTransformer(spec)
    with pytest.raises(BadInput, match="61"):
        LoopedTransformer(tiny(), vocab_size=13)


def _logits(spec: ModelSpec, ids: Tensor, weights: dict[str, Tensor]) -> Tensor:
    model = LoopedTransformer(spec)
    model.load_state_dict(weights)
    found: Tensor = model(ids).logits_BSV
    return found


def test_the_base_of_the_rotation_and_the_epsilon_are_the_specs() -> None:
    ids, weights = tokens(), build(tiny()).state_dict()
    expected = _logits(tiny(), ids, weights)
    assert not torch.allclose(_logits(tiny(rope_theta=100.0), ids, weights), expected)
    assert not torch.allclose(_logits(tiny(rms_norm_eps=0.5), ids, weights), expected)


def test_the_last_position_alone_has_the_same_logits() -> None:
    model, ids = build(tiny("mid50x2")), tokens()
    torch.testing.assert_close(model(ids, last_only=True).logits_BSV, model(ids).logits_BSV[:, -1:])


def test_autocast_runs_products_in_half_precision_and_stays_close() -> None:
    model, ids = LoopedTransformer(tiny("mid50x2", qk_norm="head")), tokens()
    expected = model(ids).logits_BSV
    with torch.autocast("cpu", torch.bfloat16):
        out = model(ids)
    out.logits_BSV.float().sum().backward()
    assert out.logits_BSV.dtype == torch.bfloat16
    torch.testing.assert_close(out.logits_BSV.float(), expected, rtol=0.1, atol=0.02)
    assert all(parameter.grad is not None for parameter in model.parameters())
    with torch.autocast("cpu", torch.bfloat16):
        assert generate(model, ids, 2).shape == (2, 13)


@pytest.mark.parametrize(
    ("tokens", "told"),
    [
        (torch.zeros(1, 0, dtype=torch.int64), r"with at least one of each is wanted, found \(1, 0\)"),
        (torch.zeros(0, 3, dtype=torch.int64), r"with at least one of each is wanted, found \(0, 3\)"),
        (torch.zeros(3, dtype=torch.int64), r"shape \(rows, tokens\) .* found \(3,\)"),
        (torch.zeros(1, 3), "int64 ids are wanted, found torch.float32"),
        (torch.zeros(1, 3, dtype=torch.bool), "int64 ids are wanted, found torch.bool"),
        (torch.tensor([[0, V, 1]]), f"ids from 0 to {V - 1} are wanted, found 0 to {V}"),
        (torch.tensor([[0, -1, 1]]), "are wanted, found -1 to 1"),
    ],
)
def test_tokens_that_are_no_ids_are_refused(tokens: Tensor, told: str) -> None:
    with pytest.raises(BadInput, match=told):
        build(tiny())(tokens)
