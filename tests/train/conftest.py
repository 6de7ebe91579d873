"""One thread for torch, as in the tests of the model, and no rank of torchrun's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from smelt_match.train.shards import Shards
from tests.train.corpora import corpus, texts


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    """A corpus of two sources in two categories, about 8,000 tokens for the trunk."""
    documents = [*texts(150, "a", "Code"), *texts(150, "b", "Web")]
    return corpus(tmp_path_factory.mktemp("corpus") / "corpus", documents)
