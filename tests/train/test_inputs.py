"""Inputs of every kind give the same documents; what is none is named by its place."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from smelt_match.errors import BadInput
from smelt_match.train.corpus.document import Document
from smelt_match.train.corpus.inputs import Input, Inputs, encoder_for
from smelt_match.train.corpus.texts import Fields

RECORDS = [{"text": f"text {n} of naïve £", "source": f"s{n % 2}", "category": "C"} for n in range(5)]
WANTED = [(record["source"], record["category"], record["text"]) for record in RECORDS]


def read(*texts: object, fields: Fields | None = None, max_bad: Fraction = Fraction(0), pattern: str = "*") -> Inputs:
    """Inputs, read once: the documents are in `found`."""
    return Inputs([Input.parse(str(text), fields or Fields()) for text in texts], pattern, max_bad)


def told(documents: object) -> list[tuple[str, str, str]]:
    return [(each.source, each.category, each.text) for each in documents]  # type: ignore[attr-defined]


def jsonl(path: Path) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in RECORDS), encoding="utf-8")
    return path


def gzipped(path: Path) -> Path:
    path = path.with_suffix(".jsonl.gz")
    path.write_bytes(gzip.compress("\n".join(json.dumps(r, ensure_ascii=False) for r in RECORDS).encode()))
    return path


def parquet(path: Path) -> Path:
    import pyarrow
    import pyarrow.parquet

    path = path.with_suffix(".parquet")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(RECORDS), path)
    return path


def dataset(path: Path) -> Path:
    import datasets

    datasets.disable_progress_bars()
    path = path.with_suffix("")
    datasets.Dataset.from_list(RECORDS).save_to_disk(str(path))
    return path


def dataset_dictionary(path: Path) -> Path:
    import datasets

    datasets.disable_progress_bars()
    path = path.with_suffix("")
    parts = {name: datasets.Dataset.from_list(rows) for name, rows in (("b", RECORDS[2:]), ("a", RECORDS[:2]))}
    datasets.DatasetDict(parts).save_to_disk(str(path))
    return path


@pytest.mark.parametrize("make", [jsonl, gzipped, parquet, dataset, dataset_dictionary])
def test_records_of_every_kind_are_the_same_documents(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    path = make(tmp_path / "a.jsonl")
    inputs = read(path)
    assert told(inputs.read()) == told(inputs.read()) == WANTED
    assert told(read(f"D/t={path}").read()) == [("t", "D", text) for _, _, text in WANTED]
    assert told(read(f"D={path}").read()) == [("a", "D", text) for _, _, text in WANTED]
    assert [(origin.documents, origin.item) for origin in inputs.provenance()] == [(5, str(path))]


def test_fields_have_the_names_that_are_given(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"body": "x", "site": "s", "topic": "T"}\n\n{"body": "y", "topic": "T"}\n')
    fields = Fields("body", "site", "topic")
    assert told(read(path, fields=fields).read()) == [("s", "T", "x"), ("a", "T", "y")]


def test_a_folder_is_read_by_name_without_hidden_files(tmp_path: Path) -> None:
    for name, text in {"b.txt": "b", "a/c.txt": "\ufeffc", ".git/d.txt": "d", "a/e.md": "e"}.items():
        (tmp_path / "mine" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mine" / name).write_text(text, encoding="utf-8")
    folder = tmp_path / "mine"
    assert told(read(f"Web={folder}").read()) == [("mine", "Web", "c"), ("mine", "Web", "e"), ("mine", "Web", "b")]
    assert told(read(f"Web/w={folder}", pattern="*.txt").read()) == [("w", "Web", "c"), ("w", "Web", "b")]
    with pytest.raises(BadInput, match="the files of a folder have no category"):
        list(read(folder).read())


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b'{"text": "x", "category": "C"', "not valid JSON"),
        (b"nonsense", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b'{"text": "x", "n": ' + b"9" * 5000 + b"}", "not valid JSON"),
        (b'["text"]', "is no object"),
        (b'{"category": "C"}', "has no field 'text'"),
        (b'{"text": null, "category": "C"}', "has no field 'text'"),
        (b'{"text": 7, "category": "C"}', "the text is int, not a string"),
        (b'{"text": "x"}', "has no category: no field 'category'"),
        (b'{"text": "x", "category": ["C"]}', "category is no text"),
        (b'{"text": "x", "category": "  "}', "category '  ' is no name"),
        (b'{"text": "x", "category": "C", "source": "a\\nb"}', "is no name"),
        (b'{"text": "x\\u0000y", "category": "C"}', "holds NUL"),
        (b'{"text": "\\ud800", "category": "C"}', "half of a surrogate pair"),
        (b'{"text": "\xff\xfe", "category": "C"}', "not UTF-8 (byte 11 of the line)"),
        (b"\x89PNG\r\x1a\x00", "not UTF-8"),
    ],
)
def test_a_broken_line_is_named_by_its_number(tmp_path: Path, line: bytes, why: str) -> None:
    path = tmp_path / "a.jsonl"
    good = b'{"text": "x", "category": "C"}\n'
    path.write_bytes(good * 2 + line + b"\n" + good)
    inputs = read(path, max_bad=Fraction(1, 4))
    assert len(list(inputs.read())) == 3
    assert inputs.unusable() == 1
    assert inputs.skipped()[0].startswith(f"{path}:3: ")
    assert why in inputs.skipped()[0]
    with pytest.raises(BadInput, match=r"1 of 4 items cannot be used; --max-bad allows 24\.00 %") as refused:
        list(read(path, max_bad=Fraction(24, 100)).read())
    assert f"  {path}:3: " in str(refused.value)


def test_a_bad_file_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"x\n" * 50_000)
    with pytest.raises(BadInput, match="10,000 of 10,000 items cannot be used"):
        list(read(path, max_bad=Fraction(1, 2)).read())


def test_files_of_a_folder_that_are_no_text_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "a.txt").write_text("a")
    (folder / "b.png").write_bytes(b"\x89PNG\r\n\x1a\n\0")
    (folder / "c.bin").write_bytes(b"a\0b")
    (folder / "d.txt").write_bytes("é".encode("latin-1"))
    inputs = read(f"Web={folder}", max_bad=Fraction(3, 4))
    assert told(inputs.read()) == [("mine", "Web", "a")]
    assert [line.partition(": ")[2] for line in inputs.skipped()] == [
        "not UTF-8 text (byte 1)", "holds NUL: binary data, not text", "not UTF-8 text (byte 1)",
    ]  # fmt: skip


def sidecar(path: Path, **changes: object) -> Path:
    fields = {"vocab_size": 50, "eos_id": 9, "dtype": "uint16", "source": "s", "category": "C"} | changes
    path.with_suffix(".json").write_text(json.dumps({k: v for k, v in fields.items() if v is not None}))
    return path


IDS = np.array([9, 1, 2, 9, 9, 3, 9, 4, 5, 6])


def ready(path: Path, **changes: object) -> Path:
    if path.suffix == ".npy":
        np.save(path, IDS)
    else:
        path.write_bytes(IDS.astype("<u2").tobytes())
    return sidecar(path, **changes)


@pytest.mark.parametrize("name", ["a.npy", "a.bin"])
def test_ready_tokens_are_documents_between_separators(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = ready(tmp_path / name)
    for chunk in (2**20, 3, 1):
        monkeypatch.setattr("smelt_match.train.corpus.tokens.CHUNK", chunk)
        found = list(read(path).read())
        assert [each.tokens.tolist() for each in found if each.tokens is not None] == [[1, 2], [3], [4, 5, 6]]
        assert {(each.source, each.category) for each in found} == {("s", "C")}
    found = list(read(f"D/t={path}").read())
    assert {(each.source, each.category) for each in found} == {("t", "D")}
    encoder = encoder_for([Input.parse(str(path), Fields())], None, None)
    assert (encoder.vocab_size, encoder.eos_id) == (50, 9)


def refused(said: str, *texts: object, **options: object) -> None:
    with pytest.raises(BadInput, match=said):
        list(read(*texts, **options).read())  # type: ignore[arg-type]


def test_token_files_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    path = ready(tmp_path / "a.bin")
    refused("token 0 is 9; its sidecar says that ids are below 6", sidecar(path, vocab_size=6, eos_id=5))
    refused("eos_id 50 is not below vocab_size 50", sidecar(path, eos_id=50))
    refused("a.json: has no category", sidecar(path, category=None))
    refused("dtype: required key is missing", sidecar(path, dtype=None))
    refused("dtype", sidecar(path, dtype="float32"))
    refused("vocab_size: required key", sidecar(path, vocab_size=None))
    refused("20 bytes are no whole number of int64", sidecar(path, dtype="int64"))
    path.with_suffix(".json").write_text("[")
    refused("not valid", path)
    path.with_suffix(".json").unlink()
    refused("its sidecar a.json is missing", path)
    array = tmp_path / "b.npy"
    np.save(array, IDS - 2)
    refused("token 1 is -1", sidecar(array))
    np.save(array, IDS / 2)
    refused("holds float64, not integers", array)
    np.save(array, np.array([{}], object), allow_pickle=True)
    refused("not an array that can be read", array)
    array.write_bytes(b"")
    refused("not an array that can be read", array)
    (tmp_path / "c.bin").write_bytes(b"")
    assert not list(read(sidecar(tmp_path / "c.bin")).read())


def test_tokens_and_texts_do_not_mix(tmp_path: Path) -> None:
    tokens, text = ready(tmp_path / "a.npy"), jsonl(tmp_path / "b.jsonl")
    other = ready(tmp_path / "c.npy", vocab_size=60)

    def encoder(*paths: Path, name: str | None = None) -> None:
        encoder_for([Input.parse(str(path), Fields()) for path in paths], name, None)

    with pytest.raises(BadInput, match=r"cannot be mixed with text \(.*b.jsonl\)"):
        encoder(tokens, text)
    with pytest.raises(BadInput, match=r"cannot be mixed with text \(--tokenizer\)"):
        encoder(tokens, name="bytes")
    with pytest.raises(BadInput, match="vocab_size 60, eos_id 9"):
        encoder(tokens, other)


def test_files_that_are_not_what_their_name_says_are_refused(tmp_path: Path) -> None:
    for name in ("a.parquet", "b.jsonl.gz"):
        (tmp_path / name).write_bytes(b"this is text\n" * 9)
    refused("a.parquet: not a Parquet file", tmp_path / "a.parquet")
    refused("b.jsonl.gz: cannot read this file: Not a gzipped file", tmp_path / "b.jsonl.gz")
    data = gzip.compress(b'{"text": "x", "category": "C"}\n' * 900)
    (tmp_path / "b.jsonl.gz").write_bytes(data[:-20])
    refused("the compressed data is damaged", tmp_path / "b.jsonl.gz")
    folder = dataset(tmp_path / "d")
    (folder / "state.json").write_text("{}")
    refused("d: not a data set that can be read", folder)
    path = parquet(tmp_path / "e")
    refused("has no column 'body'", path, fields=Fields(text="body"))
    refused("has no column 'topic'", path, fields=Fields(category="topic"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("none.jsonl", "none.jsonl: no such file or folder"),
        ("C/s=none.jsonl", "none.jsonl: no such file or folder"),
        ("x" * 5000, "no such file or folder"),
        ("a\0b", "no such file or folder"),
        ("a.txt", "its name does not say what it is"),
        ("/s=a.jsonl", "category '' is no name"),
        ("/dev/null", "is not a regular file"),
    ],
)
def test_an_input_that_cannot_be_told_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    jsonl(tmp_path / "a.jsonl")
    (tmp_path / "a.txt").write_text("a")
    refused(said, text)


def test_a_path_with_an_equals_sign_is_a_path_if_it_exists(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a=b.jsonl")
    assert told(read(path).read()) == WANTED


def test_documents_that_are_too_long_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smelt_match.train.corpus.texts.MAX_DOCUMENT", 40)
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text": "x" * 41, "category": "C"}) + "\n" + '{"text": "x", "category": "C"}\n')
    inputs = read(path, max_bad=Fraction(1, 2))
    assert len(list(inputs.read())) == 1
    assert "41 bytes of text; 40 are the most" in inputs.skipped()[0]
    path.write_text(json.dumps({"text": "x" * 99, "category": "C"}))
    refused("a line of more than 80 bytes", path)


def test_a_document_is_its_words() -> None:
    assert Document("s", "C", "Über-Maß: ok?").words == ["über", "mass", "ok"]
    assert Document("s", "C", tokens=np.array([4, 5])).words == ["4", "5"]
