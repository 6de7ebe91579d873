"""How much each arm of a sweep is trained: contexts, steps and branches, the same for all."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from smelt_match.errors import BadInput
from smelt_match.spec.model import ModelSpec
from smelt_match.train.config import TrainConfig
from smelt_match.train.defaults import batch_rows, context_for
from smelt_match.train.schedule import default_branch_steps, default_forks
from smelt_match.units import parse_count, parse_fraction

LEAST_BATCH = 2_048  # tokens: nano takes a third less time for each than in steps of 512
LEAST_STEPS = 64


@dataclass(frozen=True)
class Extent:
    """The length of every arm's training.

    Attributes:
        context, rows: Tokens of a context, and contexts of a step.
        steps: Steps of the trunk.
        forks: Steps after which branches fork.
        branch_steps: Steps of each branch.
        vocab_size: Of the corpus; None where no corpus was opened.
    """

    context: int
    rows: int
    steps: int
    forks: tuple[int, ...]
    branch_steps: int
    vocab_size: int | None = None

    @property
    def tokens_trunk(self) -> int:
        """Tokens of the trunk."""
        return self.steps * self.rows * self.context

    @property
    def tokens_branch(self) -> int:
        """Tokens of one branch."""
        return self.branch_steps * self.rows * self.context

    @property
    def tokens(self) -> int:
        """Tokens that an arm is trained on, the trunk and every branch."""
        return self.tokens_trunk + len(self.forks) * self.tokens_branch


def extent(
    spec: ModelSpec, tokens: int, branches: str | None = None, context: int | None = None, rows: int | None = None
) -> Extent:
    """The extent of a sweep around a baseline.

    Args:
        spec: The baseline, whose size sets the defaults.
        tokens: Of the trunk; whole steps of it are taken.
        branches: Where branches fork: shares (``25%,100%``) or tokens (``50k,200k``) of the trunk, or ``paper``;
            default: one at its end.
        context, rows: Instead of the trainer's defaults.

    Raises:
        BadInput: There is no whole step, or a branch forks beyond the trunk.
    """
    context = context or context_for(spec)
    rows = rows or _rows(tokens, context)
    steps = tokens // (rows * context)
    if steps < 1:
        raise BadInput(
            f"--tokens {tokens:,}: less than one step of {rows} × {context:,} tokens",
            "train on more tokens, or with a smaller --rows or --context",
        )
    return Extent(context, rows, steps, _forks(branches, steps, rows * context), default_branch_steps(steps))


def _rows(tokens: int, context: int) -> int:
    """The trainer's batch, but no smaller than keeps a CPU at its products, as long as that leaves enough steps."""
    return max(batch_rows(tokens, context), min(LEAST_BATCH // context, tokens // (LEAST_STEPS * context)))


def extent_of(config: TrainConfig) -> Extent:
    """The extent that a run states."""
    vocabulary = config.spec.vocab_size
    return Extent(config.context, config.rows, config.steps, config.forks, config.branch_steps, vocabulary)


def _forks(text: str | None, steps: int, tokens_step: int) -> tuple[int, ...]:
    if text is None:
        return (steps,)
    if text.strip() == "paper":
        return default_forks(steps)
    found: dict[int, str] = {}
    for part in text.split(","):
        if part.strip().endswith("%"):
            fork = parse_fraction(part, "--branches") * steps
        else:
            fork = Fraction(parse_count(part, "--branches"), tokens_step)
        if not 0 < fork <= steps:
            raise BadInput(
                f"--branches {part.strip()[:40]}: does not lie in the trunk's {steps * tokens_step:,} tokens",
                'write shares such as "25%,100%", tokens such as 50k,200k, or paper',
            )
        step = max(1, round(fork))
        if step in found:
            raise BadInput(
                f"--branches: {found[step].strip()[:40]} and {part.strip()[:40]} both fork after step {step:,} of the "
                f"trunk's {steps:,}",
                "name one of them, or train on more tokens",
            )
        found[step] = part
    return tuple(sorted(found))
