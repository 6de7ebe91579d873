"""Whatever a user gives, the program ends with an answer or a message: no bug, no exception, no traceback."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from smelt_match.cli import run
from tests.cli.conftest import GRID, MODEL, yaml_of

SOLVE = ["solve", "--baseline", "nano_s85", "--loop", "mid50x2", "--no-measure"]
EDGES = [-1, 0, 1, 2, 3, 7, 8, 64, 2**20, 2**20 + 1, 2**24, 2**24 + 1, 2**31, 2**53 + 1, 2**63, 10**18, 10**400]
fuzz = settings(
    max_examples=100, deadline=None, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
fewer = settings(fuzz, max_examples=40)


def ends_well(*args: str) -> int:
    """Run the program: it must answer (0), say no (1) or refuse (2), and tell so in its own words."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = run(list(args))
    assert code in (0, 1, 2), err.getvalue()
    assert "Traceback" not in err.getvalue()
    assert (code == 0) == ("error: " not in err.getvalue())
    if code == 2:
        assert not out.getvalue()
    return code


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """Bytes with a few pieces cut out, doubled, or replaced by others."""
    data = whole
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 30)))
        piece = draw(
            st.one_of(st.just(b""), st.just(data[start:end] * 2), st.binary(max_size=8), st.sampled_from(PIECES))
        )
        data = data[:start] + piece + data[end:]
    return data


PIECES = [
    b"\n",
    b": ",
    b"- ",
    b"{",
    b"}",
    b"[",
    b"]",
    b'"',
    b"'",
    b"&a ",
    b"*a",
    b"!!",
    b"!x ",
    b"#",
    b"|\n",
    b"? ",
    b"\t",
    b"%",
]
PIECES += [str(edge).encode() for edge in EDGES] + [
    b"1e999",
    b".inf",
    b".nan",
    b"null",
    b"true",
    b"3e-4",
    b"0x1F",
    b"<<: ",
]

words = st.sampled_from(
    ["none", "mid", "early", "full", "each", "loop", "visits", "of", "x", "×", "-", ",", "[", "]", " ", "\n"]
)
numbers = st.one_of(st.integers(0, 60), st.sampled_from([99_999, 10**6, 10**18])).map(str)
layouts = st.one_of(
    st.text(max_size=40),
    st.lists(st.one_of(words, numbers), max_size=12).map("".join),
    st.lists(st.one_of(words, numbers), max_size=12).map(" ".join),
    st.tuples(st.sampled_from(["mid50x", "full x", "each x", "2-8-2x", "loop 4-9 x"]), numbers).map("".join),
)


@fuzz
@given(text=layouts)
def test_any_text_as_a_layout(text: str) -> None:
    Path("mine.yaml").write_text(yaml_of(MODEL, {"layout": json.dumps(text), "num_layers": 12}), encoding="utf-8")
    ends_well("count", "mine.yaml")


@fewer
@given(text=layouts)
def test_any_text_as_a_loop(text: str) -> None:
    Path("tiny.yaml").write_text(yaml_of(GRID, {}))
    ends_well("solve", "-b", "nano_s85", f"--loop={text}", "--grid", "tiny.yaml", "--no-study", "--no-measure")


@fuzz
@given(text=st.text())
def test_any_text_as_a_spec_file(text: str) -> None:
    Path("mine.yaml").write_text(text, encoding="utf-8", errors="surrogatepass")
    assert ends_well("count", "mine.yaml") == 2


@fuzz
@given(
    data=st.one_of(
        st.binary(), damaged(yaml_of(MODEL, {"layout": "mid50x2", "expected": "{params_total: '1e9'}"}).encode())
    )
)
def test_any_bytes_as_a_spec_file(data: bytes) -> None:
    Path("mine.yaml").write_bytes(data)
    ends_well("specs", "show", "mine.yaml")


sizes = st.sampled_from(EDGES)
kinds = st.one_of(sizes, st.none(), st.booleans(), st.floats(), st.text(max_size=5), st.lists(sizes, max_size=3))


@fuzz
@given(
    changes=st.dictionaries(
        st.sampled_from([*MODEL, "vocab_size", "mean_attended_context", "control"]), kinds, max_size=4
    )
)
def test_any_values_in_a_spec_file(changes: dict[str, Any]) -> None:
    Path("mine.yaml").write_text(json.dumps({**json_of(MODEL), **changes}))
    Path("tiny.yaml").write_text(yaml_of(GRID, {}))
    if ends_well("count", "mine.yaml") == 0:
        ends_well(
            "solve", "--baseline", "mine.yaml", "--loop", "mid50x2", "--no-study", "--no-measure", "--grid", "tiny.yaml"
        )


