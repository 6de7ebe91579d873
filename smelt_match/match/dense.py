"""A dense baseline read as a mixture of experts, since a match needs experts to take up freed parameters."""

from __future__ import annotations

from smelt_match.errors import BadInput
from smelt_match.spec.model import ModelSpec


def as_experts(base: ModelSpec, k: int) -> tuple[ModelSpec, str]:
    """Read a feed-forward of width F as k experts of width F / k, all of them active.

    Returns:
        The baseline as an MoE, and the sentence that says so.

    Raises:
        BadInput: The model has experts already, or k does not divide F.
    """
    width = base.dense_intermediate_size
    if base.num_experts or width is None:
        raise BadInput(
            f"--experts-per-token {k}: {base.name} has experts ({base.experts_per_token} of {base.num_experts})",
            "leave the option out; it is for dense baselines",
        )
    if width % k:
        near = [str(n) for n in range(1, 129) if width % n == 0]
        raise BadInput(
            f"--experts-per-token {k}: does not divide the feed-forward width {width:,} of {base.name}",
            f"these do: {', '.join(near)}",
        )
    spec = base.changed(
        name=f"{base.name[:80]}-as-{k}-experts", num_experts=k, experts_per_token=k,
        expert_intermediate_size=width // k, dense_layers=None, dense_intermediate_size=None,
    )  # fmt: skip
    bias = f", and {k} output biases stand for one" if base.mlp_bias else ""
    words = (
        f"{base.name} is dense: its feed-forward of width {width:,} is read as {k} experts of width {width // k:,}, "
        f"all of them active, so that the baseline became an MoE; its router adds {base.hidden_size:,}·{k} weights to "
        f"each layer{bias}"
    )
    return spec, words
