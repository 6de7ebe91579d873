"""`smelt-match corpus`: what is shown, what is refused, and folders that survive a kill."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from smelt_match.train.shards import Shards
from tests.cli.conftest import Cli, refused, start


@pytest.fixture
def records() -> Path:
    """Two hundred documents of two sources."""
    path = Path("a.jsonl")
    lines = [{"text": f"Document {n} tells of {n * n}.", "source": f"s{n % 2}", "category": "C"} for n in range(200)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def build(cli: Cli, *args: object) -> Shards:
    ran = cli("corpus", "build", *args, "-o", "c")
    assert (ran.code, ran.out) == (0, ""), ran
    return Shards.open(Path("c"))


@pytest.mark.parametrize("form", ["table", "md", "csv", "json"])
def test_a_corpus_is_shown(cli: Cli, records: Path, form: str, snapshot: SnapshotAssertion) -> None:
    build(cli, records, "--near", "none")
    ran = cli("corpus", "show", "c", "--check", "--format", form)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == snapshot


def test_its_history_is_shown(cli: Cli, records: Path) -> None:
    build(cli, records, f"D/t={records}", "--near", "none")
    told = cli("corpus", "show", "c", "--provenance", "--format", "csv").out
    assert told == "item,origin,licence,documents\na.jsonl,jsonl,not stated,200\na.jsonl,jsonl,not stated,200\n"
    assert Shards.open(Path("c")).manifest.removed.exact == 200


def test_a_build_says_what_it_left_out(cli: Cli, records: Path) -> None:
    records.write_text(records.read_text() + "nonsense\n" + '{"text": "DOCUMENT  7 tells of 49.", "category": "C"}\n')
    refused(cli("corpus", "build", records, "-o", "c"), "1 of 202 items cannot be used", "a.jsonl:201: not valid JSON")
    assert not Path("c").exists()
    ran = cli("corpus", "build", records, "-o", "c", "--max-bad", "1%", "--near", "none", "--validation-share", "1/100")
    assert ran.code == 0
    assert "left out: a.jsonl:201: not valid JSON" in ran.err
    assert "removed: 1 copies, 0 near copies of held-out documents, 0 empty documents, 1 unusable items" in ran.err
    assert Shards.open(Path("c")).manifest.removed.unusable == 1


def test_a_source_without_held_out_documents_is_named(cli: Cli, records: Path) -> None:
    ran = cli("corpus", "build", records, "-o", "c", "--validation-share", "0")
    assert "warning: no held-out documents of s0, s1" in ran.err
    assert ran.code == 0


def test_a_corpus_is_replaced_only_by_force_and_only_if_a_build_wrote_it(cli: Cli, records: Path) -> None:
    one = build(cli, records).digest
    refused(cli("corpus", "build", "--sample", "-o", "c"), "c: exists already", "--force")
    assert build(cli, records, "--validation-share", "10%", "--force").digest != one
    (Path("c") / "mine.txt").write_text("mine")
    refused(
        cli("corpus", "build", records, "-o", "c", "--force"), "holds 'mine.txt', which this command does not write"
    )
    assert (Path("c") / "mine.txt").read_text() == "mine"


@pytest.mark.parametrize("cap", [2**31, 2**63, 99999999999999999999999])
def test_a_cap_of_any_size_caps_nothing(cli: Cli, records: Path, cap: int) -> None:
    assert build(cli, records, "--near", "none", "--max-validation-tokens", cap).manifest.removed.over_cap == 0
    assert cli("corpus", "show", "c").code == 0


def test_records_without_a_category_are_used_by_naming_it_before_the_path(cli: Cli, records: Path) -> None:
    records.write_text("".join(json.dumps({"text": f"qzx{n} " * 9}) + "\n" for n in range(200)))
    assert [source.name for source in build(cli, f"Web/mine={records}", "--near", "none").sources] == ["mine"]
    assert cli("corpus", "tokenizer", f"Web/mine={records}", "--vocab-size", 260, "-o", "t.json").code == 0


def test_the_next_command_can_be_pasted_into_a_shell(cli: Cli, records: Path) -> None:
    ran = cli("corpus", "build", records, "--near", "none", "-o", "c fold é;")
    assert ran.err.endswith("wrote c fold é;; next: smelt-match corpus show 'c fold é;'\n")
    ran = cli("corpus", "tokenizer", records, "--vocab-size", 258, "-o", "t t.json")
    assert ran.err.endswith("next: smelt-match corpus build --tokenizer 't t.json' -o DIR\n")
    ran = cli("specs", "init", "m m.yaml")
    assert ran.err.endswith("next: smelt-match count 'm m.yaml'\n")


def test_a_tokenizer_never_sees_what_is_held_out(cli: Cli, records: Path) -> None:
    pairs = [{"text": f"qzx{n} " * 50, "category": "C"} for n in range(40)]
    records.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    for name, share in (("a.json", "5%"), ("b.json", "60%")):
        assert (
            cli("corpus", "tokenizer", records, "--vocab-size", 265, "-o", name, "--validation-share", share).code == 0
        )
    ran = cli("corpus", "tokenizer", records, "--vocab-size", 300, "-o", "c.json", "--validation-share", "999/1000")
    refused(ran, "there are no documents to learn from, besides empty and held-out ones")
    refused(cli("corpus", "tokenizer", records, "--vocab-size", 9999, "-o", "c.json"), "these documents fill only")
    shards = build(cli, records, "--tokenizer", "a.json", "--near", "none")
    assert (shards.vocab_size, shards.eos_id) == (265, 0)
    refused(cli("corpus", "tokenizer", records, "-o", "a.json"), "a.json: exists already")


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["build"], "a corpus is a folder"),
        (["tokenizer"], "a tokenizer is a file"),
        (["build", "--sample", "a.jsonl", "-o", "c"], "--sample is a corpus of its own, and a.jsonl is given too"),
        (["build", "none.jsonl", "-o", "c"], "none.jsonl: no such file or folder"),
        (["build", "a.jsonl", "-o", "c", "--tokenizer", "none.json"], "none.json: no such tokenizer"),
        (["build", "a.jsonl", "-o", "c", "--validation-share", "1"], "--validation-share 1: a share from 0"),
        (["build", "a.jsonl", "-o", "c", "--branch-share", "-1%"], "--branch-share -1%: a share from 0"),
        (["build", "a.jsonl", "-o", "c", "--branch-share", "96%"], "leave nothing for training"),
        (["build", "a.jsonl", "-o", "c", "--near", "1.1"], "--near 1.1: a similarity above 0 and at most 1, or none"),
        (["build", "a.jsonl", "-o", "c", "--near", "x"], "--near: 'x' is not a number"),
        (["build", "a.jsonl", "-o", "c", "--glob", "../*"], "--glob '../*'"),
        (["build", "a.jsonl", "-o", "c", "--max-validation-tokens", "0"], "--max-validation-tokens"),
        (["build", "a.jsonl", "-o", "none/c"], "the folder none does not exist\nhint: make it first: mkdir -p none"),
        (["tokenizer", "a.jsonl", "-o", "no ne/t"], "no ne does not exist\nhint: make it first: mkdir -p 'no ne'"),
        (["build", "a.jsonl", "-o", "", "--force"], "--output '': an empty path"),
        (["tokenizer", "a.jsonl", "-o", ""], "--output '': an empty path"),
        (["show", "c", "-o", " "], "--output ' ': an empty path"),
        (["build", "a.jsonl", "-o", "c", "--eos", "x"], "--eos 'x': bytes have the separator 256 and no other"),
        (["build", "--sample", "-o", "c", "--eos", "x"], "--eos 'x': bytes have the separator 256 and no other"),
        (["build", "a.npy", "-o", "c", "--eos", "x"], "--eos 'x': a.npy holds ready tokens, and its sidecar names"),
        (["build", "a.jsonl", "-o", "c", "--category-field", "x"], "before the path: CATEGORY/SOURCE=a.jsonl;"),
        (["tokenizer", "a.jsonl", "-o", "t", "--category-field", "x"], "before the path: CATEGORY/SOURCE=a.jsonl;"),
        (["tokenizer", "a.npy", "-o", "t.json"], "holds ready tokens"),
        (["tokenizer", "C/s=empty", "-o", "t.json"], "there are no documents to learn from"),
        (["build", "a.jsonl", "-o", "c", "--near", "٠.٨"], "--near: '٠.٨' is not a number"),
        (["build", "a.jsonl", "-o", "a.jsonl"], "a.jsonl: exists already, and is no folder"),
        (["build", "a.jsonl", "-o", "c", "--text-field", "body"], "a.jsonl:1: has no field 'body'"),
        (["tokenizer", "a.jsonl", "-o", "t.json", "--vocab-size", "9"], "--vocab-size 9"),
        (["tokenizer", "a.npy", "-o", "t.json"], "holds ready tokens; a tokenizer learns from text"),
        (["show", "none"], "none: no such corpus folder"),
        (["show", "."], "holds no corpus.json"),
    ],
)
@pytest.mark.usefixtures("records")
def test_what_makes_no_sense_is_refused_and_nothing_is_written(cli: Cli, args: list[str], told: str) -> None:
    Path("a.npy").write_bytes(b"")
    Path("empty").mkdir()
    refused(cli("corpus", *args), told)
    assert {path.name for path in Path().iterdir()} == {"a.jsonl", "a.npy", "empty"}


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("when", ["smelt_match.train.corpus.build._finish", "smelt_match.folders._swap"])
def test_a_killed_build_leaves_what_was_there(cli: Cli, records: Path, force: bool, when: str) -> None:
    before = build(cli, records).digest if force else None
    module, _, name = when.rpartition(".")
    code = (
        f"import os, signal, sys, {module} as module\n"
        f"module.{name} = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "from smelt_match.cli import run\n"
        "run(sys.argv[1:])"
    )
    args = ["corpus", "build", "--sample", "--near", "none", "-o", "c", *(["--force"] if force else [])]
    ran = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True)
    assert ran.returncode == -9, ran.stderr
    assert Path("c").exists() == force
    assert not force or Shards.open(Path("c")).digest == before
    assert all(path.name in ("c", "a.jsonl") or path.name.startswith(".c.") for path in Path().iterdir())


def test_the_same_build_gives_the_same_bytes_in_another_process(cli: Cli, records: Path) -> None:
    build(cli, records)
    with start("corpus", "build", str(records), "-o", "d", env={**os.environ, "PYTHONHASHSEED": "7"}) as process:
        assert process.communicate()[0] == ""
    assert process.returncode == 0
    names = {path.name for path in Path("c").iterdir()}
    assert names == {path.name for path in Path("d").iterdir()}
    assert all((Path("c") / name).read_bytes() == (Path("d") / name).read_bytes() for name in names)
