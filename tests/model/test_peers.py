"""The unlooped model is the function that transformers computes from the same weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.model.tiny import V, build, tiny, tokens

transformers = pytest.importorskip("transformers")

NAMES = {
    "embedding": "model.embed_tokens", "head": "lm_head", "final_norm": "model.norm", "blocks": "model.layers",
    "attention_norm": "input_layernorm", "feed_forward_norm": "post_attention_layernorm", "query": "q_proj",
    "key": "k_proj", "value": "v_proj", "output": "o_proj", "query_norm": "q_norm", "key_norm": "k_norm",
    "attention": "self_attn", "feed_forward": "mlp", "router": "gate", "up": "gate_up_proj", "down": "down_proj",
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "changes", "extra"),
    [
        ("Qwen3Moe", {"qk_norm": "head", "head_dim": 10}, {"norm_topk_prob": True, "moe_intermediate_size": 5}),
        ("Qwen3Moe", {"qk_norm": "head", "attention_bias": False, "normalize_topk": False, "rope_theta": 77.0},
         {"norm_topk_prob": False, "moe_intermediate_size": 5}),
        ("Olmoe", {"qk_norm": "width", "hidden_size": 24, "normalize_topk": False, "rms_norm_eps": 1e-4},
         {"norm_topk_prob": False, "intermediate_size": 5}),
    ],
)  # fmt: skip
def test_logits_and_balancing_loss_are_those_of_transformers(kind: str, changes: Any, extra: Any) -> None:
    spec = tiny(**changes)
    ours = build(spec)
    config = getattr(transformers, f"{kind}Config")(
        hidden_size=spec.hidden_size, num_hidden_layers=4, num_experts=7, num_experts_per_tok=3, vocab_size=V,
        num_attention_heads=4, num_key_value_heads=2, head_dim=spec.head_dim, rms_norm_eps=spec.rms_norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": spec.rope_theta}, tie_word_embeddings=False,
        router_aux_loss_coef=0.5, output_router_logits=True, max_position_embeddings=64, pad_token_id=None,
        eos_token_id=None, experts_implementation="eager", **extra,
    )  # fmt: skip
    theirs = getattr(transformers, f"{kind}ForCausalLM")(config)
    weights = {}
    for name, tensor in ours.state_dict().items():
        stored = tensor.transpose(1, 2) if ".experts." in name else tensor
        weights[".".join(NAMES.get(part, part) for part in name.split("."))] = stored
    theirs.load_state_dict(weights)
    ids = tokens()
    out, expected = ours(ids), theirs(ids, use_cache=False)
    torch.testing.assert_close(out.logits_BSV, expected.logits, rtol=1e-3, atol=1e-4)
    loads = [layer.router_logits if hasattr(layer, "router_logits") else layer for layer in expected.router_logits]
    losses = []
    for logits in loads:  # transformers pools all layers; we take the mean of their losses
        probs = logits.float().softmax(-1)
        share = torch.nn.functional.one_hot(probs.topk(3).indices, 7).float().mean((0, 1))
        losses.append(7 * (share * probs.mean(0)).sum())
    torch.testing.assert_close(out.aux_loss, torch.stack(losses).mean(), rtol=1e-4, atol=1e-5)
