"""Studies that are kept: continued where they are the same, refused and left alone where they are not."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Cli, refused

SOLVE = ("solve", "--baseline", "nano_s85", "--loop", "mid50x2", "--format", "json", "--trials", "4", "--no-measure")
KEPT = (*SOLVE, "--study", "s.journal")
LEFT = "the file is left as it is"


@pytest.fixture
def journal(cli: Cli, here: Path) -> Path:
    """The journal of a finished study of four trials."""
    assert cli(*KEPT).code == 0
    return here / "s.journal"


def test_a_finished_study_is_read_and_gives_the_same_bytes(cli: Cli) -> None:
    first = cli(*KEPT)
    written = Path("s.journal").read_bytes()
    second = cli(*KEPT)
    assert (first.code, first.err) == (0, "")
    assert second == first
    assert Path("s.journal").read_bytes() == written
    assert cli(*SOLVE).out == first.out


@pytest.mark.usefixtures("journal")
def test_a_study_is_continued_to_the_trials_asked_for(cli: Cli) -> None:
    assert json.loads(cli(*KEPT[:-1], "s.journal", "--trials", "7").out)["study"]["trials"] == 7
    assert json.loads(cli(*KEPT).out)["study"]["trials"] == 7


def test_a_database_is_continued_too(cli: Cli) -> None:
    args = (*SOLVE, "--study", "sqlite:///s.db")
    first = cli(*args)
    assert first.code == 0
    assert cli(*args) == first
    refused(
        cli(*args, "--seed", "1"), "sqlite:///s.db: sampler is TPESampler seed 0, this search has TPESampler seed 1"
    )


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--baseline", "nano_s95"], ['s.journal: baseline is {"', '"num_experts": 64', '"num_experts": 192']),
        (["--loop", "full x2"], ["s.journal: layout is visits 1-6,3-8, this search has visits 1-8,1-8"]),
        (["--seed", "1"], ["s.journal: sampler is TPESampler seed 0, this search has TPESampler seed 1"]),
        (["--grid", "bf16"], ["s.journal: expert_widths is 6..176 by 2, this search has 8..176 by 8"]),
        (["--free-heads"], ["s.journal: space is {", '"gqa_ratio": "2..2 by 1"', '"gqa_ratio": "1..8 by 1"']),
        (["--convention", "6n"], ["s.journal: convention is paper, this search has 6n"]),
        (["--mean-context", "7"], ["s.journal: attended_tokens is 392/1, this search has 7/1"]),
        (["--match", "flops,params"], ["s.journal: match is flops,params,kv, this search has flops,params"]),
        (["--one-sided"], ["s.journal: match is flops,params,kv, this search has flops,params,kv one-sided"]),
        (["--tolerance", "4%"], ["s.journal: tolerance is none, this search has 1/25,1/25,1/25"]),
    ],
)
def test_a_study_of_another_search_is_refused_with_the_difference(
    cli: Cli, journal: Path, args: list[str], told: list[str]
) -> None:
    before = journal.read_bytes()
    refused(cli(*KEPT, *args), *told, "choose another --study PATH")
    assert journal.read_bytes() == before


def cut(data: bytes) -> bytes:
    lines = data.splitlines(keepends=True)
    return b"".join([*lines[:3], lines[3][:-9] + b"\n", *lines[4:]])


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda _: b"hello\n", "s.journal:1: not a line of a study journal: 'hello'"),
        (lambda _: b"\x00\xff\x00", "s.journal: not a study journal"),
        (lambda _: b"\n", "s.journal:1: not a line of a study journal: ''"),
        (lambda _: b"{}\n", "s.journal:1: not a line of a study journal: '{}'"),
        (lambda _: b"[" * 100_000 + b"\n", "s.journal:1: not a line of a study journal: '[[["),
        (lambda _: b'{"op_code": 99}\n', "s.journal: cannot use this study"),
        (lambda _: b'{"op_code": 0}\n', "s.journal: cannot use this study"),
        (lambda data: data + b"hello\n", "not a line of a study journal: 'hello'"),
        (lambda data: b"\n" + data, "s.journal:1: not a line of a study journal: ''"),
        (cut, "s.journal:4: not a line of a study journal: '{"),
        (
            lambda data: data.replace(b'"identity"', b'"name"'),
            "holds a study named 'smelt-match' that this program did",
        ),
        (
            lambda data: data.replace(b"seed 0", b"seed 8"),
            "sampler is TPESampler seed 8, this search has TPESampler seed 0",
        ),
        (lambda data: data.replace(b'"point":', b'"pint":'), "s.journal: trial 0 holds no point of this search"),
        (lambda data: data.replace(b'"point":[', b'"point":["x",'), "s.journal: trial 0 holds no point"),
        (lambda data: data.replace(b'"point":[', b'"point":[true,'), "s.journal: trial 0 holds no point"),
    ],
)
def test_a_corrupt_journal_is_refused_and_left_as_it_is(
    cli: Cli, journal: Path, damage: Callable[[bytes], bytes], told: str
) -> None:
    broken = damage(journal.read_bytes())
    journal.write_bytes(broken)
    refused(cli(*KEPT), told)
    assert journal.read_bytes() == broken
    assert [path.name for path in journal.parent.iterdir()] == ["s.journal"]


def test_a_point_that_was_changed_does_not_beat_the_certificate(cli: Cli, journal: Path) -> None:
    # One KV head of 43 would keep the cache better than any width of the grid does.
    broken = re.sub(rb'"point":\[(\d+,\d+,\d+),22,4,2\]', rb'"point":[\1,43,4,1]', journal.read_bytes(), count=1)
    journal.write_bytes(broken)
    refused(cli(*KEPT), "s.journal: trial 0 was changed: its parameters do not give its point", LEFT)
    assert journal.read_bytes() == broken


@pytest.mark.parametrize("rest", [b"{", b'{"op_code":5,"worker', b'{"op_code":5}', b"\x00\x00"])
def test_a_last_line_cut_off_by_a_kill_is_dropped_and_the_study_resumed(cli: Cli, journal: Path, rest: bytes) -> None:
    whole = journal.read_bytes()
    journal.write_bytes(whole + rest)
    ran = cli(*KEPT)
    assert ran.code == 0
    assert json.loads(ran.out)["study"]["trials"] == 4
    assert journal.read_bytes() == whole


@pytest.mark.parametrize("kept", [0.05, 0.3, 0.6, 0.99])
def test_a_journal_cut_anywhere_is_resumed_to_all_trials(cli: Cli, journal: Path, kept: float) -> None:
    whole = journal.read_bytes()
    journal.write_bytes(whole[: int(len(whole) * kept)])
    ran = cli(*KEPT)
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["study"]["trials"] == 4


@pytest.mark.parametrize(
    ("path", "told"),
    [
        (".", ".: is a folder, not a study journal"),
        ("", ".: is a folder, not a study journal"),
        ("missing/s.journal", "missing/s.journal: the folder missing does not exist"),
        ("/proc/s.journal", "/proc/s.journal: cannot use this study"),
        ("/dev/zero", "/dev/zero: is not a regular file"),
        ("s" * 300, "File name too long"),
        ("\0", "embedded null byte"),
        ("sqlite:////missing/s.db", "sqlite:////missing/s.db: cannot use this study: OperationalError"),
        ("nothing://host/db", "nothing://host/db: cannot use this study"),
        ("://", "://: cannot use this study"),
    ],
)
def test_a_place_that_can_hold_no_study_is_refused(cli: Cli, here: Path, path: str, told: str) -> None:
    refused(cli(*SOLVE, "--study", path), told)
    assert not list(here.iterdir())


def test_a_pipe_is_no_journal(cli: Cli) -> None:
    os.mkfifo("pipe")
    refused(cli(*SOLVE, "--study", "pipe"), "pipe: is not a regular file")


def test_a_missing_database_driver_is_told_with_its_install_line(cli: Cli) -> None:
    told = "--study mysql://host/db: the driver MySQLdb is missing"
    refused(cli(*SOLVE, "--study", "mysql://host/db"), told, "hint: pip install mysqlclient", code=3)
    refused(cli(*SOLVE, "--study", "postgresql+psycopg2://h/db"), "hint: pip install psycopg2-binary", code=3)


def test_one_study_holds_one_baseline(cli: Cli, here: Path) -> None:
    refused(cli("solve", "-b", "nano", "-l", "mid50x2", "--study", "s.journal"), "one study holds one baseline")
    assert not list(here.iterdir())
