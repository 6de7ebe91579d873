"""One arm of a sweep: a matched model, a seed, and how it is trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from smelt_match.errors import BadInput
from smelt_match.files import read_text, write_atomic
from smelt_match.spec.model import ModelSpec
from smelt_match.spec.parts import Record

ARM = "arm.json"


class Training(Record):
    """How the arms of a sweep are trained: all of them the same way, on the same tokens.

    Attributes:
        tokens: Tokens of the trunk, the constant stage of the schedule.
        branches: Tokens of the trunk at which a cosine branch forks off, ascending; the last one is ``tokens``.
        corpus: The folder of a built corpus, or None for the built-in one.
        options: Further settings of the trainer, by its own names.
    """

    tokens: Annotated[int, Field(ge=1)]
    branches: tuple[int, ...]
    corpus: str | None = None
    options: dict[str, Any] = Field(default_factory=dict)


class Arm(Record):
    """What a worker reads: everything that decides an arm's result, and nothing else."""

    schema_version: int = 1
    name: str
    seed: Annotated[int, Field(ge=0)]
    spec: ModelSpec
    training: Training

    def to_json(self) -> str:
        """The text of ``arm.json``: of the model what it states, of the training everything."""
        document = self.model_dump(mode="json", exclude={"spec"})
        document["spec"] = self.spec.model_dump(mode="json", exclude_unset=True)
        return json.dumps(document, indent=2, ensure_ascii=False, sort_keys=True) + "\n"


def write_arm(folder: Path, arm: Arm) -> None:
    """Put an arm into its folder; `BadInput` if another one is there."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / ARM
    if path.exists():
        if read_arm(folder) != arm:
            raise BadInput(f"{path}: is another arm than this sweep's", "choose another --out, or delete this folder")
        return
    write_atomic(path, arm.to_json())


def read_arm(folder: Path) -> Arm:
    """The arm in a folder; `BadInput` says what is wrong with it."""
    path = folder / ARM
    text = read_text(path, "arm")
    try:
        return Arm.model_validate_json(text)
    except ValidationError as error:
        faults = [
            f"{path}: {'.'.join(str(part) for part in fault['loc']) or 'it'}: {fault['msg']}"
            for fault in error.errors(include_url=False, include_context=False)
        ]
        raise BadInput("\n".join(faults), "delete the folder; the arm is then trained again") from None
