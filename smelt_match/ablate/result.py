"""What a trained arm leaves behind: validation loss by source at each horizon, and the digest of what it read."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from smelt_match.errors import BadInput
from smelt_match.files import read_text
from smelt_match.spec.parts import Record

RESULT = "ablation.json"  # beside the trainer's own result.json, which has no bytes and no digest
Total = Annotated[int, Field(ge=1)]


class SourceLoss(Record):
    """One validation source.

    Attributes:
        source: Its name.
        category: The category it belongs to.
        tokens: Tokens predicted.
        bytes: Bytes of text that they stand for, in proportion where a source was read in part; None if not known.
        nats: Their summed cross-entropy.
    """

    source: str
    category: str
    tokens: Total
    bytes: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    nats: Annotated[float, Field(allow_inf_nan=False)]


class Horizon(Record):
    """The validation loss at the end of one branch.

    Attributes:
        tokens: Training tokens seen by then, the branch's own included.
    """

    tokens: Total
    sources: Annotated[list[SourceLoss], Field(min_length=1)]

    @property
    def loss(self) -> float:
        """Cross-entropy in nats per token, weighted by tokens."""
        return math.fsum(s.nats for s in self.sources) / sum(s.tokens for s in self.sources)

    @property
    def mean_over_sources(self) -> float:
        """The plain mean of the sources' own losses, in nats per token."""
        return math.fsum(s.nats / s.tokens for s in self.sources) / len(self.sources)

    @property
    def bits_per_byte(self) -> float | None:
        """Cross-entropy in bits per byte of text, which does not depend on the tokenizer; None without bytes."""
        sizes = [s.bytes for s in self.sources if s.bytes is not None]
        if len(sizes) < len(self.sources):
            return None
        return math.fsum(s.nats for s in self.sources) / math.log(2) / sum(sizes)

    @property
    def by_category(self) -> dict[str, float]:
        """Nats per token in each category, in name order."""
        found = {}
        for category in sorted({s.category for s in self.sources}):
            own = [s for s in self.sources if s.category == category]
            found[category] = math.fsum(s.nats for s in own) / sum(s.tokens for s in own)
        return found


class ArmResult(Record):
    """One arm, trained to its last horizon.

    Attributes:
        horizons: By branch, the shortest first.
        tokens_digest: Digest of all tokens it was trained on; equal for all arms of a seed.
    """

    schema_version: int = 1
    horizons: Annotated[list[Horizon], Field(min_length=1)]
    tokens_digest: str


def read_result(folder: Path) -> ArmResult | None:
    """The result in an arm's folder, or None where it has none yet; `BadInput` where it cannot be read."""
    path = folder / RESULT
    if not path.exists():
        return None
    try:
        return ArmResult.model_validate(json.loads(read_text(path, "result")))
    except (json.JSONDecodeError, RecursionError) as error:
        raise BadInput(f"{path}: not JSON: {error}", "delete the file; the arm is then finished again") from None
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in fault["loc"])
        raise BadInput(f"{path}: {key}: {fault['msg']}", "delete the file; the arm is then finished again") from None
