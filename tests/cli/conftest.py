"""Helpers of the command line's tests: a folder of one's own, spec and grid files, refusals, and other processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Ran

MODEL = {
    "name": "mine",
    "hidden_size": "256",
    "num_layers": "4",
    "num_experts": "16",
    "experts_per_token": "4",
    "expert_intermediate_size": "96",
    "num_attention_heads": "4",
    "num_key_value_heads": "2",
    "head_dim": "64",
}
GRID = {
    "name": "tiny",
    "hidden_size": "{values: [64, 96, 128]}",
    "num_experts": "{values: [32, 64, 96]}",
    "expert_intermediate_size": "{values: [32, 44, 64]}",
    "head_dim": "{values: [16, 22, 32]}",
    "num_attention_heads": "{values: [4]}",
    "num_key_value_heads": "{values: [2]}",
}
Writer = Callable[..., Path]
Cli = Callable[..., Ran]


def yaml_of(base: dict[str, str], changes: dict[str, Any]) -> str:
    """A mapping as YAML, a key a line; a change to None leaves the key out."""
    fields = base | changes
    return "".join(f"{key}: {value}\n" for key, value in fields.items() if value is not None)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder: every test runs in one of its own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def spec() -> Writer:
    """Write mine.yaml: a sound model with some keys changed."""

    def write(**changes: Any) -> Path:
        Path("mine.yaml").write_text(yaml_of(MODEL, changes))
        return Path("mine.yaml")

    return write


@pytest.fixture
def grid() -> Writer:
    """Write tiny.yaml: a sound small grid for nano models with some keys changed."""

    def write(**changes: Any) -> Path:
        Path("tiny.yaml").write_text(yaml_of(GRID, changes))
        return Path("tiny.yaml")

    return write


def refused(ran: Ran, *told: str, code: int = 2) -> None:
    """The run ended with a message for people that says all of ``told``, and with nothing on stdout."""
    assert ran.code == code, ran
    assert not ran.out
    for text in told:
        assert text in ran.err, ran.err
    assert "Traceback" not in ran.err
    lines = ran.err.splitlines()
    assert lines[0].startswith("error: ")
    assert all(line.startswith(("error: ", "hint: ", "  ")) for line in lines), ran.err


def start(*args: str, **options: Any) -> subprocess.Popen[str]:
    """The program in a process of its own."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "smelt_match", *args],
        **{
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "text": True,
            "env": environment,
            # A shell that starts the tests in the background has them ignore Ctrl-C, and what they start, too.
            "preexec_fn": partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
            **options,
        },
    )
