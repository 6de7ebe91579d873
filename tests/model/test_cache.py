"""Decoding with a cache is the uncached model, one slot for each visit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

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
        with pytest.raises(BadInput, match="6 slots, the model 4 visits"):
            build(tiny())(tokens(2, 1), cache=cache)
    with pytest.raises(BadInput, match="'last' cannot be built yet"):
        model.new_cache(1, 4, policy="last")


@pytest.mark.parametrize("options", [{"temperature": -1.0}, {"top_k": 0}, {"max_new_tokens": -1}])
def test_senseless_sampling_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        generate(build(tiny()), tokens(1, 2), **{"max_new_tokens": 1, **options})
    with pytest.raises(BadInput, match="at least 1 token"):
        generate(build(tiny()), torch.zeros(1, 0, dtype=torch.int64), 1)
