"""A checkpoint that `export --to hf` wrote is a spec again: the same blocks, the same visits, the same counts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from smelt_match.budget.context import Context
from smelt_match.budget.conventions import CONVENTIONS
from smelt_match.budget.ledger import ledger
from smelt_match.export.checkpoint.write import export_looped
from smelt_match.spec.family import countable, expand
from smelt_match.spec.model import ModelSpec
from tests.conftest import Ran
from tests.export.conftest import LAYOUTS, aligned, looped
from tests.model.tiny import build

DENSE = {"dense_layers": "1-4", "dense_intermediate_size": 18, "num_experts": 0, "experts_per_token": 0,
         "expert_intermediate_size": 0}  # fmt: skip
VARIANTS: list[dict[str, Any]] = [
    {},
    {"qk_norm": "head", "tie_word_embeddings": True},
    {"qk_norm": "width", "normalize_topk": False, "rope_theta": 77.0, "rms_norm_eps": 1e-4},
    {"dense_layers": "1", "dense_intermediate_size": 18, "shared_expert_intermediate_size": 8,
     "shared_expert_gate": True},
    DENSE,
]  # fmt: skip


def same(read: ModelSpec, spec: ModelSpec) -> None:
    """The same model, whatever its layout is called, and the same counts by every convention."""
    own = {"name", "source", "layout"}
    assert read.model_dump(exclude=own) == spec.model_dump(exclude=own)
    assert read.visits.visits == spec.visits.visits
    for rule in CONVENTIONS.values():
        found, wanted = (ledger(one, rule, Context.causal(64)).budget for one in (read, spec))
        assert found == wanted


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("changes", VARIANTS)
def test_it_is_the_spec_that_was_exported(tmp_path: Path, layout: str, changes: dict[str, Any]) -> None:
    spec = aligned(layout, **changes)
    export_looped(build(spec), tmp_path / "out")
    entry = expand(str(tmp_path / "out"))[0]
    assert entry.imported is not None
    assert entry.imported.left_out == ()
    same(countable(entry), spec)


def test_split_heads_come_back() -> None:
    spec = aligned("mid50x2", loop_num_attention_heads=2, loop_num_key_value_heads=1)
    from smelt_match.export.checkpoint.configs import looped_config
    from smelt_match.spec.huggingface.reader import read_config

    same(read_config(Path("a.json"), looped_config(spec, 61, "float32", "1/r")).spec, spec)


def test_what_transformers_saves_of_it_is_read_too(tmp_path: Path, load: Callable[..., Any]) -> None:
    ours = looped()
    export_looped(ours, tmp_path / "out")
    load(tmp_path / "out", trust_remote_code=True).save_pretrained(tmp_path / "again")
    same(countable(expand(str(tmp_path / "again"))[0]), ours.spec)


def test_plain_residuals_are_told_since_no_spec_says_them(tmp_path: Path) -> None:
    export_looped(build(aligned("mid50x2"), residual_scale="1"), tmp_path / "out")
    entry = expand(str(tmp_path / "out"))[0]
    assert entry.imported is not None
    assert entry.imported.left_out == ("residual_scale '1'",)


def test_it_is_counted_and_measured_by_the_command(tmp_path: Path, cli: Callable[..., Ran]) -> None:
    spec = aligned("mid50x3")
    export_looped(build(spec), tmp_path / "out")
    ran = cli("count", tmp_path / "out", "--measure", "--context", "9")
    assert ran.code == 0
    assert "built parameters and executed FLOPs equal the counts (difference 0)" in ran.out
    assert "visits 1-3,2-3,2-4" in ran.out


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"visits": [0, 2]}, "visits: layout: layer 2 is never visited"),
        ({"visits": [0, -1]}, "visits: layout: "),
        ({"visits": []}, "visits: a list with at least one block is wanted"),
        ({"visits": None}, "visits: a list with at least one block is wanted"),
        ({"visits": [0, 10**9]}, "visits: layout: 1000000001 layers"),
        ({"visits": "0,1"}, "visits: a list of whole numbers is wanted"),
        ({"num_hidden_layers": 4}, "num_hidden_layers: 4, but visits has 6 entries"),
        ({"dense_blocks": [4], "intermediate_size": 8}, "dense_blocks: block 4 does not exist; there are 4"),
        ({"dense_blocks": [0]}, "intermediate_size: required where dense_blocks lists a block"),
        ({"qk_norm": "rms"}, "qk_norm: none, head or width is wanted, found 'rms'"),
        ({"loop_num_attention_heads": 3}, "not divisible"),
        ({"gate_size": 3}, "gate_size: unknown field"),
    ],
)
def test_faults_are_told_by_their_field(
    tmp_path: Path, cli: Callable[..., Ran], changes: dict[str, Any], told: str
) -> None:
    export_looped(looped(), tmp_path / "out")
    path = tmp_path / "out" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    ran = cli("count", path)
    assert (ran.code, ran.out) == (2, "")
    assert told in ran.err
