"""Near duplicates of validation documents, by MinHash (Broder 1997) and locality-sensitive hashing."""

from __future__ import annotations

from typing import Any

from smelt_match.errors import MissingExtra
from smelt_match.train.corpus.document import Document
from smelt_match.train.corpus.texts import EXTRA

NUM_PERMUTATIONS = 128  # the estimate's standard error is at most 0.5/√128 = 0.044; 0.035 at a similarity of 0.8
SHINGLE = 5  # words


class NearIndex:
    """Finds documents whose 5-word shingles overlap with those of a document that was added.

    Args:
        threshold: The least Jaccard similarity, as MinHash estimates it, of what counts as a near duplicate.

    Raises:
        MissingExtra: ``datasketch`` is not installed.
    """

    def __init__(self, threshold: float) -> None:
        try:
            import datasketch
        except ImportError:
            hint = f"{EXTRA}, or leave near duplicates in with: --near none"
            raise MissingExtra("removing near duplicates: datasketch is not installed", hint) from None
        self._library: Any = datasketch
        self.threshold = threshold
        self.method = (
            f"MinHash of {SHINGLE}-word shingles, {NUM_PERMUTATIONS} permutations, datasketch {datasketch.__version__}"
        )
        self._index = datasketch.MinHashLSH(threshold=threshold, num_perm=NUM_PERMUTATIONS)
        self._sketches: dict[int, Any] = {}

    def add(self, document: Document) -> None:
        """Remember a document."""
        sketch = self._sketch(document)
        number = len(self._sketches)
        self._sketches[number] = sketch
        self._index.insert(number, sketch, check_duplication=False)

    def has_near(self, document: Document) -> bool:
        """Whether a remembered document is at least as similar as the threshold."""
        sketch = self._sketch(document)
        return any(sketch.jaccard(self._sketches[key]) >= self.threshold for key in self._index.query(sketch))

    def _sketch(self, document: Document) -> Any:
        words = document.words
        shingles = {" ".join(words[first : first + SHINGLE]) for first in range(max(1, len(words) - SHINGLE + 1))}
        sketch = self._library.MinHash(num_perm=NUM_PERMUTATIONS, seed=1)
        sketch.update_batch([shingle.encode() for shingle in shingles])
        return sketch
