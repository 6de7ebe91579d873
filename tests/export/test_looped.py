"""The looped checkpoint: its modelling file stands alone, stores weights once, and runs as our model does."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from smelt_match.budget.active import active_counts
from smelt_match.errors import BadInput
from smelt_match.export.checkpoint.write import export_looped, export_unrolled
from smelt_match.model.generate import generate
from tests.export.conftest import LAYOUTS, Load, aligned, looped
from tests.model.tiny import V, build, tokens

TOLERANCE = 1e-5  # of logits up to 5 in float32; measured: 2.6e-6
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "head norms, shared experts, tied": {
        "qk_norm": "head", "shared_expert_intermediate_size": 10, "shared_expert_gate": True,
        "tie_word_embeddings": True,
    },
    "width norms, a dense layer": {
        "qk_norm": "width", "shared_expert_intermediate_size": 6, "normalize_topk": False, "dense_layers": "2",
        "dense_intermediate_size": 14, "rope_theta": 5000.0, "rms_norm_eps": 1e-5,
    },
}  # fmt: skip
SPLIT = {"loop_num_attention_heads": 6, "loop_num_key_value_heads": 3}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("layout", "heads"),
    [(layout, heads) for layout in LAYOUTS for heads in ({}, SPLIT) if layout != "none" or not heads],
)
@torch.no_grad()
def test_it_runs_as_our_model_does(tmp_path: Path, load: Load, kind: str, layout: str, heads: dict[str, int]) -> None:
    ours, x = build(aligned(layout, **KINDS[kind], **heads)), tokens()
    export_looped(ours, tmp_path / "out")
    theirs = load(tmp_path / "out", trust_remote_code=True).double()  # no order of additions counts in float64
    torch.testing.assert_close(theirs(x).logits, ours.double()(x).logits_BSV, rtol=0, atol=TOLERANCE)
    assert torch.equal(theirs.generate(x, max_new_tokens=9, do_sample=False), generate(ours, x, 9))
    stored = load_file(tmp_path / "out" / "model.safetensors")
    assert sum(tensor.numel() for tensor in stored.values()) == active_counts(ours.spec).total


@torch.no_grad()
def test_the_cache_has_a_slot_for_each_visit(tmp_path: Path, load: Load) -> None:
    ours, x = looped("mid50x2", **SPLIT), tokens(length=7)
    export_looped(ours, tmp_path / "out")
    theirs = load(tmp_path / "out", trust_remote_code=True)
    cache = theirs(x, use_cache=True).cache
    assert len(cache.layers) == len(ours.visits) == 6
    elements = sum(layer.keys[0, :, 0].numel() + layer.values[0, :, 0].numel() for layer in cache.layers)
    assert elements == ours.new_cache(1, 1).elements_per_token
    steps, found = None, []
    for token in x.split(1, dim=1):
        step = theirs(token, cache=steps, use_cache=True)
        steps = step.cache
        found.append(step.logits)
    torch.testing.assert_close(torch.cat(found, dim=1), ours(x).logits_BSV, rtol=0, atol=TOLERANCE)


@pytest.mark.filterwarnings("ignore")
@torch.no_grad()
def test_hidden_states_are_those_of_the_embedding_and_after_each_visit(tmp_path: Path, load: Load) -> None:
    """As transformers' own models have them: the last one is what the head reads, after the final norm."""
    ours, x = looped("mid50x2", **SPLIT), tokens(length=7)
    export_looped(ours, tmp_path / "out")
    theirs = load(tmp_path / "out", trust_remote_code=True)
    seen: list[torch.Tensor] = [ours.embedding(x)]
    ours(x, watch=lambda _visit, _before, after, _balance: seen.append(after))
    assert ours.final_norm is not None
    seen[-1] = ours.final_norm(seen[-1])
    found = theirs(x, output_hidden_states=True)
    assert len(found.hidden_states) == 1 + len(ours.visits) == len(seen)
    for state, wanted in zip(found.hidden_states, seen, strict=True):
        torch.testing.assert_close(state, wanted, rtol=0, atol=TOLERANCE)
    assert torch.equal(theirs.lm_head(found.hidden_states[-1]), found.logits)
    assert theirs(x).hidden_states is None
    theirs.config.output_hidden_states = True
    assert len(theirs.model(x).hidden_states) == len(seen)
    assert theirs(x, output_hidden_states=False).hidden_states is None


