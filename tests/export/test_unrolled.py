"""The unrolled checkpoint: stock classes of transformers compute what the loop computes."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from smelt_match.budget.context import Context
from smelt_match.budget.conventions import convention
from smelt_match.budget.ledger import ledger
from smelt_match.errors import BadInput
from smelt_match.export.checkpoint import write
from smelt_match.export.checkpoint.write import export_unrolled
from smelt_match.model.generate import generate
from smelt_match.model.loop import LoopedTransformer
from smelt_match.spec.family import expand
from smelt_match.spec.model import ModelSpec
from tests.export.conftest import LAYOUTS, Load, aligned, looped
from tests.model.tiny import tokens

TOLERANCE = 1e-5  # of logits up to 5 in float32; measured: 1.5e-6
KINDS: dict[str, dict[str, Any]] = {
    "MixtralForCausalLM": {},
    "Qwen3MoeForCausalLM": {
        "qk_norm": "head", "normalize_topk": False, "dense_layers": "2", "dense_intermediate_size": 14,
        "tie_word_embeddings": True, "rope_theta": 5000.0, "rms_norm_eps": 1e-5,
    },
}  # fmt: skip


def agree(load: Load, folder: Path, ours: LoopedTransformer, x: Tensor) -> None:
    """Logits are compared in float64, where the order of additions does not count; grouped products have none there."""
    stock = load(folder, experts_implementation="eager").double()
    torch.testing.assert_close(stock(x).logits, ours.double()(x).logits_BSV, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", LAYOUTS)
@torch.no_grad()
def test_a_stock_class_gives_the_loops_logits_and_text(tmp_path: Path, load: Load, kind: str, layout: str) -> None:
    ours, x = looped(layout, **KINDS[kind]), tokens()
    assert export_unrolled(ours, tmp_path / "out") == kind
    stock = load(tmp_path / "out")
    assert type(stock).__name__ == kind
    assert torch.equal(stock.generate(x, max_new_tokens=9, do_sample=False), generate(ours, x, 9))
    agree(load, tmp_path / "out", ours, x)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("widths", [(20, 8), (18, 30), (16, 44)])
@torch.no_grad()
def test_widths_that_grouped_products_refuse_run_as_loaded(
    tmp_path: Path, load: Load, widths: tuple[int, int], dtype: str
) -> None:
    ours, x = looped(hidden_size=widths[0], expert_intermediate_size=widths[1]), tokens()
    export_unrolled(ours, tmp_path / "out", dtype)
    found = load(tmp_path / "out")(x).logits  # in bfloat16, other experts are chosen and the logits are others
    if dtype == "float32":
        torch.testing.assert_close(found, ours(x).logits_BSV, rtol=0, atol=10 * TOLERANCE)


@torch.no_grad()
def test_one_copy_without_its_scale_would_be_noticed(
    tmp_path: Path, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, x = looped("mid50x2"), tokens()
    faithful = write.tensors.unrolled

    def forgetful(model: Any, model_type: str) -> Any:
        whole = copy.deepcopy(model)
        for index in range(model.spec.num_layers):
            whole.block(index).scale = 1.0
        plain = dict(faithful(whole, model_type))
        for name, tensor in faithful(model, model_type):
            yield name, plain[name] if name == "model.layers.3.self_attn.o_proj.weight" else tensor

    monkeypatch.setattr(write.tensors, "unrolled", forgetful)
    export_unrolled(ours, tmp_path / "out")
    found = load(tmp_path / "out")(x).logits
    assert (found - ours(x).logits_BSV).abs().max() > 1000 * TOLERANCE


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_our_importer_reads_the_unrolled_budgets(tmp_path: Path, kind: str, layout: str) -> None:
    ours = looped(layout, **KINDS[kind])
    export_unrolled(ours, tmp_path / "out")
    read = expand(str(tmp_path / "out"))[0].spec
    assert isinstance(read, ModelSpec)
    assert (read.num_layers, read.visits.is_unlooped) == (len(ours.visits), True)
    rule, context = convention("paper"), Context.causal(64)
    budget, looped_budget = (ledger(spec, rule, context).budget for spec in (read, ours.spec))
    assert budget.kv == looped_budget.kv
    assert budget.flops == looped_budget.flops
    assert (read.rope_theta, read.rms_norm_eps) == (ours.spec.rope_theta, ours.spec.rms_norm_eps)


def test_weights_are_cast_after_the_scale_is_folded_in(tmp_path: Path) -> None:
    ours = looped("mid50x3")
    export_unrolled(ours, tmp_path / "out", "bfloat16")
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert {tensor.dtype for tensor in found.values()} == {torch.bfloat16}
    wanted = (ours.block(1).attention.output.weight / 3).bfloat16()
    assert torch.equal(found["model.layers.3.self_attn.o_proj.weight"], wanted)


@torch.no_grad()
def test_large_weights_come_in_shards(tmp_path: Path, load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "MAX_SHARD_BYTES", 40_000)
    ours, x = looped(), tokens()
    export_unrolled(ours, tmp_path / "out")
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    files = sorted(path.name for path in (tmp_path / "out").glob("*.safetensors"))
    assert files == sorted(set(index["weight_map"].values()))
    assert len(files) > 2
    stored = [tensor for file in files for tensor in load_file(tmp_path / "out" / file).values()]
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in stored)
    agree(load, tmp_path / "out", ours, x)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"loop_num_attention_heads": 6, "loop_num_key_value_heads": 3}, "all layers have the same heads there"),
        ({"shared_expert_intermediate_size": 6}, "shared experts do not exist there"),
        ({"qk_norm": "width"}, "qk_norm: width"),
        ({"normalize_topk": False}, "MixtralForCausalLM: normalize_topk: false"),
        ({"dense_layers": "2", "dense_intermediate_size": 14}, "dense_layers: every layer has experts there"),
        ({"gated_mlp": False}, "gated_mlp: false"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"router_bias": True}, "router_bias"),
        ({"attention_bias": True}, "attention_bias"),
        ({"attention_output_bias": True}, "attention_output_bias"),
        ({"attention_gate": True}, "attention_gate"),
        ({"norm_bias": True}, "norm_bias"),
        ({"final_norm": False}, "final_norm: false"),
        ({"value_head_dim": 10}, "value_head_dim"),
        ({"dense_layers": "1-4", "dense_intermediate_size": 18, "num_experts": 0, "experts_per_token": 0,
          "expert_intermediate_size": 0}, "this one has none"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_what_no_stock_class_says_is_refused(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadInput, match=reason):
        export_unrolled(looped(**changes), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_every_reason_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as told:
        export_unrolled(looped(normalize_topk=False, router_bias=True, norm_bias=True), tmp_path / "out")
    assert len(told.value.message.splitlines()) == 3
    assert told.value.hint == ""  # `--to hf` would refuse the router's bias too


def test_the_other_export_is_named_where_it_can_say_more(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as told:
        export_unrolled(looped(normalize_topk=False, router_bias=False), tmp_path / "out")
    assert "--to hf" in told.value.hint


def test_parts_that_cannot_be_built_are_named() -> None:
    from smelt_match.export.checkpoint.limits import check_looped, stock_class

    for check in (stock_class, check_looped):
        with pytest.raises(BadInput, match="attention_sinks: True cannot be built yet"):
            check(aligned("mid50x2", attention_sinks=True))


def test_a_selection_bias_is_refused(tmp_path: Path) -> None:
    from tests.model.tiny import build

    with pytest.raises(BadInput, match="a selection bias cannot be exported yet"):
        export_unrolled(build(aligned(), balance="bias"), tmp_path / "out")
