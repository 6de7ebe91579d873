"""How a looped model runs its loop: what is injected, what is not shared between visits, and what the cache keeps.

Every attribute is priced by a row of the ledger (`smelt_match.budget.parts`) or has no price at all, and says so.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from smelt_match.spec.layout import MAX_VISITS
from smelt_match.spec.parts import Record, Width


class Injection(Record):
    """What enters the loop again at every pass.

    Attributes:
        kind: ``concat`` a matrix of 2H by H on state and input (Huginn, arXiv 2502.05171); ``add`` their sum, without
            weights; ``diagonal`` a decay and a step for each channel, 2H gains (Parcae, arXiv 2604.12946);
            ``message`` weights of each looped block that read the pass before, at every pass but the first.
        matrix: Whether a diagonal injection has a matrix of H by H on the input too.
        params: Parameters of a message in each looped block, as its source counts them.
    """

    kind: Literal["concat", "add", "diagonal", "message"]
    matrix: bool = False
    params: Annotated[int, Field(ge=1, le=2**60)] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        faults = []
        if self.matrix and self.kind != "diagonal":
            faults.append(f"matrix is given, but the kind is {self.kind}, not diagonal")
        if self.kind == "message" and self.params is None:
            faults.append("params is missing: what a message costs in each looped block")
        if self.kind != "message" and self.params is not None:
            faults.append(f"params is given, but the kind {self.kind} has a price of its own")
        if faults:
            raise ValueError("\n".join(faults))
        return self


class Sampled(Record):
    """How often the loop runs where the number of passes is drawn. The layout states the mean.

    Attributes:
        distribution: What it is drawn from, in the source's words.
        most: The greatest number of passes, or None where it is unbounded.
    """

    distribution: str
    most: Annotated[int, Field(ge=1, le=MAX_VISITS)] | None = None


class Loop(Record):
    """What the layout string does not say about a loop."""

    kv_policy: Literal["visit", "last", "shared", "ring"] = Field(
        "visit",
        description="cache slots of a looped block: one for each visit; its last visit's alone; its first visit's, "
        "whose keys and values later visits read; or those of the last kv_ring visits",
    )
    kv_ring: Annotated[int, Field(ge=1, le=MAX_VISITS)] | None = Field(None, description="visits that a ring keeps")
    injection: Injection | None = Field(None, description="what enters the loop again at every pass")
    untied: Annotated[list[Literal["norms", "router"]], Field(max_length=2)] = Field(
        default_factory=list, description="parts of a looped block that every visit has a copy of"
    )
    lora_rank: Width | None = Field(
        None, description="rank of an adapter that every visit has on each matrix of a dense looped block"
    )
    part: Literal["block", "attention", "feed_forward"] = Field(
        "block", description="what of a looped block is repeated; the other half runs once, at the first visit"
    )
    norm_after_visit: bool = Field(False, description="whether a norm of width H ends every pass")
    residual_scale: Literal["1/r", "1"] | None = Field(
        None, description="factor on each update of a block with r visits; no budget depends on it"
    )
    sampled: Sampled | None = Field(None, description="how the number of passes is drawn, where it is")

    @model_validator(mode="after")
    def _check(self) -> Self:
        faults = []
        if (self.kv_ring is None) == (self.kv_policy == "ring"):
            faults.append("kv_ring and kv_policy ring go together")
        if len(set(self.untied)) < len(self.untied):
            faults.append("untied names a part twice")
        if faults:
            raise ValueError("\n".join(faults))
        return self

    def slots(self, visits: int) -> int:
        """Cache slots of a block with so many visits."""
        if self.kv_policy == "visit":
            return visits
        return min(visits, self.kv_ring) if self.kv_ring is not None else 1
