"""What the model does not implement it refuses, by name."""

from __future__ import annotations

from typing import Any

import pytest

from smelt_match.errors import BadInput
from smelt_match.model import support
from smelt_match.model.loop import LoopedTransformer
from smelt_match.spec.model import ModelSpec
from smelt_match.spec.parts import Extra, LatentAttention
from tests.model.tiny import VARIANTS, tiny

LATENT = LatentAttention(kv_lora_rank=8, qk_nope_head_dim=4, qk_rope_head_dim=2, v_head_dim=4)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"attention_sinks": True}, "attention_sinks: True"),
        ({"latent_attention": LATENT}, "latent_attention: "),
        ({"sliding_window": 128}, "sliding_window: 128"),
        ({"norms_per_block": 4}, "norms_per_block: 4"),
        ({"layout": "mid50x2", "loop": {"kv_policy": "last", "part": "attention"}}, "loop.part: attention"),
        ({"layout": "mid50x2", "loop": {"injection": {"kind": "concat"}}}, "loop.injection: {'kind': 'concat'}"),
        ({"vocab_size": 9, "value_embedding_layers": "1"}, "value_embedding_layers: 1"),
        ({"extras": [Extra(name="a second embedding", params=5)]}, "extras: 'a second embedding'"),
        ({"attention_gate": True, "value_head_dim": 8}, "attention_gate: "),
        ({"mlp_bias": True, "shared_expert_intermediate_size": 4}, "mlp_bias: "),
    ],
)
def test_a_part_that_cannot_be_built_is_refused_by_name(changes: dict[str, Any], names: str) -> None:
    with pytest.raises(BadInput) as caught:
        LoopedTransformer(tiny(**changes))
    assert caught.value.message.startswith(f"tiny: {names}")
    assert caught.value.message.endswith("cannot be built yet")


def test_every_fault_is_told_at_once() -> None:
    with pytest.raises(BadInput) as caught:
        LoopedTransformer(tiny(attention_sinks=True, sliding_window=9, sliding_window_layers="1,3"))
    assert len(caught.value.message.splitlines()) == 3


def test_every_field_of_a_spec_is_built_or_refused() -> None:
    """A field that is new in specs is refused until it is built: nothing is ignored in silence."""
    used = {name for variant in VARIANTS.values() for name in variant} | set(tiny("mid50x2").model_fields_set)
    used |= {"rope_theta", "rms_norm_eps", "loop_num_attention_heads", "loop_num_key_value_heads"}
    assert used == support._BUILT | {"name"}
    assert set(ModelSpec.model_fields) > support._BUILT | support._ABOUT


def test_an_unknown_residual_scale_is_refused() -> None:
    with pytest.raises(BadInput, match="'1/2' is not one of 1/r, 1"):
        LoopedTransformer(tiny(), residual_scale="1/2")


@pytest.mark.parametrize(("stated", "scale"), [("1", 1.0), ("1/r", 0.5)])
def test_the_residual_scale_of_a_spec_is_built(stated: str, scale: float) -> None:
    spec = tiny("mid50x2", loop={"residual_scale": stated})
    for given in (None, stated):
        assert LoopedTransformer(spec, residual_scale=given).block(1).scale == scale
    other = "1" if stated == "1/r" else "1/r"
    with pytest.raises(BadInput, match=f"residual_scale {other} is given, but the spec states {stated}"):
        LoopedTransformer(spec, residual_scale=other)