def json_of(fields: dict[str, str]) -> dict[str, Any]:
    """The values of a YAML mapping as JSON has them."""
    return {key: int(value) if value.isdigit() else value for key, value in fields.items()}


@fuzz
@given(data=st.one_of(st.binary(), damaged(yaml_of(GRID, {"envelope": "2"}).encode())))
def test_any_bytes_as_a_grid_file(data: bytes) -> None:
    Path("tiny.yaml").write_bytes(data)
    ends_well("grids", "tiny.yaml")


values = st.lists(st.sampled_from([edge for edge in EDGES if 0 < edge <= 2**24]), min_size=1, max_size=4)
axes = values.map(lambda chosen: {"values": chosen})


@fewer
@given(
    grid=st.fixed_dictionaries({key: axes for key in GRID if key != "name"}),
    heads=st.sampled_from([[], ["--free-heads"], ["--free-kv-heads"], ["--keep", "q-width"], ["--one-sided"]]),
    match=st.sampled_from(["flops,params,kv", "flops", "params,kv"]),
)
def test_any_sizes_on_a_grid(grid: dict[str, Any], heads: list[str], match: str) -> None:
    Path("tiny.yaml").write_text(json.dumps({"name": "tiny", **grid}))
    Path("match.json").unlink(missing_ok=True)
    args = [*SOLVE, "--grid", "tiny.yaml", *heads, "--match", match, "--trials", "2"]
    if ends_well(*args, "--format", "json", "-o", "match.json") == 0:
        assert ends_well("verify", "match.json") == 0


def journal() -> bytes:
    """A sound journal of two trials."""
    assert ends_well(*SOLVE, "--trials", "2", "--study", "whole.journal") == 0
    return Path("whole.journal").read_bytes()


@fewer
@given(data=st.data())
def test_any_bytes_as_a_journal(data: st.DataObject) -> None:
    whole = Path("whole.journal").read_bytes() if Path("whole.journal").exists() else journal()
    broken = data.draw(st.one_of(st.binary(), damaged(whole)))
    Path("s.journal").write_bytes(broken)
    if ends_well(*SOLVE, "--trials", "2", "--study", "s.journal") == 2:
        assert Path("s.journal").read_bytes() == broken


def certificate() -> Any:
    """A sound document over a grid so small that any claim about it is quick to check."""
    Path("tiny.yaml").write_text(yaml_of(GRID, {}))
    assert ends_well(*SOLVE, "--grid", "tiny.yaml", "--no-study", "-f", "json", "-o", "whole.json", "--force") == 0
    return json.loads(Path("whole.json").read_text())


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, inner in items for place in ((value, key), *places(inner))]


texts = ["1/2", "1/0", "-1/3", "9" * 500, "uniform"]
claims = st.one_of(
    kinds,
    st.sampled_from(texts),
    st.builds(dict),
    st.builds(dict, min=sizes, max=sizes, step=sizes),
    st.builds(dict, values=st.lists(sizes)),
)


@fuzz
@given(data=st.data(), changes=st.integers(1, 3))
def test_any_change_of_a_certificate(data: st.DataObject, changes: int) -> None:
    document = json.loads(Path("whole.json").read_text()) if Path("whole.json").exists() else certificate()
    for _ in range(changes):
        known = places(document)
        container, key = known[data.draw(st.integers(0, 10_000)) % len(known)]
        if data.draw(st.booleans()):
            container[key] = data.draw(claims)
        else:
            del container[key]
    Path("match.json").write_text(json.dumps(document))
    ends_well("verify", "match.json")


@fuzz
@given(data=st.one_of(st.binary(), st.text().map(str.encode)))
def test_any_bytes_as_a_certificate(data: bytes) -> None:
    Path("match.json").write_bytes(data)
    assert ends_well("verify", "match.json") == 2


@fewer
@given(data=st.binary())
def test_any_bytes_as_document_lengths(data: bytes) -> None:
    Path("lengths.txt").write_bytes(data)
    ends_well("count", "nano_s85", "--lengths", "lengths.txt")


options = st.sampled_from(
    [
        "--tolerance",
        "--fix",
        "--match",
        "--keep",
        "--grid",
        "--mean-context",
        "--context",
        "--window",
        "--depth",
        "--top",
        "--convention",
    ]
)


@fuzz
@given(
    option=options,
    value=st.one_of(st.text(max_size=12), sizes.map(str), sizes.map("H={}".format), sizes.map("{}%".format)),
)
def test_any_value_of_an_option(option: str, value: str) -> None:
    ends_well(*SOLVE, "--no-study", "-f", "csv", f"{option}={value}")
