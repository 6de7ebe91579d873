"""Which component of the ledger a parameter belongs to, and which parameters decay."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smelt_match.model.loop import LoopedTransformer

# The first pattern that a name matches counts.
_COMPONENTS = (
    ("embedding.weight", "input embedding"),
    ("head.weight", "output head"),
    ("final_norm.*", "final norm"),
    ("*.attention.*_norm.weight", "attention norms"),
    ("*.attention.gate.weight", "attention gate"),
    ("*.attention.*.weight", "attention projections"),
    ("*.attention.*.bias", "attention biases"),
    ("*_norm.*", "norms"),
    ("*.router.weight", "router"),
    ("*.router.bias", "router bias"),
    ("*.experts.*_bias", "expert biases"),
    ("*.experts.*", "experts"),
    ("*.shared*", "shared experts"),
    ("*.feed_forward.*.weight", "dense feed-forward"),
    ("*.feed_forward.*.bias", "dense biases"),
)


def component_of(name: str) -> str:
    """The ledger's component of a parameter, by its name in the model."""
    return next(component for pattern, component in _COMPONENTS if fnmatchcase(name, pattern))


def component_parameters(model: LoopedTransformer) -> dict[str, int]:
    """Stored parameters by component, under the ledger's names (`smelt_match.budget.components`).

    A block counts once, however often it is visited. The input embedding and the output head are outside of the
    paper's budgets, but here they are; a head that shares the embedding's weights stores nothing.
    """
    found = {component: 0 for _, component in _COMPONENTS}
    for name, parameter in model.named_parameters():
        found[component_of(name)] += parameter.numel()
    return {component: count for component, count in found.items() if count}


def decays(name: str) -> bool:
    """Whether weight decay applies to a parameter: to matrices and embeddings, not to gains and biases."""
    component = component_of(name)
    return "norm" not in component and "bias" not in component


def decay_groups(model: LoopedTransformer, weight_decay: float) -> list[dict[str, Any]]:
    """Parameter groups for an optimizer, the decaying ones first.

    Matrices, the router's among them, and embeddings decay; gains and biases do not. Source: the practice of GPT-3's
    reproductions (minGPT and nanoGPT, `configure_optimizers`). The selection bias of a balanced router is a buffer,
    which no optimizer sees.
    """
    matrices = [parameter for name, parameter in model.named_parameters() if decays(name)]
    rest = [parameter for name, parameter in model.named_parameters() if not decays(name)]
    return [{"params": matrices, "weight_decay": weight_decay}, {"params": rest, "weight_decay": 0.0}]
