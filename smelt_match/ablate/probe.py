"""How fast an arm trains here: a few real steps in a process of its own."""

from __future__ import annotations

from smelt_match.ablate.launch import Slot
from smelt_match.ablate.plan import Plan, Probe
from smelt_match.ablate.sweep import Sweep


def probe(plan: Plan, sweep: Sweep, slot: Slot, threads: int) -> Probe:
    """Measure one arm in a slot."""
    raise NotImplementedError
