"""What `gpu.py` runs: the sizes of its two runs, the models, and calls that are timed in turn.

Shapes: B rows, S tokens in a row, V vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from smelt_match.budget.conventions import convention
from smelt_match.budget.count import context_of
from smelt_match.match.answer import answer
from smelt_match.match.grid import find_grid
from smelt_match.match.problem import Question
from smelt_match.measure.step_time import half
from smelt_match.model.initial import initialize
from smelt_match.model.loop import LoopedTransformer
from smelt_match.spec.family import countable, expand, published_match
from smelt_match.spec.grammar import parse_layout
from smelt_match.spec.model import ModelSpec

BALANCE = 0.01


@dataclass(frozen=True)
class Sizes:
    """What is run."""

    baseline: str = "200m_s85"
    changes: dict[str, int] = field(default_factory=dict)  # of the baseline
    vocabulary: int = 50_304  # of GPT-NeoX, padded to a multiple of 64; the paper's is not in the spec
    rows: int = 16
    tokens: int = 1024  # of a row
    rounds: int = 7
    head_dims: tuple[int, ...] = tuple(range(64, 129, 8))
    expert_widths: tuple[int, ...] = tuple(range(320, 385, 8))
    prompt: int = 256
    new_tokens: int = 64
    batches: tuple[int, ...] = (1, 64)
    check_width: int = 256
    compiler: str = "inductor"
    training: dict[str, Any] = field(default_factory=dict)  # of the training section, over its own defaults


REHEARSAL = Sizes(
    baseline="nano_s85",
    changes={"hidden_size": 64, "num_layers": 4, "num_experts": 16, "expert_intermediate_size": 24, "head_dim": 16},
    vocabulary=64, rows=2, tokens=24, rounds=2, head_dims=(8, 16), expert_widths=(16, 24), prompt=4, new_tokens=3,
    batches=(1, 2), check_width=32, compiler="eager",
    training={"steps": 16, "context": 32, "rows": 2, "micro_rows": 2, "dtype": "float32", "learning_rate": 0.02,
              "validation_tokens": 32},
)  # fmt: skip


@dataclass
class Bench:
    """The device, the sizes, and the models, which are built when a section asks for them."""

    device: torch.device
    sizes: Sizes

    @cached_property
    def specs(self) -> dict[str, ModelSpec]:
        """The pair, and our matches; with a vocabulary."""
        entry = expand(self.sizes.baseline)[0]
        base = countable(entry)
        if self.sizes.changes:
            base = with_fields(base, **self.sizes.changes)
        layout = parse_layout("mid50x2", base.num_layers)
        grid = find_grid(entry.grid or "bf16")
        question = Question(base, layout, convention("paper"), context_of(base), grid)
        found = {"baseline": base}
        published = published_match(base, layout.visits)
        if isinstance(published, ModelSpec):
            found["published SMELT"] = published
        for policy in answer(question).solved:
            assert policy.solution is not None
            assert policy.problem is not None
            found[policy.policy] = policy.problem.spec_at(policy.solution.ranked[0], policy.policy)
        return {name: with_fields(spec, vocab_size=self.sizes.vocabulary) for name, spec in found.items()}

    def model(self, spec: ModelSpec, dtype: torch.dtype = torch.float32) -> LoopedTransformer:
        """A model with initial weights, in float32 unless told otherwise."""
        with torch.device("meta"):
            model = LoopedTransformer(spec)
        model.to(dtype).to_empty(device=self.device)
        initialize(model)
        return model

    def batch(self) -> Tensor:
        """Random tokens of one step."""
        return torch.randint(0, self.sizes.vocabulary, (self.sizes.rows, self.sizes.tokens), device=self.device)

    def now(self) -> float:
        """Seconds, with nothing left to do on the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def timed(self, call: Callable[[], object]) -> float:
        """Seconds of a call."""
        start = self.now()
        call()
        return self.now() - start

    def in_turn(self, calls: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
        """Seconds of calls that take turns, every other round backwards, after a first call that is not counted."""
        for call in calls.values():
            call()
        names, seconds = list(calls), {name: [] for name in calls}
        for _ in range(rounds):
            for name in names:
                seconds[name].append(calls[name]())
            names.reverse()
        return seconds

    def train(self, model: Any, tokens_BS: Tensor) -> None:
        """Forward and backward pass of the next-token loss, with balancing."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=half(self.device)):
            out = model(tokens_BS)
            logits = out.logits_BSV[:, :-1].flatten(0, 1).float()
            loss = F.cross_entropy(logits, tokens_BS[:, 1:].flatten()) + BALANCE * out.aux_loss
        loss.backward()


def with_fields(spec: ModelSpec, **changes: Any) -> ModelSpec:
    """A spec with some fields changed, without its published figures."""
    fields = spec.model_dump(exclude_unset=True, exclude={"source", "notes", "expected", "matches", "control"})
    return ModelSpec.model_validate(fields | changes)
