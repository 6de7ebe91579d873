"""Text to tokens: bytes without any library, or any tokenizer.json."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from smelt_match.errors import BadInput, MissingExtra
from smelt_match.files import explained
from smelt_match.train.corpus.document import Document
from smelt_match.train.corpus.texts import EXTRA
from smelt_match.train.manifest import Tokens

SEPARATOR = "<|endoftext|>"
KNOWN_SEPARATORS = (SEPARATOR, "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>", "<｜end▁of▁sentence｜>", "[EOS]")
MAX_TOKENIZER_BYTES = 256 * 2**20


class Encoder(Protocol):
    """What turns documents into token ids.

    Attributes:
        vocab_size: Every id is below it, the separator's too.
        eos_id: The separator, which no document contains.
        record: What the manifest says of it.
        text: The tokenizer.json to keep beside the corpus, if there is one.
    """

    vocab_size: int
    eos_id: int
    record: Tokens
    text: str | None

    def encode(self, documents: Sequence[Document]) -> list[NDArray[np.integer]]:
        """The ids of each document, without separators."""
        ...


class Bytes:
    """A token for each UTF-8 byte, and 256 as the separator."""

    vocab_size = 257
    eos_id = 256
    record = Tokens(kind="bytes")
    text: str | None = None

    def encode(self, documents: Sequence[Document]) -> list[NDArray[np.integer]]:
        """The bytes of each document."""
        return [np.frombuffer(document.text.encode(), np.uint8) for document in documents]


class Ready:
    """Documents that are tokens already."""

    record = Tokens(kind="ready")
    text: str | None = None

    def __init__(self, vocab_size: int, eos_id: int) -> None:
        self.vocab_size, self.eos_id = vocab_size, eos_id

    def encode(self, documents: Sequence[Document]) -> list[NDArray[np.integer]]:
        """Their own tokens."""
        return [document.tokens for document in documents if document.tokens is not None]


class TokenizerFile:
    """A tokenizer.json of the ``tokenizers`` library.

    Args:
        path: The file.
        separator: Its token between documents; default: the first of the usual ones that it has.

    Raises:
        BadInput: The file is none, or has no such token.
        MissingExtra: The library is not installed.
    """

    def __init__(self, path: Path, separator: str | None = None) -> None:
        tokenizers = library()
        with explained(path, "read this tokenizer"):
            if not path.is_file():
                raise BadInput(f"{path}: no such tokenizer", "write bytes, or make one: smelt-match corpus tokenizer")
            if path.stat().st_size > MAX_TOKENIZER_BYTES:
                raise BadInput(f"{path}: {path.stat().st_size:,} bytes are too many for a tokenizer.json")
            data = path.read_bytes()
        try:
            text = data.decode()
            self._tokenizer = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the library raises no kind of its own
            raise BadInput(f"{path}: not a tokenizer.json: {str(error).splitlines()[0]}") from None
        self.text: str | None = text
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True  # a document that spells a separator has none
        vocabulary: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        names = KNOWN_SEPARATORS if separator is None else (separator,)
        found = next((name for name in names if name in vocabulary), None)
        if found is None:
            raise BadInput(f"{path}: has no token {' or '.join(names)}", "name its separator with --eos")
        self.eos_id = vocabulary[found]
        self.vocab_size = max(vocabulary.values()) + 1
        self.record = Tokens(kind="file", sha256=hashlib.sha256(data).hexdigest())

    def encode(self, documents: Sequence[Document]) -> list[NDArray[np.integer]]:
        """The ids of each text, special tokens left out."""
        found = self._tokenizer.encode_batch_fast([document.text for document in documents], add_special_tokens=False)
        return [np.array(encoding.ids, np.uint32) for encoding in found]


def find_encoder(name: str, separator: str | None = None) -> Encoder:
    """An encoder by name: ``bytes``, or the path of a tokenizer.json.

    Raises:
        BadInput: There is none; or ``separator`` is given for bytes, whose separator is 256.
    """
    if name == "bytes":
        if separator is not None:
            raise BadInput(
                f"--eos {separator[:40]!r}: bytes have the separator 256 and no other",
                "leave --eos out, or name a tokenizer.json that has this token with --tokenizer",
            )
        return Bytes()
    path = Path(name)
    return TokenizerFile(path / "tokenizer.json" if path.is_dir() else path, separator)


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> str:
    """A byte-level BPE tokenizer (as GPT-2's: no prefix space) with `SEPARATOR` as id 0, as the text of its file.

    Raises:
        BadInput: ``vocab_size`` is too small for bytes and separator, or there are no texts, or too few to fill it.
    """
    if not 257 <= vocab_size <= 2**20:
        raise BadInput(f"--vocab-size {vocab_size}: must be between 257 (256 bytes and the separator) and {2**20:,}")
    tokenizers = library()
    from tokenizers import decoders, models, pre_tokenizers, trainers

    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[SEPARATOR],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    texts = iter(texts)
    first = next((text for text in texts if text.strip()), None)
    if first is None:
        raise BadInput(
            "there are no documents to learn from, besides empty and held-out ones",
            "check the inputs, --glob and --validation-share",
        )
    tokenizer.train_from_iterator(chain([first], texts), trainer)
    if tokenizer.get_vocab_size() < vocab_size:
        raise BadInput(
            f"--vocab-size {vocab_size:,}: these documents fill only {tokenizer.get_vocab_size():,}",
            "give more documents, or a smaller --vocab-size",
        )
    return str(tokenizer.to_str(pretty=True)) + "\n"


def library() -> Any:
    """The ``tokenizers`` library."""
    try:
        import tokenizers
    except ImportError:
        raise MissingExtra("a tokenizer.json needs tokenizers, which is not installed", EXTRA) from None
    return tokenizers