@pytest.mark.filterwarnings("ignore")
@torch.no_grad()
def test_outputs_are_tuples_where_no_dictionary_is_wanted(tmp_path: Path, load: Load) -> None:
    ours, x = looped(), tokens()
    export_looped(ours, tmp_path / "out")
    theirs = load(tmp_path / "out", trust_remote_code=True)
    wanted = theirs(x, labels=x, output_hidden_states=True, use_cache=False)
    loss, logits, states = theirs(x, labels=x, output_hidden_states=True, use_cache=False, return_dict=False)
    assert torch.equal(loss, wanted.loss)
    assert torch.equal(logits, wanted.logits)
    assert len(states) == 1 + len(ours.visits)
    (last,) = theirs.model(x, use_cache=False, return_dict=False)
    assert torch.equal(theirs.lm_head(last), logits)
    assert len(theirs(x, use_cache=True, return_dict=False)) == 2


@torch.no_grad()
def test_padding_on_the_left_changes_nothing(tmp_path: Path, load: Load) -> None:
    ours, x = looped(), tokens(rows=1, length=6)
    export_looped(ours, tmp_path / "out")
    theirs = load(tmp_path / "out", trust_remote_code=True)
    padded = torch.cat((torch.zeros(1, 3, dtype=torch.int64), x), dim=1)
    mask = (torch.arange(9) >= 3).long()[None]
    torch.testing.assert_close(
        theirs(padded, attention_mask=mask).logits[:, 3:], ours(x).logits_BSV, rtol=0, atol=TOLERANCE
    )
    told = theirs.generate(padded, attention_mask=mask, max_new_tokens=9, do_sample=False)
    assert torch.equal(told[:, 3:], generate(ours, x, 9))


@torch.no_grad()
def test_a_static_cache_serves_too(tmp_path: Path, load: Load) -> None:
    ours, x = looped(**SPLIT), tokens()
    export_looped(ours, tmp_path / "out")
    theirs = load(tmp_path / "out", trust_remote_code=True)
    told = theirs.generate(x, max_new_tokens=9, do_sample=False, cache_implementation="static")
    assert torch.equal(told, generate(ours, x, 9))


def test_it_trains_under_autocast(tmp_path: Path, load: Load) -> None:
    ours, x = looped(qk_norm="head"), tokens()
    export_looped(ours, tmp_path / "out")
    theirs = load(tmp_path / "out", trust_remote_code=True)
    with torch.autocast("cpu", torch.bfloat16):
        loss = theirs(x, labels=x).loss
    loss.backward()
    assert all(parameter.grad is not None for parameter in theirs.parameters())
    torch.testing.assert_close(loss, theirs(x, labels=x).loss, rtol=0.05, atol=0)


def test_labels_give_a_loss_with_the_gradients_of_ours(tmp_path: Path, load: Load) -> None:
    ours, x = looped(), tokens()
    export_looped(ours, tmp_path / "out")
    theirs = load(tmp_path / "out", trust_remote_code=True)
    loss = theirs(x, labels=x).loss
    wanted = torch.nn.functional.cross_entropy(ours(x).logits_BSV[:, :-1].reshape(-1, V), x[:, 1:].reshape(-1))
    torch.testing.assert_close(loss, wanted)
    loss.backward()
    wanted.backward()
    found = theirs.model.layers[1].mlp.experts.down_proj.grad
    torch.testing.assert_close(found, ours.block(1).feed_forward.experts.down.grad.transpose(1, 2))


