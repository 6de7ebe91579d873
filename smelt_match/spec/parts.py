"""Parts of a block beyond plain grouped-query attention and routed experts."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

MAX_WIDTH = 2**24
Width = Annotated[int, Field(ge=1, le=MAX_WIDTH)]


class Record(BaseModel):
    """Base of everything read from a file: strict types, no unknown keys, no changes."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class LatentAttention(Record):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): keys and values from a cached latent.

    The cache holds ``kv_lora_rank + qk_rope_head_dim`` elements for each token and visit.
    """

    q_lora_rank: Width | None = None
    kv_lora_rank: Width
    qk_nope_head_dim: Width
    qk_rope_head_dim: Width
    v_head_dim: Width


class Extra(Record):
    """Weights outside the components that the ledger knows, priced as a source states them.

    Attributes:
        name: What they are.
        layers: Blocks that have them, in runs from 1; None for the model as a whole.
        params: Parameters in each of those blocks, or in the model.
        cost: ``matmul`` costs 6 FLOPs for each parameter and execution; ``gain`` costs what norms cost; ``lookup``
            is stored but not executed.
        executions: Times a token passes them: in all, or at each visit where ``layers`` names blocks.
        formula: How ``params`` comes about.
    """

    name: str
    layers: str | None = None
    params: Annotated[int, Field(ge=1, le=2**60)]
    cost: Literal["matmul", "gain", "lookup"] = "matmul"
    executions: Annotated[int, Field(ge=1, le=100_000)] = 1
    formula: str = ""
