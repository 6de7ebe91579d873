"""Options that cannot be used are refused with the option, the value and the way out, before any work."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Cli, Writer, refused

SOLVE = ("solve", "--baseline", "nano_s85", "--loop", "mid50x2", "--no-study", "--no-measure")


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--tolerance", "x"], ["--tolerance: 'x' is not a number"]),
        (["--tolerance", ""], ["--tolerance: '' is not a number"]),
        (["--tolerance", "nan"], ["--tolerance: 'nan' is not a number"]),
        (["--tolerance", "3"], ["--tolerance '3'", "write 3% for per cent"]),
        (["--tolerance", "-1%"], ["--tolerance '-1%': at least 0"]),
        (["--tolerance", "100%"], ["--tolerance '100%': at least 0 and less than 100%"]),
        (["--tolerance", "1/0"], ["--tolerance: '1/0' divides by zero"]),
        (["--tolerance", "1%,2%"], ["--tolerance '1%,2%': one number, or three"]),
        (["--fix", "width=3"], ["--fix 'width=3': unknown dimension 'width'", "hidden_size"]),
        (["--fix", "hiden_size=3"], ["unknown dimension 'hiden_size'", "did you mean hidden_size?"]),
        (["--fix", "H"], ["--fix 'H': a whole number from 1 to 16,777,216"]),
        (["--fix", "H=0"], ["--fix 'H=0': a whole number"]),
        (["--fix", "H=1e3"], ["--fix 'H=1e3': a whole number"]),
        (["--fix", f"H={10**18}"], [f"--fix 'H={10**18}': a whole number"]),
        (["--fix", "E=9000000"], ["--fix 'E=9000000': a whole number from 1 to 1,048,576"]),
        (["--fix", "d=31"], ["--fix d=31: head_dim must be even"]),
        (["--fix", "H=100", "--fix", "H=104"], ["--fix hidden_size is given twice: 100 and 104"]),
        (["--fix", "n_kv=3"], ["no point", "no query head count is divisible"]),
        (["--fix", "E=4"], ["no point: num_experts has no value for nano_s85"]),
        (["--match", ""], ["--match '': budgets are flops, params and kv"]),
        (["--match", "kv"], ["--match 'kv': at least flops or params"]),
        (["--match", "flops,memory"], ["--match 'flops,memory': budgets are flops, params and kv"]),
        (["--match", "flops,flops,params"], ["each once"]),
        (["--keep", "width"], ["--keep 'width' is not heads or q-width"]),
        (["--keep", "q-width", "--free-heads"], ["--keep q-width excludes"]),
        (["--grid", "bf17"], ["unknown grid 'bf17'", "did you mean bf16?"]),
        (["--grid", ""], ["unknown grid ''"]),
        (["--grid", "missing.yaml"], ["missing.yaml: no such grid file"]),
        (["--grid", "/"], ["/: is a folder, not a grid file"]),
        (["--format", "jsn"], ["--format 'jsn' is not one of table, md, tex, csv, json", "did you mean json?"]),
        (["--convention", "papper"], ["unknown convention 'papper'", "did you mean paper?"]),
        (["--convention", "all"], ["unknown convention 'all'"]),
        (["--context", "0"], ["a context of 0 tokens"]),
        (["--context", "-3"], ["a context of -3 tokens"]),
        (["--context", str(10**18)], [f"a context of {10**18} tokens; 1 to 1,000,000,000,000 are possible"]),
        (["--context", "1.5"], ["'--context'", "found '1.5'"]),
        (["--mean-context", "x"], ["--mean-context: 'x' is not a number"]),
        (["--mean-context", "1/3"], ["a mean attended context of 1/3 tokens; 1 to 1,000,000,000,000"]),
        (["--mean-context", "1e30"], ["a mean attended context of 1" + "0" * 30]),
        (["--mean-context", "9" * 80], ["--mean-context: '999"]),
        (["--mean-context", "5", "--context", "7"], ["--mean-context and --context exclude each other"]),
        (["--window", "3"], ["--window 3: a window needs the lengths it cuts", "add --context N"]),
        (["--window", "3", "--mean-context", "9"], ["--window 3: a window needs the lengths it cuts"]),
        (["--window", "0", "--context", "9"], ["a window of 0 tokens"]),
        (["--window", str(10**30), "--context", "9"], [f"a window of {10**30} tokens; 1 to"]),
        (["--lengths", "missing.txt"], ["missing.txt: no such length file"]),
        (["--lengths", "."], [".: is a folder, not a length file"]),
        (["--depth", "0"], ["--depth 0: between 1 and 10,000"]),
        (["--depth", "-1"], ["--depth -1: between 1 and 10,000"]),
        (["--depth", str(10**18)], [f"--depth {10**18}: between 1 and 10,000"]),
        (["--depth", "x"], ["'--depth'", "found 'x'"]),
        (["--top", "0"], ["'--top': should be greater than or equal to 1, found '0'"]),
        (["--trials", "3", "--no-study"], ["--trials 3: excludes --no-study"]),
        (["--top", "1001"], ["'--top'", "less than or equal to 1000, found '1001'"]),
        (["--trials", "0"], ["'--trials'", "found '0'"]),
        (["--seed", "-1"], ["'--seed'", "found '-1'"]),
        (["--include-head"], ["nano_s85: --include-head needs vocab_size", "add vocab_size"]),
        (["--study", "a.journal"], ["--study a.journal: excludes --no-study"]),
        (["--widht", "3"], ["No such option: --widht"]),
        (["more"], ["unexpected extra argument", "more"]),
    ],
)
def test_solve_refuses_what_it_cannot_use(cli: Cli, here: Path, args: list[str], told: list[str]) -> None:
    refused(cli(*SOLVE, *args), *told)
    assert not list(here.iterdir())


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["sovle"], "No such command 'sovle'"),
        (["solve"], "Missing option '--baseline'"),
        (["solve", "-b", "nano_s85"], "Missing option '--loop'"),
        (["solve", "-b"], "requires an argument"),
        (["count"], "Missing argument"),
        (["verify"], "Missing argument"),
        (["layouts"], "Missing option '--baseline'"),
        (["specs", "shwo"], "No such command 'shwo'"),
        (["specs", "init"], "Missing argument"),
        (["layouts", "-b", "nano_s85", "--depths", "x"], "--depths 'x': write 12 or 10-14"),
        (["layouts", "-b", "nano_s85", "--depths", "5-3"], "--depths 5-3: 5 is more than 3"),
        (["layouts", "-b", "nano_s85", "--depths", "1-513"], "--depths 1-513: at most 65 depths"),
        (["layouts", "-b", "nano_s85", "--depths", "²"], "--depths '²': write 12 or 10-14"),
        (["layouts", "-b", "nano_s85", "--max-count", "1"], "'--max-count'"),
        (["layouts", "-b", "nano_s85", "--grid", ""], "unknown grid ''"),
        (["layouts", "-b", "smelt"], "--baseline smelt: stands for 16 models; name one"),
        (["count", "smelt", "--convention", "x"], "unknown convention 'x'"),
        (["layouts", "-b", "nano_s85", "-o", ""], "--output '': an empty path"),
        (["fit", "x.csv", "-o", ""], "--output '': an empty path"),
        (["gain", "--charts", ""], "--charts '': an empty path"),
        (["export", "nano_s85", "--to", "torchtitan", "-o", ""], "--output '': an empty path"),
        (["ablate", "count", "--out", " ", "--plan"], "--out ' ': an empty path"),
        (["specs", "init", ""], "PATH '': an empty path"),
        (["grids", "x"], "unknown grid 'x'"),
        (["grids", "-f", "yaml"], "--format 'yaml'"),
    ],
)
def test_a_command_line_that_means_nothing_is_refused(cli: Cli, args: list[str], told: str) -> None:
    refused(cli(*args), told)


@pytest.mark.parametrize("args", [[], ["specs"]])
def test_without_a_command_the_help_is_shown(cli: Cli, args: list[str]) -> None:
    ran = cli(*args)
    assert ran.code == 2
    assert not ran.out
    assert ran.err.startswith("Usage: smelt-match")
    assert "error:" not in ran.err


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("5\nx\n\n0\n", ["lengths.txt:2: not a document length: 'x'", "lengths.txt:4: not a document length: '0'"]),
        ("1.5\n", ["lengths.txt:1: not a document length: '1.5'"]),
        (f"{10**18}\n", ["lengths.txt:1: not a document length: '1000000000000000000'"]),
        ("9" * 5000, ["lengths.txt:1: not a document length: '999"]),
        ('{"length": true}\n', ["lengths.txt:1:"]),
        ('{"length": 3', ["lengths.txt:1:"]),
        ("[" * 100_000, ["lengths.txt:1: not a document length: '[[["]),
        ("x\n" * 9, ["lengths.txt:5:", "lengths.txt: 4 more lines like these"]),
        ("", ["lengths.txt: the length file is empty"]),
        ("\0", ["lengths.txt: binary data"]),
    ],
)
def test_bad_lengths_are_named_with_their_line(cli: Cli, text: str, told: list[str]) -> None:
    Path("lengths.txt").write_text(text)
    refused(cli("count", "nano_s85", "--lengths", "lengths.txt"), *told)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"hidden_size": "3"}, "tiny.yaml:2: hidden_size: expected keys and values, found 3"),
        ({"hidden_size": "{values: []}"}, "tiny.yaml:2: hidden_size: values is empty"),
        ({"hidden_size": "{values: [0]}"}, "tiny.yaml:2: hidden_size.values.0: should be greater than or equal to 1"),
        ({"hidden_size": "{values: [1.5]}"}, "tiny.yaml:2: hidden_size.values.0: should be a valid integer, found 1.5"),
        ({"hidden_size": "{step: 8, min: 8}"}, "tiny.yaml:2: hidden_size: step, min and max go together"),
        ({"hidden_size": "{step: 0, min: 8, max: 9}"}, "tiny.yaml:2: hidden_size.step: should be greater"),
        ({"hidden_size": "{step: 8, min: 8, max: -2x}"}, "tiny.yaml:2: hidden_size.max: a multiple of the baseline's"),
        ({"hidden_size": "{step: 8, min: 1.5, max: 9}"}, "tiny.yaml:2: hidden_size.min: a whole number, or a multiple"),
        (
            {"hidden_size": "{step: 8, min: 8, max: true}"},
            "tiny.yaml:2: hidden_size.max: a whole number, or a multiple",
        ),
        (
            {"hidden_size": "{values: [8], stpe: 1}"},
            "tiny.yaml:2: hidden_size.stpe: unknown key\nhint: did you mean step",
        ),
        (
            {"hidden_size": "{step: 8, min: 90, max: 60}"},
            "grid 'tiny': no point: hidden_size has no value for nano_s85",
        ),
        ({"hidden_size": "{step: 1, min: 1, max: 16777216}"}, "grid 'tiny': hidden_size: more than 1,048,576 values"),
        ({"head_dim": "{values: [31, 33]}"}, "no point: head_dim has no value for nano_s85"),
        ({"num_experts": "{values: [4]}"}, "no point: num_experts has no value for nano_s85"),
        ({"num_experts": "{values: [4194304]}"}, "no point: num_experts has no value for nano_s85"),
        ({"envelope": "0.5"}, "tiny.yaml:8: envelope: a factor between 1 and 16,777,216 is wanted, found 0.5"),
        ({"envelope": "wide"}, "tiny.yaml:8: envelope: a factor of at least 1: 'wide' is not a number"),
        ({"envelope": ".inf"}, "tiny.yaml:8: envelope: a factor of at least 1: 'inf' is not a number"),
        ({"head_dim": None}, "tiny.yaml:1: head_dim: required key is missing"),
        ({"head_dims": "{values: [8]}"}, "tiny.yaml:8: head_dims: unknown key\nhint: did you mean head_dim?"),
    ],
)
def test_a_bad_grid_file_is_refused(cli: Cli, grid: Writer, changes: dict[str, str], told: str) -> None:
    refused(cli(*SOLVE, "--grid", grid(**changes)), told)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"", "the grid file is empty"),
        (b"- a\n", "tiny.yaml:1: expected keys"),
        (b"\0", "binary data, not a grid file"),
    ],
)
def test_a_file_that_is_no_grid_is_refused(cli: Cli, text: bytes, told: str) -> None:
    Path("tiny.yaml").write_bytes(text)
    refused(cli(*SOLVE, "--grid", "tiny.yaml"), told)
    refused(cli("layouts", "-b", "nano_s85", "--grid", "tiny.yaml"), told)
    refused(cli("grids", "tiny.yaml"), told)


def test_a_sound_grid_file_is_used(cli: Cli, grid: Writer) -> None:
    ran = cli(*SOLVE, "--grid", grid(), "--format", "csv")
    assert ran.code == 0
    sizes = [line.split(",")[2:7] for line in ran.out.splitlines()[2:]]
    assert sizes
    for hidden, _, experts, width, head in sizes:
        assert (int(hidden), int(experts), int(width), int(head)) in {
            (H, E, I, d) for H in (64, 96, 128) for E in (32, 64, 96) for I in (32, 44, 64) for d in (16, 22, 32)
        }


@pytest.mark.parametrize("name", ["bf16", "nano", "raw"])
def test_a_grid_that_is_shown_can_be_used_as_a_file(cli: Cli, name: str) -> None:
    Path("tiny.yaml").write_text(cli("grids", name).out)
    assert cli("grids", "tiny.yaml").out == cli("grids", name).out
    layouts = ("layouts", "-b", "nano_s85", "--max-count", "2", "--grid")
    assert cli(*layouts, "tiny.yaml") == cli(*layouts, name)
