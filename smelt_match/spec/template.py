"""The commented file that `specs init` writes, made from the fields' own descriptions."""

from __future__ import annotations

from smelt_match.spec.loop import Loop
from smelt_match.spec.model import ModelSpec

_EXAMPLE = {
    "name": "my-model", "hidden_size": 1024, "num_layers": 16, "num_experts": 64, "experts_per_token": 8,
    "expert_intermediate_size": 352, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 128,
    "layout": "none",
}  # fmt: skip
_OPTIONAL = {
    "loop_num_attention_heads": "4", "loop_num_key_value_heads": "1", "vocab_size": "50304",
    "tie_word_embeddings": "false", "mean_attended_context": "392", "control": "my-control",
    "matches": "200m_s95", "source": '"where the figures come from"', "notes": '"what a reader should know"',
    "expected": '{params_total: "0.83e9"}',
    "dense_layers": '"1-2"', "dense_intermediate_size": "4096", "norms_per_block": "4",
    "backward_visits": "1", "value_embedding_layers": '"2,4"', "value_embedding_gate": "32",
    "extras": '[{name: "readout", params: 1048576, cost: "matmul", formula: "1024·1024"}]',
    "loop": '{kv_policy: "last", injection: {kind: "concat"}}',
}  # fmt: skip


def template() -> str:
    """A complete spec with every field described; optional ones are commented out."""
    lines = ["# A model for smelt-match. Sizes are whole numbers; unknown keys are refused."]
    for name, value in _EXAMPLE.items():
        lines += [f"# {ModelSpec.model_fields[name].description}", f"{name}: {value}"]
    lines += ["", "# Optional:"]
    for name, text in _OPTIONAL.items():
        lines += [f"# {ModelSpec.model_fields[name].description}", f"# {name}: {text}"]
    lines += [f"#   {name}: {field.description}" for name, field in Loop.model_fields.items()]
    return "\n".join(lines) + "\n"
