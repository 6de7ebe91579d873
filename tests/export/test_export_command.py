"""`smelt-match export`: folders that appear whole or not at all, texts for other systems, refusals."""

from __future__ import annotations

import builtins
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from smelt_match import folders
from smelt_match.export.checkpoint import write
from smelt_match.export.checkpoint.configs import OURS
from smelt_match.export.checkpoint.texts import megatron, torchtitan
from tests.cli.conftest import refused
from tests.conftest import Ran
from tests.export.conftest import aligned, looped

Cli = Callable[..., Ran]
SPEC = """
name: mine
hidden_size: 16
num_layers: 4
num_experts: 7
experts_per_token: 3
expert_intermediate_size: 8
num_attention_heads: 4
num_key_value_heads: 2
head_dim: 6
vocab_size: 61
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a looped spec and an unlooped one."""
    monkeypatch.chdir(tmp_path)
    Path("plain.yaml").write_text(SPEC)
    Path("mine.yaml").write_text(f"{SPEC}layout: mid50x2\n")
    Path("split.yaml").write_text(f"{SPEC}layout: mid50x2\nloop_num_attention_heads: 6\nloop_num_key_value_heads: 3\n")
    return tmp_path


def files(folder: str = ".") -> set[str]:
    return {path.name for path in Path(folder).iterdir()} - {"plain.yaml", "mine.yaml", "split.yaml"}


def test_a_checkpoint_is_written_and_the_same_seed_writes_it_again(cli: Cli) -> None:
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        ran = cli("export", "mine.yaml", "--to", "hf-unrolled", "-o", name, "--seed", seed)
        assert (ran.code, ran.out, ran.err) == (0, "", f"wrote {name}: MixtralForCausalLM\n")
        assert files(name) == {"config.json", "model.safetensors"}
    a, b, c = ((Path(name) / "model.safetensors").read_bytes() for name in "abc")
    assert a == b != c
    assert json.loads(Path("a/config.json").read_text())["num_hidden_layers"] == 6
    modes = {path.stat().st_mode & 0o777 for path in Path("a").iterdir()}
    assert modes == {Path("mine.yaml").stat().st_mode & 0o777}


def test_split_heads_are_kept_by_hf_and_refused_by_hf_unrolled(cli: Cli) -> None:
    refused(cli("export", "split.yaml", "--to", "hf-unrolled", "-o", "a"), "the same heads there", "--to hf keeps")
    assert cli("export", "split.yaml", "--to", "hf", "-o", "a").err == "wrote a: SmeltMatchForCausalLM\n"
    assert files("a") == {"config.json", "model.safetensors", "modeling_smelt_match.py"}
    assert files() == {"a"}


def test_an_existing_folder_is_replaced_only_by_force_and_only_if_an_export_wrote_it(cli: Cli) -> None:
    for args in ([], ["--force"]):
        Path("a").mkdir(exist_ok=True)
        (Path("a") / "config.json").write_text("{}")
        ran = cli("export", "mine.yaml", "--to", "hf", "-o", "a", *args)
        assert ran.code == (0 if args else 2), ran.err
    assert files() == {"a"}
    (Path("a") / "thesis.tex").write_text("years of work")
    refused(cli("export", "mine.yaml", "--to", "hf", "-o", "a", "--force"), "holds 'thesis.tex'")
    assert (Path("a") / "thesis.tex").read_text() == "years of work"
    Path("file").write_text("")
    refused(cli("export", "mine.yaml", "--to", "hf", "-o", "file", "--force"), "is no folder")
    refused(cli("export", "mine.yaml", "--to", "hf", "-o", "no/where"), "does not exist")


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
@pytest.mark.parametrize("force", [False, True])
def test_a_failed_export_leaves_what_was_there(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, error: Any, force: bool
) -> None:
    if force:
        Path("a").mkdir()
        (Path("a") / "config.json").write_text("old")

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(write, "_write_json", fail)
    ran = cli("export", "mine.yaml", "--to", "hf-unrolled", "-o", "a", *(["--force"] if force else []))
    assert ran.code == (130 if error is KeyboardInterrupt else 2)
    assert files() == ({"a"} if force else set())
    assert not force or (Path("a") / "config.json").read_text() == "old"