@torch.no_grad()
def test_it_survives_save_pretrained(tmp_path: Path, load: Load) -> None:
    ours, x = looped(**SPLIT), tokens()
    export_looped(ours, tmp_path / "out")
    load(tmp_path / "out", trust_remote_code=True).save_pretrained(tmp_path / "again")
    again = load(tmp_path / "again", trust_remote_code=True)
    torch.testing.assert_close(again(x).logits, ours(x).logits_BSV, rtol=0, atol=TOLERANCE)
    files = [load_file(tmp_path / name / "model.safetensors") for name in ("out", "again")]
    assert files[0].keys() == files[1].keys()
    assert all(torch.equal(files[0][name], files[1][name]) for name in files[0])


@torch.no_grad()
def test_plain_residuals_are_kept(tmp_path: Path, load: Load) -> None:
    ours, x = build(aligned("mid50x2"), residual_scale="1"), tokens()
    export_looped(ours, tmp_path / "out")
    theirs = load(tmp_path / "out", trust_remote_code=True)
    torch.testing.assert_close(theirs(x).logits, ours(x).logits_BSV, rtol=1e-5, atol=TOLERANCE)


LOADER = """
import sys
sys.modules["smelt_match"] = None  # importing it fails
import torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], trust_remote_code=True)
torch.save(model.generate(torch.load(sys.argv[2]), max_new_tokens=5, do_sample=False), sys.argv[3])
"""


def test_another_process_loads_it_offline_and_without_this_package(tmp_path: Path) -> None:
    ours, x = looped(), tokens()
    export_looped(ours, tmp_path / "out")
    torch.save(x, tmp_path / "x.pt")
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(tmp_path / "modules")}
    paths = [str(tmp_path / name) for name in ("out", "x.pt", "y.pt")]
    ran = subprocess.run([sys.executable, "-c", LOADER, *paths], env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert torch.equal(torch.load(tmp_path / "y.pt"), generate(ours, x, 5))


def test_the_modelling_file_imports_torch_and_transformers_only(tmp_path: Path) -> None:
    export_looped(looped(), tmp_path / "out")
    tree = ast.parse((tmp_path / "out" / "modeling_smelt_match.py").read_text())
    names = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    assert {str(name).partition(".")[0] for name in names} == {"dataclasses", "torch", "transformers"}


@pytest.mark.parametrize(
    "changes",
    [{"gated_mlp": False}, {"mlp_bias": True}, {"router_bias": True}, {"attention_bias": True},
     {"attention_output_bias": True}, {"attention_gate": True}, {"norm_bias": True}, {"final_norm": False},
     {"value_head_dim": 10}],
    ids=lambda changes: next(iter(changes)),
)  # fmt: skip
def test_what_the_modelling_file_lacks_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=next(iter(changes))):
        export_looped(looped(**changes), tmp_path / "out")


def test_weights_come_from_a_file(tmp_path: Path) -> None:
    from smelt_match.export.checkpoint.write import build as from_file

    ours = looped()
    save_file(ours.state_dict(), tmp_path / "w.safetensors")
    again = from_file(ours.spec, None, tmp_path / "w.safetensors", 0)
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), again.parameters(), strict=True))
    with pytest.raises(BadInput, match=r"blocks.0.attention.output.weight has the shape \(16, 24\), not \(16, 36\)"):
        from_file(aligned("mid50x2", num_attention_heads=6, num_key_value_heads=3), None, tmp_path / "w.safetensors", 0)
    (tmp_path / "bad").write_bytes(b"no weights at all")
    with pytest.raises(BadInput, match="not a safetensors file"):
        from_file(ours.spec, None, tmp_path / "bad", 0)
    with pytest.raises(BadInput, match="no such weights file"):
        from_file(ours.spec, None, tmp_path / "none", 0)


@pytest.mark.parametrize("policy", ["last", "shared"])
def test_a_kv_policy_is_refused_by_every_export(policy: str, tmp_path: Path) -> None:
    model = build(aligned("mid50x2", loop={"kv_policy": policy}))
    for export in (export_looped, export_unrolled):
        with pytest.raises(BadInput, match=r"loop\.kv_policy: every visit has keys and values of its own there"):
            export(model, tmp_path / "out")
