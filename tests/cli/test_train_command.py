"""`smelt-match train`: a table of the ends of a run, and what it refuses."""

from __future__ import annotations

import csv
import io
import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from smelt_match.errors import BadInput
from smelt_match.spec.family import countable, expand
from smelt_match.train.config import plan_run
from smelt_match.train.shards import Shards
from tests.cli.conftest import Cli, Writer, refused, start
from tests.train.corpora import corpus, texts

TINY = {
    "hidden_size": 16, "num_experts": 6, "experts_per_token": 2, "expert_intermediate_size": 4,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
}  # fmt: skip
RUN = (
    "--corpus", "corpus", "--run", "run", "--tokens", "320", "--context", "16", "--rows", "2", "--device", "cpu",
    "--validation-tokens", "64",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _setup(here: Path, spec: Writer) -> None:
    torch.set_num_threads(1)
    corpus(here / "corpus", [*texts(150, "a", "Code"), *texts(150, "b", "Web")])
    spec(**TINY)


def test_a_run_prints_the_ends_of_its_legs_and_again_when_it_is_done(cli: Cli) -> None:
    first = cli("train", "mine.yaml", *RUN, "--branches", "5,10", "--format", "json")
    assert first.code == 0, first.err
    found = json.loads(first.out)
    assert found["schema_version"] == 1
    assert [(leg["leg"], leg["tokens"]) for leg in found["legs"]] == [
        ("branch-00000005", 192), ("branch-00000010", 352), ("trunk", 320),
    ]  # fmt: skip
    assert all(3 < leg["validation_loss"] < 6 for leg in found["legs"])
    assert set(found["legs"][0]["validation_loss_by_category"]) == {"Code", "Web"}
    assert "trunk 5/10   loss" in first.err or "trunk 1/10   loss" in first.err
    assert "tokens/s" in first.err
    again = cli("train", "mine.yaml", *RUN, "--branches", "5,10", "--format", "json")
    assert (again.code, again.out, again.err) == (0, first.out, "")
    table = cli("train", "mine.yaml", *RUN, "--branches", "5,10")
    assert "branch-00000010" in table.out
    assert "32 tokens a step" in table.out
    exported = cli("export", "run/model.yaml", "--to", "hf", "--weights", "run/model.safetensors", "-o", "exported")
    assert exported.code == 0, exported.err


def test_every_form_has_the_losses_of_categories_under_the_names_of_a_sweeps_table(cli: Cli) -> None:
    args = ("train", "mine.yaml", *RUN, "--branches", "5")
    found = {form: cli(*args, "--format", form) for form in ("json", "csv", "table", "md", "tex")}
    assert {ran.code for ran in found.values()} == {0}
    legs = json.loads(found["json"].out)["legs"]
    rows = list(csv.DictReader(io.StringIO(found["csv"].out)))
    assert list(rows[0])[-2:] == ["category_Code", "category_Web"]
    for leg, row in zip(legs, rows, strict=True):
        losses = leg["validation_loss_by_category"]
        assert losses["Code"] != losses["Web"]
        assert {name: float(row[f"category_{name}"]) for name in losses} == losses
        for form in ("table", "md", "tex"):
            lines = [line for line in found[form].out.splitlines() if leg["leg"] in line]
            told = [re.findall(r"\d\.\d{4}", line)[-2:] for line in lines]
            assert [f"{loss:.4f}" for loss in losses.values()] in told, form
    table = found["table"].out.split("\n\nmine")[0]
    assert max(map(len, table.splitlines())) <= 80


def test_sigterm_saves_the_step_and_the_same_command_goes_on(cli: Cli) -> None:
    args = ("train", "mine.yaml", *RUN, "--tokens", "5120", "--branches", "none")
    process = start(*args)
    assert process.stderr is not None
    assert "trunk 1/160" in process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (143, "")
    assert "of 160, as SIGTERM asks; saved in run/trunk/step-" in err
    assert err.endswith("hint: the same command goes on\n")
    reached = int((Path("run") / "trunk" / "latest").read_text().strip().removeprefix("step-"))
    assert 1 <= reached < 160
    again = cli(*args)
    assert again.code == 0, again.err
    assert f"trunk {reached + 1}/160" in again.err


def test_a_hugging_face_config_is_trained(cli: Cli) -> None:
    config = {
        "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "hidden_size": 16, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 8, "num_local_experts": 4,
        "num_experts_per_tok": 2, "vocab_size": 300, "rope_theta": 10000.0, "rms_norm_eps": 1e-5, "hidden_act": "silu",
        "tie_word_embeddings": False, "sliding_window": None, "max_position_embeddings": 64,
    }  # fmt: skip
    Path("tiny-mixtral").mkdir()
    Path("tiny-mixtral/config.json").write_text(json.dumps(config))
    ran = cli("train", "tiny-mixtral/config.json", *RUN, "--branches", "none")
    assert ran.code == 0, ran.err
    assert Path("run/model.safetensors").exists()


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("schwethelm-s20-r4", ["schwethelm-s20-r4: loop.injection:", "extras: 'embedding norm' cannot be built yet"]),
        ("parcae-140m", ["parcae-140m: extras: 'readout' cannot be built yet", "hint: counting and matching work"]),
        ("loopmoe-3b", ["loopmoe-3b: cannot be counted: not determinable from what is published: hidden_size"]),
        ("200m_s0_smelt", ["200m_s0_smelt: cannot be counted:", "hint: `smelt-match specs show 200m_s0_smelt`"]),
        ("smelt", ["smelt: names 16 models; a run trains one"]),
        ("nothing", ["unknown spec 'nothing'"]),
    ],
)
def test_a_spec_that_cannot_be_built_is_refused_by_name_before_anything_is_made(
    cli: Cli, name: str, told: list[str]
) -> None:
    refused(cli("train", name, *RUN), *told)
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("--corpus", "nowhere"), ["nowhere: no such corpus folder"]),
        (("--tokens", "9M"), ["tokens are asked for", "an epoch would begin again"]),
        (("--tokens", "many"), ["--tokens: 'many' is not a number"]),
        (("--tokens", "3"), ["less than one step of 2 rows of 16 tokens"]),
        (("--branches", "11"), ["--branches 11 is beyond the trunk's 10 steps", "hint: name steps"]),
        (("--branches", "5", "--branch-tokens", "9M"), ["branch: ", "hint: ask for fewer --branch-tokens"]),
        (("--tokens", "1e30"), ["--tokens: '1e30' is too large"]),
        (("--tokens", "٢k"), ["--tokens: '٢k' is not a number"]),
        (("--warmup-steps", str(10**23)), ["--warmup-steps 1000", "is more than the trunk's 10 steps"]),
        (("--validation-tokens", "0"), ["--validation-tokens: should be ", "found 0"]),
        (("--run", ""), ["--run '': an empty path"]),
        *((("--" + option, value), [f"--{option}: should be a finite number, found {value}"])
          for option in ("lr", "weight-decay", "clip-norm", "balance-coefficient") for value in ("nan", "inf")),
        *(((f"--{option}", value), [f"--{option}: should be ", f"found {value}"])
          for option in ("micro-rows", "seed", "log-every", "save-every")
          for value in ("-1", str(10**23))),
        (("--branches", "a,b"), ["--branches 'a,b': steps of the trunk are wanted"]),
        (("--micro-rows", "3"), ["rows 2 cannot be cut into micro-batches of 3"]),
        (("--lr", "-1"), ["--lr: ", "found -1.0"]),
        (("--context", "0"), ["--tokens 320: less than one step"]),
        (("--seed", "-1"), ["--seed: ", "found -1"]),
        (("--balance", "luck"), ["--balance: ", "found 'luck'"]),
        (("--dtype", "float8"), ["--dtype: ", "found 'float8'"]),
        (("--device", "tpu"), ["--device 'tpu' is not one of cpu, cuda"]),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_before_it_starts(cli: Cli, args: tuple[str, ...], told: list[str]) -> None:
    refused(cli("train", "mine.yaml", *RUN, *args), *told)
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("asked", "option"), [({"branch_tokens": 10**6}, "--branch-tokens"), ({"branch_steps": 10**5}, "--tokens")]
)
def test_a_branch_pool_that_is_too_small_is_told_by_the_option_that_sets_it(asked: dict[str, Any], option: str) -> None:
    [entry] = expand("mine.yaml")
    with pytest.raises(BadInput, match="branch: ") as caught:
        plan_run(countable(entry), Shards.open(Path("corpus")), 320, (5,), context=16, rows=2, **asked)
    assert caught.value.hint.startswith(f"ask for fewer {option}, train without branches, or")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_named(cli: Cli) -> None:
    refused(cli("train", "mine.yaml", *RUN, "--device", "cuda"), "--device cuda:", "hint: train with --device cpu")