@pytest.mark.parametrize("force", [False, True])
def test_a_killed_export_leaves_nothing_under_the_name(force: bool) -> None:
    """Killed when every file is written and before the folder gets its name."""
    if force:
        Path("a").mkdir()
        (Path("a") / "config.json").write_text("old")
    code = (
        "import os, signal, sys\n"
        "from smelt_match import folders\n"
        "folders._swap = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "from smelt_match.cli import run\n"
        "run(sys.argv[1:])"
    )
    args = ["export", "mine.yaml", "--to", "hf-unrolled", "-o", "a", *(["--force"] if force else [])]
    ran = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True)
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    assert Path("a").exists() == force
    assert not force or (Path("a") / "config.json").read_text() == "old"
    assert all(name == "a" or name.startswith(".a.") for name in files())


@pytest.mark.parametrize("force", [False, True])
def test_the_next_export_removes_what_a_killed_one_left(cli: Cli, force: bool) -> None:
    for name in (".a.abcd_123", ".a.old.abcd1234", ".b.abcd1234", ".a.notes123"):
        Path(name).mkdir()
        (Path(name) / "config.json").write_text("left")
    (Path(".a.notes123") / "notes.txt").write_text("somebody's")
    assert cli("export", "mine.yaml", "--to", "hf", "-o", "a", *(["--force"] if force else [])).code == 0
    assert files() == {"a", ".a.old.abcd1234", ".b.abcd1234", ".a.notes123"}


def test_an_export_leaves_one_that_runs_beside_it_alone(cli: Cli) -> None:
    with folders.new_folder(Path("a"), force=True, ours=OURS) as live:
        (live / "config.json").write_text("live")
        assert cli("export", "mine.yaml", "--to", "hf", "-o", "a").code == 0
        assert live.is_dir()
    assert files() == {"a"}
    assert Path("a/config.json").read_text() == "live"


def test_an_ended_export_removes_its_folder() -> None:
    code = (
        "import os, signal, sys\n"
        "from smelt_match import folders\n"
        "folders._swap = lambda *_: os.kill(os.getpid(), signal.SIGTERM)\n"
        "from smelt_match.cli import main\n"
        "main(sys.argv[1:])"
    )
    args = ["export", "mine.yaml", "--to", "hf-unrolled", "-o", "a"]
    ran = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True)
    assert ran.returncode == 128 + signal.SIGTERM, ran.stderr
    assert files() == set()


KILLED = """
import os, signal, sys, time
import torch
from smelt_match.cli import run
torch.set_num_threads(1)
export = ["export", "mine.yaml", "--to", "hf", "--force", "-o"]
run([*export, "seen-first"])  # imports everything once, and not in every child
for repeat, moment in enumerate((0.001, 0.004, 0.01, 0.02, 0.03, 0.05, 0.08, 0.13)):
    child = os.fork()
    while child == 0:
        run([*export, "a"])
    while not os.path.exists("a"):
        time.sleep(0.001)
    time.sleep(moment)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    if os.path.exists("a"):  # not between the two renames that replace it
        os.rename("a", f"seen-{repeat}")
"""


def test_an_export_killed_at_any_moment_leaves_a_whole_checkpoint_or_none() -> None:
    """Written over and over, and killed at some moment after it first appeared."""
    subprocess.run([sys.executable, "-c", KILLED], check=True, capture_output=True)
    seen = sorted(Path().glob("seen-*"))
    assert len(seen) > 1
    assert all(name.startswith((".a.", "seen-")) for name in files())
    whole = load_file(seen[0] / "model.safetensors")
    for folder in seen:
        assert files(str(folder)) == {"config.json", "model.safetensors", "modeling_smelt_match.py"}
        found = load_file(folder / "model.safetensors")
        assert found.keys() == whole.keys()
        assert all(torch.equal(found[name], whole[name]) for name in whole)
        assert json.loads((folder / "config.json").read_text())["model_type"] == "smelt_match"


