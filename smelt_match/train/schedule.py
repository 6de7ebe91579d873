"""The learning rate, as a function of where a step stands: in the trunk, or in one of its branches.

Warmup-stable-decay (arXiv 2404.06395): the trunk warms up linearly and stays constant; from some of its steps, cosine
branches fork, which decay over fresh tokens (arXiv 2609.01343v3, Sec. 3.1). A step is counted from 0, in the trunk and
anew in each branch; the rate depends on nothing else, so that a resumed run has the rates of one that never stopped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from smelt_match.errors import BadInput

# The paper's trunk and the steps at which its branches fork; each decays over 10 of the trunk's 205 billion tokens.
PAPER_STEPS = 196_075
PAPER_FORKS = (10_000, 20_000, 50_000, 100_000, 150_000, 196_075)
PAPER_BRANCH = Fraction(10, 205)


@dataclass(frozen=True, order=True)
class Leg:
    """A stretch of training with checkpoints of its own: the trunk, or the branch that forks after ``fork`` steps."""

    fork: int | None = None

    @property
    def name(self) -> str:
        """How its folder is called."""
        return "trunk" if self.fork is None else f"branch-{self.fork:08}"


TRUNK = Leg()


@dataclass(frozen=True)
class Schedule:
    """Warmup, constant stage and cosine branches.

    Attributes:
        peak: The constant rate.
        warmup_steps: Steps before the first one at the peak; 0 starts there.
        steps: Steps of the trunk.
        branch_steps: Steps of each branch.
    """

    peak: float
    warmup_steps: int
    steps: int
    branch_steps: int

    def length(self, leg: Leg) -> int:
        """Steps of a leg."""
        return self.steps if leg.fork is None else self.branch_steps

    def learning_rate(self, leg: Leg, step: int) -> float:
        """The rate of a step, counted from 0 in its leg.

        Trunk: ``peak · min(1, (step + 1) / warmup)``. Branch of n steps: the trunk's rate at the fork times
        ``(1 + cos(π · (step + 1) / (n + 1))) / 2``, which touches neither the constant rate nor 0.
        """
        if not 0 <= step < self.length(leg):
            raise ValueError(f"step {step} is not in the {self.length(leg)} steps of {leg.name}")
        if leg.fork is None:
            return self._stable(step)
        return self._stable(leg.fork) * (1 + math.cos(math.pi * (step + 1) / (self.branch_steps + 1))) / 2

    def _stable(self, step: int) -> float:
        return self.peak * min(1.0, (step + 1) / self.warmup_steps) if self.warmup_steps else self.peak


def default_branch_steps(steps: int) -> int:
    """A branch's share of the trunk, 10/205 as in the paper, rounded half to even; at least one step."""
    return max(1, round(steps * PAPER_BRANCH))


def default_forks(steps: int) -> tuple[int, ...]:
    """The paper's six forks at their places in a trunk of other length; those that fall together are one."""
    return tuple(sorted({max(1, round(Fraction(fork * steps, PAPER_STEPS))) for fork in PAPER_FORKS}))


def forks_option(text: str | None) -> tuple[int, ...] | None:
    """Steps as a person lists them, such as ``50,100``; ``none`` is no branch, and None leaves the choice open."""
    if text is None:
        return None
    if text.strip() == "none":
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 14 and int(part) for part in parts):
        raise BadInput(f"--branches {text[:60]!r}: steps of the trunk are wanted", "such as 50,100, or none")
    return tuple(sorted({int(part) for part in parts}))
