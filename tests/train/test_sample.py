"""The committed sample: small, whole, of known origin, free of copies, and the same everywhere."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from smelt_match.train.batches import batch
from smelt_match.train.corpus.build import Recipe, build
from smelt_match.train.corpus.builtin import SAMPLE, BuiltIn, read_sample, sample_provenance
from smelt_match.train.corpus.encoders import Bytes
from smelt_match.train.shards import Shards

DIGEST = "0f47353ca5b7c3572377921ab88c3dabc6be7c83992ae48d66be2f972a02b38e"
FIRST_BATCH = "883532219182c40b84b64d9c86d5da753a9a93d1392d71138ed85ca1a7dbc312"  # seed 0, 8 rows of 256 tokens
TRUNK, BRANCH, VALIDATION = 1_415_429, 121_734, 72_490


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    folder = tmp_path_factory.mktemp("corpus") / "sample"
    build(BuiltIn(sample_only=True), Bytes(), folder, Recipe())
    return Shards.open(folder)


def test_it_has_at_most_two_million_bytes_in_five_categories() -> None:
    assert sum(path.stat().st_size for path in SAMPLE.iterdir()) <= 2_000_000
    assert {document.category for document in read_sample()} == {"Code", "Math", "Knowledge", "Finance", "Web"}


def test_every_document_has_an_origin_and_a_licence() -> None:
    origins = sample_provenance()
    assert sum(origin.documents for origin in origins) == len(list(read_sample()))
    free = {"PSF-2.0": "LICENSE.python", "Unicode-3.0": "LICENSE.unicode", "public domain": None, "Apache-2.0": None}
    for origin in origins:
        assert origin.origin
        notice = free[origin.licence]
        assert notice is None or (SAMPLE / notice).is_file()


def test_its_digest_is_fixed(sample: Shards) -> None:
    assert sample.digest == DIGEST
    assert [stream.num_tokens for stream in (sample.trunk, sample.branch, sample.validation)] == [
        TRUNK,
        BRANCH,
        VALIDATION,
    ]
    assert batch(sample.trunk, 0, 0, 8, 256).digest == FIRST_BATCH


def test_it_has_no_copies(sample: Shards) -> None:
    removed = sample.manifest.removed
    assert (removed.exact, removed.near, removed.empty, removed.over_cap) == (0, 0, 0, 0)
    by_source = Counter(document.source for document in read_sample())
    assert len(by_source) == 13


def test_it_is_the_same_without_the_library_that_finds_near_copies(sample: Shards, tmp_path: Path) -> None:
    build(BuiltIn(sample_only=True), Bytes(), tmp_path / "a", Recipe(near=None))
    assert Shards.open(tmp_path / "a").digest == sample.digest


def test_every_source_has_held_out_documents(sample: Shards) -> None:
    assert all(source.validation.documents for source in sample.sources)