@pytest.mark.parametrize("to", ["hf", "hf-unrolled"])
def test_the_context_of_a_checkpoint_is_an_option(cli: Cli, to: str) -> None:
    for args, positions in (((), 4096), (("--context", "512"), 512)):
        assert cli("export", "mine.yaml", "--to", to, "-o", "a", "--force", *args).code == 0
        assert json.loads(Path("a/config.json").read_text())["max_position_embeddings"] == positions


def test_unlooped_models_are_written_for_megatron_and_torchtitan(cli: Cli) -> None:
    told = cli("export", "plain.yaml", "--to", "megatron").out
    for line in ("--num-layers 4", "--hidden-size 16", "--num-experts 7", "--moe-router-topk 3",
                 "--moe-ffn-hidden-size 8", "--num-query-groups 2", "--kv-channels 6"):  # fmt: skip
        assert f"    {line}\n" in told
    listed = subprocess.run(
        ["bash", "-c", f'{told}\nprintf "%s\\n" "${{MODEL_ARGS[@]}}"'], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert listed[listed.index("--num-layers") + 1] == "4"
    assert "--moe-router-pre-softmax" not in listed
    told = cli("export", "plain.yaml", "--to", "torchtitan", "-o", "titan.py").out
    assert told == ""
    given: dict[str, Any] = {}
    taken = {"Qwen3ModelArgs": given.update, "MoEArgs": dict}
    exec(Path("titan.py").read_text(), taken)
    assert (given["dim"], given["n_layers"], given["moe_inter_dim"]) == (16, 4, 8)
    assert (given["moe_args"]["num_experts"], given["moe_args"]["top_k"]) == (7, 3)
    assert cli("export", "plain.yaml", "--to", "torchtitan", "-o", "titan.py").code == 2


def test_parts_have_their_arguments() -> None:
    spec = aligned(
        normalize_topk=False, dense_layers="2", dense_intermediate_size=14, qk_norm="head", attention_bias=True,
        shared_expert_intermediate_size=6, shared_expert_gate=True, tie_word_embeddings=True,
    )  # fmt: skip
    told = megatron(spec, None)
    for line in ("--ffn-hidden-size 14", "--moe-layer-freq '[1,0,1,1]'", "--moe-router-pre-softmax", "--qk-layernorm",
                 "--add-qkv-bias", "--moe-shared-expert-intermediate-size 6", "--moe-shared-expert-gate"):  # fmt: skip
        assert f"    {line}\n" in told
    assert "--untie" not in told
    assert "num_shared_experts=2," in torchtitan(aligned(shared_expert_intermediate_size=16), None)


@pytest.mark.parametrize("system", ["torchtitan", "megatron"])
def test_loops_and_split_heads_are_a_clear_no(cli: Cli, system: str) -> None:
    refused(cli("export", "mine.yaml", "--to", system), "layout mid50x2: its layers run once each")
    refused(
        cli("export", "split.yaml", "--to", system),
        "loops do not exist there",
        "layers 2-3 have heads (6, 3), the others (4, 2)",
    )


@pytest.mark.parametrize(
    ("system", "changes", "reason"),
    [
        ("torchtitan", {"dense_layers": "2", "dense_intermediate_size": 14}, "dense_layers"),
        ("torchtitan", {"shared_expert_intermediate_size": 6}, "this is no multiple"),
        ("torchtitan", {"shared_expert_intermediate_size": 8, "shared_expert_gate": True}, "have no gate"),
        ("torchtitan", {"qk_norm": "width"}, "qk_norm"),
        ("torchtitan", {"attention_bias": True}, "attention_bias"),
        ("megatron", {"qk_norm": "width"}, "qk_norm"),
        ("megatron", {"experts_per_token": 1}, "for one expert"),
        ("megatron", {"rope_theta": 10000.5}, "a whole number"),
        ("megatron", {"norm_bias": True}, "norm_bias"),
    ],
)
def test_what_a_config_cannot_say_is_refused(system: str, changes: dict[str, Any], reason: str) -> None:
    from smelt_match.errors import BadInput
    from smelt_match.export.checkpoint.texts import text_for

    with pytest.raises(BadInput, match=reason):
        text_for(system, aligned(**changes), None)


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (["mine.yaml", "--to", "gguf"], "--to 'gguf' is not one of hf-unrolled, hf, torchtitan, megatron"),
        (["mine.yaml", "--to", "hf"], "--to hf writes a folder"),
        (["mine.yaml", "--to", "hf", "-o", "a", "--dtype", "fp8"], "--dtype 'fp8' is not one of float32, bfloat16"),
        (["nano", "--to", "hf", "-o", "a"], "names 4 models"),
        (["nano_s85", "--to", "hf", "-o", "a"], "vocab_size is not stated"),
        (["nano_s85", "--to", "megatron"], "vocab_size is not stated"),
        (["mine.yaml", "--to", "hf", "-o", "a", "--vocab-size", "7"], "the spec states 61"),
        (["mine.yaml", "--to", "hf", "-o", "a", "--seed", "-1"], "--seed -1"),
        (["mine.yaml", "--to", "hf", "-o", "a", "--context", "0"], "--context 0 must be between 1 and"),
        (["plain.yaml", "--to", "megatron", "--context", "64"], "--context: --to megatron writes a config"),
        (["mine.yaml", "--to", "hf", "-o", "a", "--weights", "w", "--seed", "1"], "exclude each other"),
        (["plain.yaml", "--to", "megatron", "--weights", "w"], "--weights: --to megatron writes a config"),
    ],
)
def test_options_that_make_no_sense_are_refused(cli: Cli, args: list[str], reason: str) -> None:
    refused(cli("export", *args), reason)
    assert not files()


