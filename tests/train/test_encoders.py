"""Encoders: texts come back, separators do not enter, and a tokenizer is the same each time it is trained."""

from __future__ import annotations

import builtins
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smelt_match.errors import BadInput, MissingExtra
from smelt_match.train.corpus.document import Document
from smelt_match.train.corpus.encoders import SEPARATOR, Bytes, TokenizerFile, find_encoder, train_tokenizer
from smelt_match.train.corpus.inputs import Input
from smelt_match.train.corpus.near import NearIndex
from smelt_match.train.corpus.tally import Tally
from smelt_match.train.corpus.texts import Fields
from tests.train.corpora import corpus, texts

TEXTS = [f"The number {n} and its square {n * n} are here. Zoë says: naïve £{n}." for n in range(200)]


@pytest.fixture(scope="module")
def bpe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    path.write_text(train_tokenizer(TEXTS, 300), encoding="utf-8")
    return path


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_bytes_are_the_text(text: str) -> None:
    (ids,) = Bytes().encode([Document("s", "C", text)])
    assert ids.astype("u1").tobytes().decode() == text
    assert Bytes.eos_id not in ids


def test_any_text_comes_back_from_a_trained_tokenizer(bpe: Path) -> None:
    from tokenizers import Tokenizer

    encoder = TokenizerFile(bpe)
    assert (encoder.vocab_size, encoder.eos_id) == (300, 0)
    tokenizer = Tokenizer.from_file(str(bpe))
    for text in (TEXTS[3], "Ünïcode 你好 🙂", f"spells {SEPARATOR} out", " leading, trailing \n\n"):
        (ids,) = encoder.encode([Document("s", "C", text)])
        assert 0 not in ids
        assert max(ids) < 300
        assert tokenizer.decode(ids.tolist(), skip_special_tokens=False) == text


def test_training_a_tokenizer_again_gives_the_same_bytes(bpe: Path) -> None:
    assert train_tokenizer(iter(TEXTS), 300) == bpe.read_text(encoding="utf-8")


def test_the_tokenizer_is_kept_with_the_corpus_and_is_part_of_its_digest(bpe: Path, tmp_path: Path) -> None:
    shards = corpus(tmp_path / "a", texts(40), TokenizerFile(bpe))
    assert (shards.folder / "tokenizer.json").read_bytes() == bpe.read_bytes()
    assert (shards.manifest.tokenizer.kind, shards.vocab_size, shards.eos_id) == ("file", 300, 0)
    assert find_encoder(str(shards.folder)).record == shards.manifest.tokenizer
    other = tmp_path / "tokenizer.json"
    other.write_text(bpe.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    assert corpus(tmp_path / "b", texts(40), TokenizerFile(other)).digest != shards.digest


def test_a_wide_vocabulary_is_kept_in_four_bytes(bpe: Path, tmp_path: Path) -> None:
    document = json.loads(bpe.read_text(encoding="utf-8"))
    document["model"]["vocab"]["far"] = 70_000
    path = tmp_path / "wide.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    shards = corpus(tmp_path / "a", texts(40), TokenizerFile(path))
    assert (shards.vocab_size, shards.trunk.tokens_N.dtype) == (70_001, "uint32")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "no such tokenizer"),
        (b"", "not a tokenizer.json"),
        (b"{}", "not a tokenizer.json"),
        (b"\xff", "not a tok"),
    ],
)
def test_a_file_that_is_no_tokenizer_is_refused(tmp_path: Path, content: bytes | None, said: str) -> None:
    if content is not None:
        (tmp_path / "t.json").write_bytes(content)
    with pytest.raises(BadInput, match=said):
        find_encoder(str(tmp_path / "t.json"))


def test_a_separator_must_be_in_the_vocabulary(bpe: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="has no token <stop>"):
        TokenizerFile(bpe, "<stop>")
    assert TokenizerFile(bpe, "Z").eos_id > 0
    document = json.loads(bpe.read_text(encoding="utf-8"))
    document["added_tokens"] = []
    document["model"]["vocab"]["zz"] = document["model"]["vocab"].pop(SEPARATOR)
    (tmp_path / "t.json").write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(BadInput, match=r"has no token <\|endoftext\|> or"):
        TokenizerFile(tmp_path / "t.json")


@pytest.mark.parametrize(("size", "said"), [(256, "between 257"), (2**21, "between 257"), (5000, "fill only")])
def test_a_vocabulary_that_texts_cannot_fill_is_refused(size: int, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        train_tokenizer(TEXTS, size)


def parquet(path: Path) -> object:
    path.write_bytes(b"")
    return list(Input(path, "parquet", Fields()).documents("*", Tally("a", 1)))  # type: ignore[arg-type]


def dataset(path: Path) -> object:
    return list(Input(path, "dataset", Fields()).documents("*", Tally("a", 1)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("library", "use"),
    [
        ("tokenizers", lambda path: find_encoder(str(path))),
        ("datasketch", lambda _: NearIndex(0.8)),
        ("pyarrow", parquet),
        ("datasets", dataset),
    ],
)
def test_a_missing_library_is_named_with_its_install_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str, use: Callable[[Path], object]
) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **options: Any) -> Any:
        if name.partition(".")[0] == library:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *args, **options)

    for name in [name for name in sys.modules if name.partition(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtra, match=f"{library}.* is not installed") as refused:
        use(tmp_path / "x")
    assert "pip install 'smelt-match[train]'" in refused.value.hint
