"""How far a run is, how fast it goes, and when it will be done."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from smelt_match.train.config import TrainConfig
from smelt_match.train.engine import Step
from smelt_match.train.peaks import peak_flops, train_flops_per_token
from smelt_match.train.schedule import Leg
from smelt_match.train.world import World


@dataclass(frozen=True)
class Progress:
    """One step of a run, for people.

    Attributes:
        leg, step, steps: Where it is: steps done of those of its leg.
        measured: What the step measured.
        tokens, tokens_total: Of all legs.
        tokens_per_second: Of the last steps, over all ranks.
        mfu: The share of the peak (`smelt_match.train.peaks`), or None.
        seconds_left: For all legs, at this speed.
    """

    leg: Leg
    step: int
    steps: int
    measured: Step
    tokens: int
    tokens_total: int
    tokens_per_second: float
    mfu: float | None
    seconds_left: float

    def __str__(self) -> str:
        mfu = "" if self.mfu is None else f"   MFU {self.mfu:.1%}"
        return (
            f"{self.leg.name} {self.step:,}/{self.steps:,}   loss {self.measured.loss:.4f}   "
            f"balance {self.measured.balance_loss:.3f}   {self.tokens_per_second:,.0f} tokens/s{mfu}   "
            f"{_duration(self.seconds_left)} left"
        )


Report = Callable[[Progress], None]


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


class Pace:
    """The speed of the last steps: a mean that forgets, so that a pause does not last."""

    def __init__(self, config: TrainConfig, world: World) -> None:
        self.config, self.size = config, world.size
        self.peak = peak_flops(world.device, config.dtype)
        self.flops = train_flops_per_token(config.spec)
        self.seconds_per_step: float | None = None
        self.last = time.perf_counter()

    def restart(self) -> None:
        """What went before was no step."""
        self.last = time.perf_counter()

    def tick(self) -> None:
        """A step has ended."""
        now = time.perf_counter()
        seconds, self.last = now - self.last, now
        before = self.seconds_per_step
        self.seconds_per_step = seconds if before is None else 0.9 * before + 0.1 * seconds

    @property
    def tokens_per_second(self) -> float:
        """Over all ranks."""
        return self.config.tokens_per_step / max(self.seconds_per_step or 0.0, 1e-9)

    @property
    def mfu(self) -> float | None:
        """The share of the peak of all devices, where it is known."""
        return None if self.peak is None else self.tokens_per_second * self.flops / (self.peak * self.size)