def test_a_missing_library_is_named_with_its_install_line(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **options: Any) -> Any:
        if name.partition(".")[0] == "safetensors":
            raise ModuleNotFoundError("No module named 'safetensors'", name="safetensors")
        return real(name, *args, **options)

    monkeypatch.delitem(sys.modules, "smelt_match.export.checkpoint.write")
    monkeypatch.setattr(builtins, "__import__", without)
    ran = cli("export", "mine.yaml", "--to", "hf", "-o", "a")
    refused(ran, "safetensors is not installed", "pip install 'smelt-match[hf]'", code=3)


def test_weights_that_do_not_fit_are_refused_before_anything_is_written(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write.os, "sysconf", lambda _: 100)
    refused(cli("export", "mine.yaml", "--to", "hf", "-o", "a"), "this machine has 10,000 of memory")
    assert not files()
    monkeypatch.setattr(write.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 10}))
    with pytest.raises(Exception, match="10 are free"):
        write.export_looped(looped(), Path("a"))
    assert not files()


def test_a_text_has_no_dtype_and_a_hint_is_one_that_helps(cli: Cli) -> None:
    refused(cli("export", "plain.yaml", "--to", "megatron", "--dtype", "bfloat16"), "--dtype: --to megatron writes a")
    Path("mine.yaml").write_text(SPEC + "attention_bias: true\n")
    ran = cli("export", "mine.yaml", "--to", "hf-unrolled", "-o", "a")
    refused(ran, "attention_bias: projections have no biases there")
    assert "--to hf keeps" not in ran.err


def test_one_dense_layer_may_be_a_number(cli: Cli) -> None:
    Path("mine.yaml").write_text(SPEC + "dense_layers: 1\ndense_intermediate_size: 8\n")
    assert cli("count", "mine.yaml").code == 0
