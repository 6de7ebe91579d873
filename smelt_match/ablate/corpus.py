"""The corpus of a sweep that names none: it needs no download, and is built once beside the sweeps."""

from __future__ import annotations

from pathlib import Path

from smelt_match.ablate.extent import Extent
from smelt_match.ablate.launch import Told
from smelt_match.train.batches import tokens_available
from smelt_match.train.manifest import MANIFEST
from smelt_match.train.shards import Shards

SAMPLE, ALL = "corpus-sample", "corpus-built-in"


def built_in(extent: Extent, folder: Path, told: Told) -> Path:
    """The committed sample where it holds enough fresh tokens, else everything that is on this machine.

    The sample is the same everywhere; the whole depends on the Python and the packages that are installed, which its
    digest says.

    Raises:
        BadInput: The folder cannot be written, or holds something else.
        MissingExtra: The whole corpus is wanted, and what finds near copies in it is not installed.
    """
    small = _built(folder / SAMPLE, sample=True, told=told)
    return small if _is_enough(Shards.open(small), extent) else _built(folder / ALL, sample=False, told=told)


def _is_enough(shards: Shards, extent: Extent) -> bool:
    return (
        tokens_available(shards.trunk, extent.context) >= extent.tokens_trunk
        and tokens_available(shards.branch, extent.context) >= extent.tokens_branch
    )


def _built(place: Path, sample: bool, told: Told) -> Path:
    from smelt_match.train.corpus.build import Recipe, build
    from smelt_match.train.corpus.builtin import BuiltIn
    from smelt_match.train.corpus.encoders import Bytes

    if (place / MANIFEST).is_file():
        return place
    told(f"building {place} from {'the committed sample' if sample else 'the texts of this machine'}, byte by byte")
    place.parent.mkdir(parents=True, exist_ok=True)
    recipe = Recipe(near=None) if sample else Recipe()  # the sample holds no near copies, as a test says
    build(BuiltIn(sample_only=sample), Bytes(), place, recipe)
    return place