def test_a_vocabulary_smaller_than_the_corpuss_is_refused(cli: Cli, spec: Writer) -> None:
    spec(**TINY, vocab_size=100)
    refused(cli("train", "mine.yaml", *RUN), "vocab_size 100 is less than the 257 ids")


def test_a_world_that_does_not_fit_is_refused(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    import contextlib

    from smelt_match.train import run as running
    from smelt_match.train.world import World

    @contextlib.contextmanager
    def three(_: str) -> Any:
        yield World(torch.device("cpu"), 0, 3)

    monkeypatch.setattr(running, "open_world", three)
    monkeypatch.setattr(World, "agree", lambda _, fault: [fault] if fault else [])
    refused(cli("train", "mine.yaml", *RUN), "3 ranks cannot share the 1 micro-batches of a step")


def test_another_runs_folder_is_refused_by_what_differs(cli: Cli) -> None:
    assert cli("train", "mine.yaml", *RUN, "--branches", "none").code == 0
    ran = cli("train", "mine.yaml", *RUN, "--branches", "none", "--lr", "0.5", "--seed", "3")
    refused(ran, "run: seed is 0 there, and 3 is asked for", "learning_rate is")


def test_torchrun_takes_every_option_for_the_program_but_run_which_has_another_name(cli: Cli) -> None:
    from torch.distributed.run import get_args_parser

    options = re.findall(r"^  (?:-\w, )?(--[a-z-]+)", cli("train", "--help").out, re.MULTILINE)
    assert len(options) > 20
    for option in ("--out", *options):
        if option != "--run":
            found = get_args_parser().parse_args(["--nproc-per-node", "2", "-m", "smelt_match", "train", option, "1"])
            assert found.training_script_args == ["train", option, "1"]
    run = [{"--run": "--out"}.get(part, part) for part in RUN]
    assert cli("train", "mine.yaml", *run, "--branches", "none").code == 0
