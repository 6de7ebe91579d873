"""Decoding with a cache is the uncached model, for every KV policy that claims it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from smelt_match.budget.context import Context
from smelt_match.budget.conventions import convention
from smelt_match.budget.ledger import ledger
from smelt_match.errors import BadInput
from smelt_match.model.generate import generate
from smelt_match.model.loop import LoopedTransformer
from tests.model.tiny import VARIANTS, V, build, tiny, tokens

SPLIT = {"loop_num_attention_heads": 2, "loop_num_key_value_heads": 1}


@pytest.mark.parametrize("layout", ["none", "mid50x2", "full x3"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_cached_and_uncached_logits_agree_token_by_token(layout: str, variant: str) -> None:
    model, ids = build(tiny(layout, **VARIANTS[variant])), tokens(3, 7)
    expected = model(ids).logits_BSV
    cache = model.new_cache(3, 7)
    with torch.no_grad():
        for at in range(7):
            out = model(ids[:, at : at + 1], cache=cache)
            torch.testing.assert_close(out.logits_BSV[:, 0], expected[:, at], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("chunks", [(7,), (4, 1, 2), (1, 6)])
@pytest.mark.parametrize("changes", [{}, SPLIT])
def test_tokens_may_come_in_chunks(chunks: tuple[int, ...], changes: dict[str, Any]) -> None:
    model, ids = build(tiny("mid50x2", **changes)), tokens(2, 7)
    cache = model.new_cache(2, 9)
    with torch.no_grad():
        found = [model(chunk, cache=cache).logits_BSV for chunk in ids.split(chunks, dim=1)]
    torch.testing.assert_close(torch.cat(found, dim=1), model(ids).logits_BSV, rtol=1e-3, atol=1e-4)
    assert cache.tokens == 7


@pytest.mark.parametrize(("layout", "slots"), [("none", 4), ("mid50x2", 6), ("full x4", 16)])
def test_the_cache_has_a_slot_for_each_visit(layout: str, slots: int) -> None:
    spec = tiny(layout)
    cache = LoopedTransformer(spec).new_cache(1, 5)
    assert len(cache) == slots
    assert cache.elements_per_token == slots * 2 * spec.num_key_value_heads * spec.head_dim


def test_a_slot_has_the_heads_of_its_visit() -> None:
    cache = LoopedTransformer(tiny("mid50x2", **SPLIT)).new_cache(1, 5)
    assert [slot.keys_BPGD.shape[2] for slot in cache.slots] == [2, 1, 1, 1, 1, 2]
    assert cache.elements_per_token == 2 * 6 * (2 + 1 + 1 + 1 + 1 + 2)


def test_greedy_generation_is_the_uncached_argmax() -> None:
    model, prompt = build(tiny("mid50x2")), tokens(2, 3)
    found = generate(model, prompt, 5)
    assert torch.equal(found[:, :3], prompt)
    for at in range(3, 8):
        assert torch.equal(found[:, at], model(found[:, :at]).logits_BSV[:, -1].argmax(-1))


def test_sampling_follows_its_generator_and_temperature() -> None:
    model, prompt = build(tiny("mid50x2")), tokens(4, 3)

    def drawn(seed: int, **options: Any) -> torch.Tensor:
        return generate(model, prompt, 12, generator=torch.Generator().manual_seed(seed), **options)

    assert torch.equal(drawn(1, temperature=1.0), drawn(1, temperature=1.0))
    assert not torch.equal(drawn(1, temperature=1.0), drawn(2, temperature=1.0))
    greedy = generate(model, prompt, 12)
    assert torch.equal(drawn(1, temperature=1.0, top_k=1), greedy)
    assert torch.equal(drawn(1, temperature=1e-4), greedy)
    assert torch.equal(drawn(1, temperature=1.0, top_k=V), drawn(1, temperature=1.0))
    assert generate(model, prompt, 0).shape == (4, 3)


def test_generation_leaves_a_balancing_routers_counts_alone() -> None:
    model = build(tiny(), balance="bias")
    generate(model, tokens(1, 3), 4)
    assert model.training
    assert all(not model.block(index).feed_forward.router.load_E.any() for index in range(4))


def test_a_cache_that_does_not_fit_is_refused() -> None:
    model = build(tiny("mid50x2"))
    cache = model.new_cache(2, 4)
    with pytest.raises(BadInput, match="serves decoding"):
        model(tokens(2, 1), cache=cache)
    with torch.no_grad():
        with pytest.raises(BadInput, match="2 rows, the tokens 3"):
            model(tokens(3, 1), cache=cache)
        model(tokens(2, 3), cache=cache)
        with pytest.raises(BadInput, match="holds 4 tokens; 2 after 3 do not fit"):
            model(tokens(2, 2), cache=cache)
        with pytest.raises(BadInput, match="packed"):
            model(tokens(2, 1), torch.zeros(2, 1, dtype=torch.int64), cache=cache)
        with pytest.raises(BadInput, match="for 6 visits, the model has 4"):
            build(tiny())(tokens(2, 1), cache=cache)


POLICIES: dict[str, dict[str, Any]] = {
    "visit": {"kv_policy": "visit"},
    "last": {"kv_policy": "last"},
    "shared": {"kv_policy": "shared"},
    "ring 1": {"kv_policy": "ring", "kv_ring": 1},
    "ring 2": {"kv_policy": "ring", "kv_ring": 2},
    "ring 3": {"kv_policy": "ring", "kv_ring": 3},
}
LOOPS = ["mid50x3", "full x3", "1-[1x2]-[1x3]-1", "visits 1,2,3,2,1,4,2"]


def decoded(model: LoopedTransformer, ids: torch.Tensor, chunks: list[int], **options: Any) -> torch.Tensor:
    """Logits of tokens that come in chunks."""
    cache = model.new_cache(len(ids), ids.shape[1], **options)
    with torch.no_grad():
        return torch.cat([model(chunk, cache=cache).logits_BSV for chunk in ids.split(chunks, dim=1)], dim=1)


@pytest.mark.parametrize("changes", [{}, SPLIT])
@pytest.mark.parametrize("layout", LOOPS)
@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_keeps_what_the_ledger_counts(policy: str, layout: str, changes: dict[str, Any]) -> None:
    spec = tiny(layout, **changes, loop=POLICIES[policy])
    model, ids = build(spec), tokens(2, 7)
    assert spec.loop is not None
    cache = model.new_cache(2, 7)
    assert len(cache) == sum(spec.loop.slots(visits) for visits in spec.visits.counts)
    with torch.no_grad():
        for chunk in ids.split([4, 2, 1], dim=1):
            model(chunk, cache=cache)
    assert cache.tokens == 7
    assert all(slot.filled == 7 for slot in cache.slots)
    stored = sum(t.untyped_storage().nbytes() for slot in cache.slots for t in (slot.keys_BPGD, slot.values_BPGC))
    kv = ledger(spec, convention("paper"), Context.causal(7)).budget.kv
    assert stored == kv * 4 * 2 * 7
    assert cache.elements_per_token == kv


@pytest.mark.parametrize("chunks", [[1] * 7, [4, 1, 2]])
@pytest.mark.parametrize("layout", LOOPS)
@pytest.mark.parametrize("policy", ["visit", "shared", "ring 3"])
def test_policies_that_claim_it_decode_the_uncached_model(policy: str, layout: str, chunks: list[int]) -> None:
    """A ring claims it where it is as long as a block has visits."""
    model, ids = build(tiny(layout, loop=POLICIES[policy])), tokens(2, 7)
    torch.testing.assert_close(decoded(model, ids, chunks), model(ids).logits_BSV, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("layout", LOOPS)
@pytest.mark.parametrize("policy", ["last", "ring 1", "ring 2"])
def test_a_cache_of_fewer_slots_equals_the_uncached_model_in_its_first_pass_alone(policy: str, layout: str) -> None:
    model, ids = build(tiny(layout, loop=POLICIES[policy])), tokens(2, 7)
    plain = build(tiny(layout))
    plain.load_state_dict(model.state_dict())
    expected = plain(ids).logits_BSV
    assert torch.equal(model(ids).logits_BSV, expected)
    found = decoded(model, ids, [5, 1, 1])
    torch.testing.assert_close(found[:, :5], expected[:, :5], rtol=1e-3, atol=1e-4)
    assert all((found[:, at] - expected[:, at]).abs().max() > 1e-2 for at in (5, 6))
    policy_fields = POLICIES[policy]
    options = {"policy": policy_fields["kv_policy"], "ring": policy_fields.get("kv_ring")}
    assert torch.equal(decoded(plain, ids, [5, 1, 1], **options), found)


def test_the_last_visit_is_a_ring_of_one() -> None:
    model, ids = build(tiny("mid50x3")), tokens(2, 7)
    last, ring = (decoded(model, ids, [3, 1, 2, 1], policy=name, ring=k) for name, k in (("last", None), ("ring", 1)))
    assert torch.equal(last, ring)


def test_earlier_tokens_are_read_as_the_last_visit_of_a_slot_wrote_them() -> None:
    """Against the definition: a cache of every visit whose past entries are replaced between passes."""
    model, ids = build(tiny("full x3")), tokens(2, 6)
    full = model.new_cache(2, 6)
    found = []
    with torch.no_grad():
        for chunk in ids.split([3, 1, 1, 1], dim=1):
            found.append(model(chunk, cache=full).logits_BSV)
            for block in range(4):
                first, _, third = (full.slots[4 * turn + block] for turn in range(3))
                first.keys_BPGD.copy_(third.keys_BPGD)  # of a ring of two, visits 1 and 3 share a slot
                first.values_BPGC.copy_(third.values_BPGC)
    ring = decoded(model, ids, [3, 1, 1, 1], policy="ring", ring=2)
    torch.testing.assert_close(ring, torch.cat(found, dim=1), rtol=1e-3, atol=1e-4)


def test_shared_keys_and_values_are_those_of_the_first_visit() -> None:
    model, ids = build(tiny("mid50x3", loop=POLICIES["shared"])), tokens(2, 7)
    calls: list[int] = []
    for index in range(4):
        for part in ("key", "value"):
            getattr(model.block(index).attention, part).register_forward_hook(lambda *_, i=index: calls.append(i))
    shared = model(ids).logits_BSV
    assert sorted(calls) == [0, 0, 1, 1, 2, 2, 3, 3]
    plain = build(tiny("mid50x3"))
    plain.load_state_dict(model.state_dict())
    assert not torch.allclose(plain(ids).logits_BSV, shared, rtol=1e-2)


@pytest.mark.parametrize("compiled", [False, True])
def test_shared_keys_and_values_have_gradients_under_checkpointing(compiled: bool) -> None:
    spec, ids = tiny("mid50x3", loop=POLICIES["shared"]), tokens(2, 7)
    gradients = []
    weights = build(spec).state_dict()
    for checkpoint in (False, True):
        model = LoopedTransformer(spec, checkpoint=checkpoint)
        model.load_state_dict(weights)
        run = torch.compile(model, fullgraph=True, backend="aot_eager") if compiled and checkpoint else model
        out = run(ids)
        (out.logits_BSV.square().mean() + out.aux_loss).backward()
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    for name, expected in gradients[0].items():
        assert expected is not None
        assert expected.abs().sum() > 0
        torch.testing.assert_close(gradients[1][name], expected, rtol=1e-3, atol=1e-5)


def test_generation_follows_the_specs_policy() -> None:
    model, prompt = build(tiny("mid50x3", loop=POLICIES["shared"])), tokens(2, 3)
    found = generate(model, prompt, 5)
    for at in range(3, 8):
        assert torch.equal(found[:, at], model(found[:, :at]).logits_BSV[:, -1].argmax(-1))


@pytest.mark.parametrize(
    ("stated", "options", "message"),
    [
        ("visit", {"policy": "first"}, "'first' is not one of visit, last, shared, ring"),
        ("visit", {"policy": "shared"}, "'shared' is given, but the spec states 'visit'"),
        ("shared", {"policy": "last"}, "'last' is given, but the spec states 'shared'"),
        ("visit", {"policy": "ring"}, "at least 1 visit"),
        ("visit", {"policy": "ring", "ring": 0}, "at least 1 visit"),
        ("visit", {"policy": "last", "ring": 2}, "others take none"),
    ],
)
def test_a_policy_that_does_not_fit_the_model_is_refused(stated: str, options: dict[str, Any], message: str) -> None:
    model = LoopedTransformer(tiny("mid50x2", loop=POLICIES[stated]))
    with pytest.raises(BadInput, match=message):
        model.new_cache(1, 4, **options)


@pytest.mark.parametrize("options", [{"temperature": -1.0}, {"top_k": 0}, {"max_new_tokens": -1}])
def test_senseless_sampling_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        generate(build(tiny()), tokens(1, 2), **{"max_new_tokens": 1, **options})
    with pytest.raises(BadInput, match="at least 1 token"):
        generate(build(tiny()), torch.zeros(1, 0, dtype=torch.int64), 1)
