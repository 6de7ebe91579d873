"""Building: splits that share nothing, copies removed, folders whole or not there."""

from __future__ import annotations

import json
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smelt_match.errors import BadInput
from smelt_match.spec.family import countable, expand
from smelt_match.train.corpus import near
from smelt_match.train.corpus.build import Recipe, build
from smelt_match.train.corpus.document import Document, Shares
from smelt_match.train.corpus.encoders import Bytes, Ready
from smelt_match.train.manifest import MANIFEST
from smelt_match.train.shards import Shards, check_vocabulary
from tests.train.corpora import Given, alone, corpus, texts

SPLITS = ("trunk", "branch", "validation")


def contents(shards: Shards) -> set[str]:
    """The texts of all splits."""
    return {bytes(d[1:]).decode() for split in SPLITS for d in alone(shards, split)}


def test_every_document_is_in_one_split_with_its_separator_first(tmp_path: Path) -> None:
    documents = texts(60) + texts(50, "t", "D")
    shards = corpus(tmp_path / "a", documents)
    found = [document for split in SPLITS for document in alone(shards, split)]
    assert sorted(bytes(document[1:]).decode() for document in found) == sorted(each.text for each in documents)
    assert all(document[0] == 256 and 256 not in document[1:] for document in found)
    shards.verify()
    assert shards.categories == ("C", "D")
    assert shards.categories_of(np.array([1, 0, 1], np.int32)).tolist() == [1, 0, 1]


def test_counts_are_those_of_the_documents(tmp_path: Path) -> None:
    shards = corpus(tmp_path / "a", texts(60) + [Document("t", "D", "naïve £5 " * n) for n in range(1, 30)])
    for index, source in enumerate(shards.sources):
        for split in SPLITS:
            stream = getattr(shards, split)
            mine = [d for d, s in zip(alone(shards, split), stream.sources_D, strict=True) if s == index]
            count = getattr(source, split)
            assert (count.documents, count.tokens) == (len(mine), sum(map(len, mine)))
            assert count.bytes == count.tokens - count.documents  # of byte tokens


def test_the_order_of_the_input_does_not_matter(tmp_path: Path) -> None:
    documents = texts(60) + texts(50, "t", "D")
    assert corpus(tmp_path / "a", documents).digest == corpus(tmp_path / "b", documents[::-1]).digest
    assert corpus(tmp_path / "c", documents[1:]).digest != corpus(tmp_path / "a2", documents).digest


def test_the_split_of_a_document_is_its_text_s_alone(tmp_path: Path) -> None:
    few, many = (corpus(tmp_path / name, documents) for name, documents in (("a", texts(40)), ("b", texts(90))))
    for split in SPLITS:
        assert {tuple(d) for d in alone(few, split)} <= {tuple(d) for d in alone(many, split)}


@given(st.binary(min_size=8, max_size=32), st.fractions(0, 1), st.fractions(0, 1))
def test_shares_are_exact(key: bytes, one: Fraction, two: Fraction) -> None:
    low, high = sorted((one, two))
    place = Fraction(int.from_bytes(key[:8], "big"), 2**64)
    wanted = "validation" if place < low else "branch" if place < high else "trunk"
    assert Shares(low, high - low).split(key) == wanted


def test_copies_are_removed_whatever_their_case_spacing_and_unicode_form(tmp_path: Path) -> None:
    copies = ["One  small\nCAFÉ of ours", "one small cafe\u0301 of ours ", "ONE SMALL CAF\u00c9 OF OURS"]
    shards = corpus(tmp_path / "a", texts(40) + [Document("t", "D", text) for text in copies])
    assert shards.manifest.removed.exact == 2
    assert copies[0] in contents(shards)
    assert copies[1] not in contents(shards)


def edited(text: str) -> str:
    """A text with one word of fifty changed."""
    words = text.split()
    return " ".join("changed" if index == 25 else word for index, word in enumerate(words))


def test_training_documents_near_a_validation_document_are_removed(tmp_path: Path) -> None:
    originals = [Document("s", "C", " ".join(f"a{n}b{w}" for w in range(150))) for n in range(60)]
    copies = [Document("s", "C", edited(each.text)) for each in originals]
    shares = Shares(Fraction(1, 4), Fraction(1, 4))
    across = sum(
        1 for one, two in zip(originals, copies, strict=True)
        if (shares.split(one.key) == "validation") != (shares.split(two.key) == "validation")
    )  # fmt: skip
    assert across > 10
    shards = corpus(tmp_path / "a", originals + copies, near=Fraction(4, 5))
    assert shards.manifest.removed.near == across
    held = {bytes(d[1:]).decode() for d in alone(shards, "validation")}
    trained = {bytes(d[1:]).decode() for split in ("trunk", "branch") for d in alone(shards, split)}
    for text in held:
        number = text.partition("b")[0]
        assert not any(other.startswith(number + "b") for other in trained)
    assert f"{near.NUM_PERMUTATIONS} permutations" in shards.manifest.settings.near_method


