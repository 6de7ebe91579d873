"""Batches: every token once, in an order that only the seed decides, and no target of another document."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smelt_match.errors import BadInput
from smelt_match.train import batches
from smelt_match.train.batches import IGNORE, Batch, batch, check_fresh, num_contexts, tokens_available, validation
from smelt_match.train.shards import Shards, Stream
from tests.train.corpora import alone, corpus, texts

EOS = 99
lengths = st.lists(st.integers(1, 40), min_size=1, max_size=30)


def stream(sizes: list[int], name: str = "trunk") -> Stream:
    """Documents of these lengths, separator included; no two of their tokens are equal."""
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    tokens = np.arange(100, 100 + offsets[-1]).astype(np.uint16)
    tokens[offsets[:-1]] = EOS
    return Stream(name, tokens, offsets, np.zeros(len(sizes), np.int32), EOS)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    return corpus(tmp_path_factory.mktemp("corpus") / "a", texts(120) + texts(80, "t", "D"))


def epoch(pool: Stream, seed: int, rows: int, context: int) -> list[Batch]:
    return [batch(pool, seed, step, rows, context) for step in range(num_contexts(pool, context) // rows)]


@given(lengths, st.integers(1, 50), st.integers(0, 2**63 - 1))
def test_an_epoch_has_every_token_of_its_whole_contexts_once(sizes: list[int], context: int, seed: int) -> None:
    pool = stream(sizes)
    steps = epoch(pool, seed, 1, context)
    found = sorted(token for step in steps for token in step.tokens_BS[0].tolist())
    assert found == sorted(pool.tokens_N[: tokens_available(pool, context)].tolist())
    assert tokens_available(pool, context) > pool.num_tokens - context


@given(lengths, st.integers(1, 50))
def test_segments_are_documents_and_targets_the_next_token_of_the_same_one(sizes: list[int], context: int) -> None:
    pool = stream(sizes)
    document = np.repeat(np.arange(len(sizes)), sizes)
    for index in range(num_contexts(pool, context)):
        row = batches._row(pool, index * context, (index + 1) * context, context)
        here = document[index * context : (index + 1) * context]
        assert row.segment_ids_BS[0].tolist() == (here - here[0]).tolist()
        for place in range(context):
            after = index * context + place + 1
            same = after < len(document) and document[after] == here[place]
            assert row.targets_BS[0, place] == (pool.tokens_N[after] if same else EOS)
        assert (row.targets_BS != IGNORE).all()


@given(lengths, st.integers(1, 50))
def test_validation_counts_every_token_once_and_pads_only_the_end(sizes: list[int], context: int) -> None:
    pool = stream(sizes, "validation")
    spans = [(start, min(start + context, pool.num_tokens)) for start in range(0, pool.num_tokens, context)]
    found = batches._stack([batches._row(pool, *span, context) for span in spans])
    counted = found.targets_BS.reshape(-1) != IGNORE
    assert counted.sum() == pool.num_tokens == found.num_targets
    assert found.tokens_BS.reshape(-1)[counted].tolist() == pool.tokens_N.tolist()
    assert counted[: pool.num_tokens].all()
    padded = found.segment_ids_BS[-1][~counted.reshape(found.targets_BS.shape)[-1]]
    kept = found.segment_ids_BS[-1][counted.reshape(found.targets_BS.shape)[-1]]
    assert set(padded.tolist()).isdisjoint(kept.tolist())


def test_two_arms_see_the_same_tokens(shards: Shards) -> None:
    again = Shards.open(shards.folder)
    for step in (0, 3, 1):  # a restart may begin anywhere
        one = batch(shards.trunk, 7, step, 4, 16)
        batches._order.cache_clear()
        assert one.digest == batch(again.trunk, 7, step, 4, 16).digest


def test_the_order_is_the_seed_s(shards: Shards) -> None:
    first = [batch(shards.trunk, seed, 0, 4, 16).digest for seed in (0, 1, 2**63 - 1)]
    assert len(set(first)) == 3
    assert batches._order(20, 3, "trunk").tolist() != batches._order(20, 3, "branch").tolist()
    # Philox's bits are fixed for good (NEP 19), so these indices are the same on every machine.
    assert batches._order(10, 0, "trunk").tolist() == [2, 0, 1, 6, 9, 3, 8, 7, 4, 5]


@pytest.mark.parametrize("world_size", [1, 2, 3, 6])
def test_ranks_in_order_are_the_global_batch(shards: Shards, world_size: int) -> None:
    whole = batch(shards.trunk, 1, 2, 6, 16)
    parts = [batch(shards.trunk, 1, 2, 6, 16, rank, world_size) for rank in range(world_size)]
    assert np.concatenate([part.tokens_BS for part in parts]).tolist() == whole.tokens_BS.tolist()
    assert np.concatenate([part.targets_BS for part in parts]).tolist() == whole.targets_BS.tolist()
    assert whole.rows(2, 4).segment_ids_BS.tolist() == whole.segment_ids_BS[2:4].tolist()


def test_a_trunk_and_a_branch_see_no_token_twice_and_share_no_document(shards: Shards) -> None:
    for pool in (shards.trunk, shards.branch):
        steps = num_contexts(pool, 16) // 2
        seen = np.concatenate([batches.context_indices(pool, 5, step, 2, 16) for step in range(steps)])
        assert len(set(seen.tolist())) == len(seen) == 2 * steps
    documents = [{tuple(document) for document in alone(shards, split)} for split in ("trunk", "branch", "validation")]
    assert all(documents)
    assert documents[0].isdisjoint(documents[1] | documents[2])
    assert documents[1].isdisjoint(documents[2])


def test_a_run_that_would_see_tokens_twice_is_refused_with_the_numbers(shards: Shards) -> None:
    there = tokens_available(shards.trunk, 16)
    check_fresh(shards.trunk, there, 16)
    with pytest.raises(BadInput, match=f"trunk: {there + 1:,} tokens are asked for, and the corpus has {there:,} in"):
        check_fresh(shards.trunk, there + 1, 16)
    with pytest.raises(BadInput, match="an epoch would begin again"):
        batch(shards.branch, 0, 10**6, 2, 16)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"rows": 6, "world_size": 4}, "a batch of 6 rows cannot be shared by 4 ranks"),
        ({"rows": 6, "world_size": 2, "rank": 2}, "rank 2"),
        ({"rows": 0}, "at least one row"),
        ({"step": -1}, "steps count from 0"),
        ({"seed": -1}, "seed -1"),
        ({"context": 0}, "a context of 0 tokens"),
    ],
)
def test_batches_that_make_no_sense_are_refused(shards: Shards, asked: dict[str, int], told: str) -> None:
    with pytest.raises(BadInput, match=told):
        batch(shards.trunk, **{"seed": 0, "step": 0, "rows": 2, "context": 8, **asked})


def test_validation_is_by_source_in_fixed_order(shards: Shards) -> None:
    for source in shards.sources:
        rows = list(validation(shards, source.name, 3, 16))
        assert sum(part.num_targets for part in rows) == source.validation.tokens
        assert sum(len(part.tokens_BS) for part in rows) == batches.num_validation_contexts(shards, source.name, 16)
        assert [part.digest for part in rows] == [part.digest for part in validation(shards, source.name, 3, 16)]
        ids = np.concatenate([part.tokens_BS[part.targets_BS != IGNORE] for part in rows])
        text = bytes(ids[ids != shards.eos_id].astype(np.uint8)).decode()
        assert source.name in text
        assert not any(other.name + "1" in text for other in shards.sources if other != source)
    with pytest.raises(BadInput, match="has no source 'u'"):
        list(validation(shards, "u", 3, 16))


def test_a_document_longer_than_a_context_goes_on_in_the_next() -> None:
    pool = stream([40])
    rows = [batches._row(pool, start, start + 16, 16) for start in (0, 16)]
    assert np.concatenate([row.tokens_BS[0] for row in rows]).tolist() == pool.tokens_N[:32].tolist()
    assert rows[0].targets_BS[0, -1] == pool.tokens_N[16]
    assert all((row.segment_ids_BS == 0).all() for row in rows)


def test_a_pool_cannot_be_written(shards: Shards) -> None:
    assert not shards.trunk.tokens_N.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        shards.trunk.tokens_N[0] = 1
