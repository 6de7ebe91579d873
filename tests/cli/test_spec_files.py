"""Spec files that cannot be used are refused with the file, the line, the key and the value."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import MODEL, Cli, Writer, refused, yaml_of

HUGE = str(10**18)


@pytest.mark.parametrize(
    ("name", "close"),
    [("200m_s96", "200m_s95"), ("200m_s95_smel", "200m_s95_smelt"), ("smlet", "smelt"), ("nothing-like-it", "known")],
)
def test_an_unknown_spec_is_refused_with_close_names(cli: Cli, name: str, close: str) -> None:
    refused(cli("count", name), f"unknown spec {name!r}", close)


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        (
            "name",
            "'a b!'",
            "1: name: expected a name of up to 100 letters, digits, '.', '_' and '-' that begins with a "
            "letter or digit, found 'a b!'",
        ),
        ("control", "nowhere", "10: control: 'nowhere' is not a shipped spec"),
        ("hidden_size", "3e-4", "2: hidden_size: should be a valid integer, found 0.0003"),
        ("hidden_size", "1e3", "2: hidden_size: should be a valid integer, found 1000.0"),
        ("hidden_size", "2.5", "2: hidden_size: should be a valid integer, found 2.5"),
        ("hidden_size", "-8", "2: hidden_size: should be greater than or equal to 1, found -8"),
        ("num_layers", "0", "3: num_layers: should be greater than or equal to 1, found 0"),
        ("num_experts", HUGE, f"4: num_experts: should be less than or equal to 1048576, found {HUGE}"),
        ("hidden_size", HUGE, f"2: hidden_size: should be less than or equal to 16777216, found {HUGE}"),
        ("hidden_size", "9" * 5000, "2: cannot read '999"),
        ("hidden_size", ".inf", "2: hidden_size: should be a valid integer, found inf"),
        ("hidden_size", ".nan", "2: hidden_size: should be a valid integer, found nan"),
        ("hidden_size", "true", "2: hidden_size: should be a valid integer, found true"),
        ("head_dim", "false", "9: head_dim: should be a valid integer, found false"),
        ("hidden_size", "'256'", "2: hidden_size: should be a valid integer, found '256'"),
        ("hidden_size", "", "2: hidden_size: should be a valid integer, found nothing"),
        ("hidden_size", "[256]", "2: hidden_size: should be a valid integer, found a list"),
        ("hidden_size", "2020-01-01", "2: hidden_size: should be a valid integer, found 2020-01-01"),
        ("hidden_size", "2020-13-41", "2: cannot read '2020-13-41'"),
        ("head_dim", "63", "9: head_dim 63 is odd"),
        ("num_key_value_heads", "3", "7: num_attention_heads 4 is not divisible by num_key_value_heads 3"),
        ("num_experts", "2", "4: num_experts 2 is less than experts_per_token 4"),
        ("vocab_size", "0", "10: vocab_size: should be greater than or equal to 1, found 0"),
        ("mean_attended_context", "0.5", "10: mean_attended_context: a causal token attends to at least itself"),
        ("mean_attended_context", "1e13", "10: mean_attended_context: a causal token attends to at least itself: 1 to"),
        ("loop_num_attention_heads", "2", "10: loop_num_attention_heads and loop_num_key_value_heads go together"),
        ("expected", "{params_total: 0.83e9}", "10: expected.params_total: write a printed figure in quotes"),
        ("name", "a b", "1: name: "),
    ],
)
def test_a_bad_value_is_named_with_its_line_and_key(cli: Cli, spec: Writer, key: str, value: str, told: str) -> None:
    refused(cli("count", spec(**{key: value})), f"error: mine.yaml:{told}")


@pytest.mark.parametrize(
    ("layout", "picture"),
    [
        ("mid50x0", "layout, character 7: a loop count must be between 1 and 100,000, found 0\n  mid50x0\n        ^\n"),
        ("mid50x1000000", "character 7: a loop count must be between 1 and 100,000, found 1000000\n"),
        ("full x99999", "character 6: more than 100,000 visits\n  full x99999\n       ^\n"),
        (
            "loop 2-9 x2 of 4",
            "character 6: the loop ends at layer 9, but the model has 4\n  loop 2-9 x2 of 4\n       ^\n",
        ),
        ("1-2-3x2", "character 1: the layout has 6 layers, the model 4\n  1-2-3x2\n  ^\n"),
        ("mid50y2", "character 6: unexpected character\n  mid50y2\n       ^\n"),
        ("mid50x", "character 7: expected a loop count, the text ends here\n  mid50x\n        ^\n"),
        ("2-[1x2", "character 7: expected ']', the text ends here\n  2-[1x2\n        ^\n"),
    ],
)
def test_a_layout_error_points_at_the_character(cli: Cli, spec: Writer, layout: str, picture: str) -> None:
    refused(cli("count", spec(layout=layout)), "mine.yaml:10: layout", picture)
    refused(cli("solve", "-b", spec(layout="none"), "-l", layout), "error: layout", picture)


@pytest.mark.parametrize("sign", ["\x1b", "\u2028", "\r", "\0"])
def test_a_layout_error_is_safe_to_show(cli: Cli, sign: str) -> None:
    ran = cli("solve", "-b", "nano_s85", "-l", f"mid{sign}!x2")
    refused(ran, "unexpected character")
    assert sign not in ran.err


def test_an_unknown_key_is_refused_with_the_key_that_was_meant(cli: Cli, spec: Writer) -> None:
    refused(
        cli("count", spec(hiden_size="3")), "mine.yaml:10: hiden_size: unknown key", "hint: did you mean hidden_size?"
    )
    told = "mine.yaml:10: expected.params_totl: unknown key"
    refused(cli("count", spec(expected="{params_totl: '1e9'}")), told, "did you mean params_total")


def test_a_key_given_twice_is_refused_with_both_lines(cli: Cli) -> None:
    Path("mine.yaml").write_text(yaml_of(MODEL, {}) + "head_dim: 32\n")
    refused(cli("count", "mine.yaml"), "mine.yaml:10: head_dim: key given twice (first on line 9)")


def test_every_fault_of_a_file_is_told_at_once(cli: Cli, spec: Writer) -> None:
    ran = cli("count", spec(hidden_size="0", num_layers="x", head_dim=None, foo="1"))
    refused(
        ran,
        "mine.yaml:2: hidden_size: should be greater than or equal to 1, found 0",
        "mine.yaml:3: num_layers: should be a valid integer, found 'x'",
        "mine.yaml:1: head_dim: required key is missing",
        "mine.yaml:9: foo: unknown key",
    )
    ran = cli("count", spec(head_dim="63", num_key_value_heads="3", num_experts="1", layout="mid50x0"))
    refused(
        ran, "mine.yaml:9: head_dim", "mine.yaml:7: num_attention", "mine.yaml:4: num_experts", "mine.yaml:10: layout"
    )


def test_every_fault_of_a_family_is_told_at_its_line(cli: Cli) -> None:
    Path("family.yaml").write_text(
        "family: f\n"
        "defaults:\n  num_layers: 4\n  head_dim: 63\n  foo: 1\n"
        + "".join(
            f"  {key}: {value}\n" for key, value in MODEL.items() if key not in ("name", "num_layers", "head_dim")
        )
        + "models:\n  - {name: a}\n  - {name: a, head_dim: 64}\n  - {name: b, head_dim: 64}\n"
        "  - {name: b, head_dim: 64}\n  - {name: c, num_layers: 0}\n"
    )
    refused(
        cli("count", "family.yaml"),
        "family.yaml:5: defaults.foo: unknown key",
        "family.yaml:4: models.0: head_dim 63 is odd",
        "family.yaml:16: models.3.name: 'b' names two models",
        "family.yaml:17: models.4.num_layers: should be greater than or equal to 1, found 0",
    )


def test_each_unknown_control_of_a_family_is_told_with_its_line(cli: Cli) -> None:
    keys = "".join(f"  {key}: {value}\n" for key, value in MODEL.items() if key != "name")
    text = (
        f"family: f\ndefaults:\n  control: nowhere\n{keys}models:\n  - {{name: a, control: nothing}}\n  - {{name: b}}\n"
    )
    Path("family.yaml").write_text(text)
    refused(
        cli("count", "family.yaml"),
        "family.yaml:13: models.0.control: 'nothing' is not a shipped spec",
        "family.yaml:3: defaults.control: 'nowhere' is not a shipped spec",
        "hint: name a shipped spec",
    )


@pytest.mark.parametrize("command", [("count",), ("specs", "show"), ("solve", "-l", "full x2", "-b")])
def test_a_family_without_a_model_is_refused(cli: Cli, command: tuple[str, ...]) -> None:
    Path("family.yaml").write_text("family: f\nmodels: []\n")
    refused(cli(*command, "family.yaml"), "family.yaml:2: models: a family has at least one model")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"", "mine.yaml: the spec file is empty"),
        (b" \n\n", "mine.yaml: the spec file is empty"),
        (b"# nothing\n", "mine.yaml: holds no YAML document"),
        (b"\x7fELF\x02\x00\x00", "mine.yaml: binary data, not a spec file"),
        (b"name: \xff\xfe", "mine.yaml: not UTF-8 text (byte 6)"),
        (b"- 1\n- 2\n", "mine.yaml:1: expected keys and values, found a list"),
        (b"hello", "mine.yaml:1: expected keys and values, found 'hello'"),
        (b"null", "mine.yaml:1: expected keys and values, found nothing"),
        (b"a: 1\n---\nb: 2\n", "mine.yaml:2: not valid YAML"),
        (b"a: 'x\n", "mine.yaml:2: not valid YAML"),
        (b"a: 1\n\tb: 2\n", "mine.yaml:2: not valid YAML"),
        (b"a: *nope\n", "mine.yaml:1: not valid YAML: found undefined alias 'nope'"),
        (b"? [a]\n: 1\n", "mine.yaml:1: a key must be a word"),
        (b"a: 1\nb: !mine 3\n", "mine.yaml:2: the tag !mine is not allowed"),
        (b"a: !!binary aGVsbG8=\n", "mine.yaml:1: the tag tag:yaml.org,2002:binary is not allowed"),
        (b"[" * 5000 + b"]" * 5000, "mine.yaml: not valid YAML"),
        (b"[" * 100 + b"]" * 100, "mine.yaml:1: nested too deep"),
        (b"{a: " * 3000, "mine.yaml: not valid YAML"),
        (b"a: &a [*a]\n", "mine.yaml:1: nested too deep"),
        (b"models: 3\n", "mine.yaml:1: models: should be a valid list, found 3"),
        (b"family: f\nmodels: [3]\n", "mine.yaml:2: models.0: expected keys and values, found 3"),
    ],
)
def test_a_file_that_is_no_spec_is_refused(cli: Cli, here: Path, text: bytes, told: str) -> None:
    Path("mine.yaml").write_bytes(text)
    refused(cli("count", "mine.yaml"), told)
    assert [path.name for path in here.iterdir()] == ["mine.yaml"]


def test_aliases_that_explode_are_refused(cli: Cli) -> None:
    lines = ["a: &a [1,1,1,1,1,1,1,1,1,1]"]
    lines += [f"{new}: &{new} [{','.join([f'*{old}'] * 10)}]" for old, new in zip("abcdefgh", "bcdefghi", strict=True)]
    Path("mine.yaml").write_text("\n".join(lines))
    refused(cli("count", "mine.yaml"), "expands to too many values")


@pytest.mark.parametrize(
    "value",
    ["!!python/object/apply:os.mkdir [made]", "!!python/name:os.mkdir x", "!!python/object/new:os.mkdir {a: made}"],
)
def test_no_tag_runs_code(cli: Cli, spec: Writer, value: str) -> None:
    refused(cli("count", spec(notes=value)), "mine.yaml:10: the tag tag:yaml.org,2002:python/", "is not allowed")
    assert not Path("made").exists()


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("missing.yaml", "missing.yaml: no such spec file"),
        ("./", "this folder has no config.json"),
        ("folder.yaml", "folder.yaml: this folder has no config.json"),
        ("/dev/zero", "/dev/zero: is not a regular file"),
        ("x/" * 3000, "File name too long"),
        ("mine.yaml/x.yaml", "mine.yaml/x.yaml: "),
        ("\0.yaml", "no such spec file"),
    ],
)
def test_a_path_that_holds_no_file_is_refused(cli: Cli, spec: Writer, path: str, told: str) -> None:
    spec()
    Path("folder.yaml").mkdir()
    refused(cli("count", path), told)


def test_a_file_too_large_is_refused_before_it_is_read(cli: Cli) -> None:
    with Path("mine.yaml").open("wb") as stream:
        stream.truncate(2**40)
    refused(
        cli("count", "mine.yaml"), "mine.yaml: 1,099,511,627,776 bytes, more than the 8,388,608 a spec file may have"
    )


def test_the_largest_sizes_are_counted_without_wrapping(cli: Cli, spec: Writer) -> None:
    width, count, layers = 2**24, 2**20, 10_000
    sizes = {"hidden_size": width, "num_layers": layers, "num_experts": count, "experts_per_token": count}
    heads = {"num_attention_heads": count, "num_key_value_heads": count, "head_dim": width}
    ran = cli("count", spec(**sizes, **heads, expert_intermediate_size=width), "--format", "csv")
    assert ran.code == 0
    stored = layers * (4 * width * count * width + width * count + 3 * count * width * width + 2 * width) + width
    assert ran.out.splitlines()[-1].split(",")[4] == str(stored)


def test_a_byte_order_mark_and_other_line_ends_are_read(cli: Cli, spec: Writer) -> None:
    plain = cli("count", spec())
    Path("mine.yaml").write_bytes(b"\xef\xbb\xbf" + yaml_of(MODEL, {}).replace("\n", "\r\n").encode())
    assert plain.code == 0
    assert cli("count", "mine.yaml").out == plain.out


def test_a_spec_whose_notes_no_terminal_can_show_is_shown(cli: Cli, spec: Writer) -> None:
    ran = cli("specs", "show", spec(notes='"\\ud800"'))
    assert ran.code == 0
    assert "notes: \\ud800" in ran.out


def test_a_looped_or_uncountable_baseline_is_refused(cli: Cli) -> None:
    refused(cli("solve", "-b", "200m_s95_smelt", "-l", "mid50x2"), "200m_s95_smelt: is itself looped (mid50x2)")
    refused(cli("solve", "-b", "200m_s0_smelt", "-l", "mid50x2"), "200m_s0_smelt: cannot be counted: ", "specs show")
    refused(cli("solve", "-b", "*_smelt", "-l", "mid50x2"), "--baseline *_smelt: no unlooped model")


def test_specs_show_says_no_when_a_figure_disagrees(cli: Cli, spec: Writer) -> None:
    ran = cli("specs", "show", spec(expected='{params_total: "0.83e9"}'))
    assert ran.code == 1
    assert "expected params_total: 0.83e9, counted" in ran.out
    assert ran.err.startswith("error: mine: params_total is printed as 0.83e9")


def test_a_figure_against_a_row_that_cannot_be_counted_is_not_checked(cli: Cli, spec: Writer) -> None:
    ran = cli("specs", "show", spec(matches="200m_s0_smelt", expected='{flops_ratio: "1.0"}'))
    assert ran.code == 0
    assert "expected flops_ratio: 1.0, not checked" in ran.out


def test_a_key_given_twice_does_not_hide_the_other_faults(cli: Cli, spec: Writer) -> None:
    path = spec(hidden_size="3e-4", foo="1")
    path.write_text(path.read_text() + "head_dim: 64\n")
    told = "key given twice", "hidden_size: should be a valid integer, found 0.0003", "foo: unknown key"
    refused(cli("count", path), *told)


def test_an_unknown_key_within_a_part_has_a_close_one_as_hint(cli: Cli, spec: Writer) -> None:
    refused(cli("count", spec(layout="mid50x2", loop="{kv_polcy: last}")), "loop.kv_polcy: unknown key",
            "did you mean kv_policy?")  # fmt: skip
    refused(cli("count", spec(layout="mid50x2", loop="{injection: {knd: add}}")), "did you mean kind?")
    refused(cli("count", spec(extras="[{nam: x, params: 3}]")), "did you mean name?")


def test_a_message_without_its_price_says_what_is_missing(cli: Cli, spec: Writer) -> None:
    bad = spec(layout="mid50x2", loop="{injection: {kind: message}}")
    refused(cli("count", bad), "loop.injection: params is missing")


def test_the_template_tells_of_loops_and_all_that_it_tells_of_is_read(cli: Cli) -> None:
    assert cli("specs", "init", "started.yaml").code == 0
    text = Path("started.yaml").read_text()
    told = ("loop", "dense_layers", "extras", "backward_visits", "value_embedding_layers", "norms_per_block")
    for name in told:
        assert f"\n# {name}: " in text
    assert "#   kv_policy: " in text
    needed = (*told, "dense_intermediate_size", "value_embedding_gate", "vocab_size")
    for name in needed:
        text = text.replace(f"\n# {name}: ", f"\n{name}: ")
    Path("started.yaml").write_text(text.replace("\nlayout: none", "\nlayout: mid50x2"))
    assert cli("count", "started.yaml").code == 0


def test_what_a_spec_states_is_shown_even_where_it_is_the_default(cli: Cli) -> None:
    assert "'kv_policy': 'visit'" in cli("specs", "show", "huginn-3.5b").out