def test_texts_that_share_few_words_stay(tmp_path: Path) -> None:
    shards = corpus(
        tmp_path / "a", [*texts(80), Document("s", "C", "!?"), Document("s", "C", "…")], near=Fraction(4, 5)
    )
    assert (shards.manifest.removed.near, shards.manifest.removed.exact) == (0, 0)


def test_validation_is_capped_by_source_and_documents_stay_whole(tmp_path: Path) -> None:
    free = corpus(tmp_path / "a", texts(100) + texts(100, "t", "D"))
    shards = corpus(tmp_path / "b", texts(100) + texts(100, "t", "D"), cap=300)
    for source in shards.sources:
        assert 200 < source.validation.tokens <= 300
    kept, all_ = ({tuple(d) for d in alone(each, "validation")} for each in (shards, free))
    assert kept < all_
    assert shards.manifest.removed.over_cap == len(all_) - len(kept)
    assert alone(shards, "trunk") == alone(free, "trunk")


@pytest.mark.parametrize(
    ("documents", "told"),
    [
        ([], "no document is left for training"),
        ([Document("s", "C", ""), Document("s", "C", " \n")], "no document is left for training"),
        ([*texts(9), Document("s", "D", "other")], "source 's' has the category 'C' and the category 'D'"),
        ([Document("s", "C", tokens=np.array([1, 7, 2]))], "holds the separator, id 7"),
        ([Document(f"s{n}", "C", f"text {n}") for n in range(10_100)], "more than 10,000 sources"),
    ],
)
def test_what_is_no_corpus_is_refused_and_nothing_is_left(tmp_path: Path, documents: list[Document], told: str) -> None:
    encoder = Ready(10, 7) if documents and documents[0].tokens is not None else Bytes()
    with pytest.raises(BadInput, match=told):
        corpus(tmp_path / "a", documents, encoder)
    assert not list(tmp_path.iterdir())


@contextmanager
def small_files(limit: int) -> Iterator[None]:
    """No file may grow beyond ``limit`` bytes, as on a disk that fills up."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("limit", [0, 500, 20_000, 50_000])
def test_a_full_disk_is_a_sentence_and_leaves_nothing_behind(tmp_path: Path, limit: int) -> None:
    documents = Given(texts(3000, words=9))
    with small_files(limit), pytest.raises(BadInput, match="a: cannot write there: File too large"):
        build(documents, Bytes(), tmp_path / "a", Recipe(near=None))
    assert not list(tmp_path.iterdir())


def test_a_vocabulary_that_does_not_fit_the_spec_is_refused(tmp_path: Path) -> None:
    shards = corpus(tmp_path / "a", texts(40))
    spec = countable(expand("nano_s85")[0])
    assert check_vocabulary(shards, spec) == 257
    assert check_vocabulary(shards, spec.model_copy(update={"vocab_size": 512})) == 512
    with pytest.raises(BadInput, match="nano_s85: vocab_size 256 is less than the 257 ids"):
        check_vocabulary(shards, spec.model_copy(update={"vocab_size": 256}))


def damaged_bytes(folder: Path) -> None:
    path = folder / "trunk.tokens.bin"
    data = bytearray(path.read_bytes())
    data[2] ^= 1
    path.write_bytes(data)


def changed(folder: Path, **fields: object) -> None:
    path = folder / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda f: shutil.rmtree(f), "no such corpus folder"),
        (lambda f: (f / MANIFEST).unlink(), "holds no corpus.json"),
        (lambda f: (f / MANIFEST).write_text("{"), "corpus.json: the file is damaged: Invalid JSON"),
        (lambda f: (f / MANIFEST).write_text((f / MANIFEST).read_text()[:-9]), "corpus.json: the file is damaged: "),
        (lambda f: (f / MANIFEST).write_text("[]"), "corpus.json: the whole: Input should be an object"),
        (lambda f: (f / MANIFEST).write_bytes(b"\xff\x00"), "not UTF-8"),
        (lambda f: changed(f, schema_version=9), "schema_version: Input should be 1, found 9"),
        (lambda f: changed(f, sources=[]), "sources"),
        (lambda f: changed(f, vocab_size=300), "the digest is not that of its content"),
        (lambda f: changed(f, files={}), "the digest is not that"),
        (lambda f: (f / "trunk.tokens.bin").unlink(), "trunk.tokens.bin: is missing"),
        (lambda f: (f / "trunk.offsets.bin").write_bytes(b"123"), r"trunk.offsets.bin: has 3 bytes, not [\d,]+"),
        (damaged_bytes, "trunk.tokens.bin: its sha256 is not the one in the manifest"),
    ],
)
def test_a_damaged_corpus_is_refused(tmp_path: Path, damage: object, told: str) -> None:
    folder = tmp_path / "a"
    corpus(folder, texts(30))
    damage(folder)  # type: ignore[operator]
    with pytest.raises(BadInput, match=told):
        Shards.open(folder).verify()
