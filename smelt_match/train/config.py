"""A run as a value: everything that decides what is trained, and how. ``run.json`` in the run's folder is its text."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from smelt_match.errors import BadInput
from smelt_match.files import read_text
from smelt_match.model.support import check_buildable, scale_of
from smelt_match.spec.model import ModelSpec
from smelt_match.spec.parts import Record
from smelt_match.spec.yaml import describe
from smelt_match.train import defaults
from smelt_match.train.batches import check_fresh
from smelt_match.train.schedule import TRUNK, Leg, Schedule, default_branch_steps, default_forks
from smelt_match.train.shards import Shards, check_vocabulary

RUN_FILE = "run.json"
Count = Annotated[int, Field(ge=1, le=2**40)]
Positive = Annotated[float, Field(gt=0, lt=1e6)]
Share = Annotated[float, Field(ge=0, lt=1)]


class TrainConfig(Record):
    """One training run: a spec, a corpus, a schedule and an optimizer.

    Runs with equal fields compute the same, but for `HOW`: those say where and how a run is executed, and may change
    when it is resumed.

    Attributes:
        spec: The model; its ``vocab_size`` is stated.
        corpus, corpus_digest: The folder, and the digest that fixes its content.
        seed: Of the initial weights and the order of the data.
        context, rows: Tokens of a context, and contexts of a step over all ranks.
        micro_rows: Contexts of a micro-batch. It is part of what is computed: the balancing loss of a step is the mean
            of those of its micro-batches.
        steps: Steps of the trunk.
        forks: Steps of the trunk after which branches fork, ascending.
        branch_steps: Steps of each branch.
        learning_rate, warmup_steps: The trunk's constant rate, and the steps that lead to it.
        betas, epsilon, weight_decay, clip_norm: AdamW's; gradients are clipped to a total norm of ``clip_norm``.
        balance: ``loss`` or ``bias``, as in `smelt_match.model.loop.LoopedTransformer`.
        balance_coefficient: Of the balancing loss. bias_rate: Of the balancing bias.
        residual_scale: ``1/r`` or ``1``.
        validation_tokens: The most of each source that a validation reads, in whole contexts.
        dtype: ``float32``, or ``bfloat16`` for autocast over weights in float32.
        device: ``cpu`` or ``cuda``.
        compile: Whether each block is compiled.
        recompute: Whether visits are computed again in the backward pass.
        log_every, save_every: Steps between lines of the log, and between checkpoints.
        keep_checkpoints: ``last`` keeps what resuming needs and the end of the longest leg; ``all`` deletes none.
    """

    schema_version: Literal[1] = 1
    spec: ModelSpec
    corpus: str
    corpus_digest: str
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    context: Annotated[int, Field(ge=2, le=2**24)]
    rows: Annotated[int, Field(ge=1, le=2**24)]
    micro_rows: Annotated[int, Field(ge=1, le=2**24)]
    steps: Count
    forks: tuple[Count, ...] = ()
    branch_steps: Count
    learning_rate: Positive
    warmup_steps: Annotated[int, Field(ge=0)]
    betas: tuple[Share, Share] = defaults.BETAS
    epsilon: Positive = defaults.EPSILON
    weight_decay: Annotated[float, Field(ge=0, le=10)] = defaults.WEIGHT_DECAY
    clip_norm: Positive = defaults.CLIP_NORM
    balance: Literal["loss", "bias"] = "loss"
    balance_coefficient: Annotated[float, Field(ge=0, le=100)] = defaults.BALANCE_COEFFICIENT
    bias_rate: Positive = defaults.BIAS_RATE
    residual_scale: Literal["1/r", "1"] = "1/r"
    validation_tokens: Annotated[int, Field(ge=1)]
    dtype: Literal["float32", "bfloat16"] = "float32"
    device: Literal["cpu", "cuda"] = "cpu"
    compile: bool = False
    recompute: bool = False
    log_every: Count = 10
    save_every: Count = 1_000
    keep_checkpoints: Literal["last", "all"] = "last"

    @model_validator(mode="after")
    def _check(self) -> Self:
        faults = []
        if self.rows % self.micro_rows:
            faults.append(f"--rows {self.rows} cannot be cut into micro-batches of {self.micro_rows} (--micro-rows)")
        if list(self.forks) != sorted(set(self.forks)):
            faults.append(f"forks {list(self.forks)} do not ascend")
        faults += [
            f"--branches {fork} is beyond the trunk's {self.steps} steps" for fork in self.forks if fork > self.steps
        ]
        if self.warmup_steps > self.steps:
            faults.append(f"--warmup-steps {self.warmup_steps} is more than the trunk's {self.steps} steps")
        if self.spec.vocab_size is None:
            faults.append("spec: vocab_size is not stated")
        if faults:
            raise ValueError("\n".join(faults))
        return self

    @property
    def tokens_per_step(self) -> int:
        """Tokens of a step over all ranks."""
        return self.rows * self.context

    @property
    def schedule(self) -> Schedule:
        """The learning rate of every step."""
        return Schedule(self.learning_rate, self.warmup_steps, self.steps, self.branch_steps)

    @property
    def legs(self) -> tuple[Leg, ...]:
        """The trunk, and the branches in the order of their forks."""
        return (TRUNK, *(Leg(fork) for fork in self.forks))

    @property
    def steps_total(self) -> int:
        """Steps of all legs."""
        return self.steps + len(self.forks) * self.branch_steps

    @property
    def tokens_total(self) -> int:
        """Tokens that all legs train on; those of the branch pool count once for each branch."""
        return self.steps_total * self.tokens_per_step

    def to_json(self) -> str:
        """The text of ``run.json``."""
        return self.model_dump_json(indent=2, exclude={"spec"}).removesuffix("\n}") + (
            ',\n  "spec": ' + self.spec.model_dump_json(indent=2, exclude_unset=True).replace("\n", "\n  ") + "\n}\n"
        )


# Fields whose option has another name than theirs.
OPTIONS = {"learning_rate": "lr", "keep_checkpoints": "keep_all", "forks": "branches", "branch_steps": "branch_tokens",
           "steps": "tokens"}  # fmt: skip
HOW = frozenset({"corpus", "device", "compile", "recompute", "log_every", "save_every", "keep_checkpoints"})


def plan_run(
    spec: ModelSpec,
    shards: Shards,
    tokens: int,
    branches: tuple[int, ...] | None = None,
    branch_tokens: int | None = None,
    **fields: Any,
) -> TrainConfig:
    """The run of a spec on a corpus, with every default resolved to a number.

    Args:
        spec: The model.
        shards: The corpus.
        tokens: Of the trunk; whole steps of it are taken.
        branches: Steps after which branches fork; default: the paper's, in proportion.
        branch_tokens: Of each branch, at least one step of them; default: the paper's share of the trunk.
        **fields: Any other field of `TrainConfig` that is not None.

    Raises:
        BadInput: A value does not fit; the corpus is too small for this many fresh tokens; vocabularies differ; the
            spec has parts that cannot be built (each is named).
    """
    check_buildable(spec)
    given = {name: value for name, value in fields.items() if value is not None}
    vocabulary = check_vocabulary(shards, spec)
    context = given.setdefault("context", defaults.context_for(spec))
    rows = given.setdefault("rows", defaults.batch_rows(tokens, context) if context > 0 else 1)
    steps = tokens // (rows * context) if rows * context > 0 else 0
    if steps < 1:
        raise BadInput(
            f"--tokens {tokens:,}: less than one step of {rows} rows of {context:,} tokens",
            "train on more tokens, or with a smaller --rows or --context",
        )
    given.setdefault("micro_rows", defaults.micro_rows(rows, context))
    given.setdefault("validation_tokens", defaults.validation_tokens(steps * rows * context))
    given.setdefault("residual_scale", scale_of(spec, None))
    given.setdefault("learning_rate", defaults.peak_learning_rate(spec, steps * rows * context))
    given.setdefault("warmup_steps", defaults.warmup_steps(steps))
    given.setdefault(
        "branch_steps",
        default_branch_steps(steps) if branch_tokens is None else max(1, branch_tokens // (rows * context)),
    )
    config = _valid({
        **given, "spec": spec.changed(vocab_size=vocabulary), "corpus": str(shards.folder),
        "corpus_digest": shards.digest, "steps": steps,
        "forks": default_forks(steps) if branches is None else tuple(branches),
    })  # fmt: skip
    check_corpus(config, shards, "--tokens" if branch_tokens is None else "--branch-tokens")
    return config


def check_corpus(config: TrainConfig, shards: Shards, branch_option: str = "--tokens") -> None:
    """Refuse a corpus that a run would have to read twice, that has nothing held out, or that is not the run's.

    ``branch_option`` is what decides the branches' length: ``--tokens``, where they are a share of the trunk.
    """
    if shards.digest != config.corpus_digest:
        raise BadInput(
            f"{shards.folder}: its digest {shards.digest[:12]}… is not the run's, {config.corpus_digest[:12]}…"
        )
    if not shards.validation.num_tokens:
        raise BadInput(
            f"{shards.folder}: has no held-out documents, and validation losses are what a run ends with",
            "build it with a larger --validation-share, or of more documents",
        )
    check_fresh(shards.trunk, config.steps * config.tokens_per_step, config.context)
    if config.forks:
        check_fresh(shards.branch, config.branch_steps * config.tokens_per_step, config.context, branch_option)


def _valid(fields: dict[str, Any]) -> TrainConfig:
    try:
        return TrainConfig.model_validate(fields)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False)
        hint = (
            "name steps of the trunk with --branches, or none" if any("--branches" in f["msg"] for f in faults) else ""
        )
        raise BadInput("\n".join(_faults(error, option_of)), hint) from None


def option_of(field: str) -> str:
    """A field by the option that a person gives."""
    return "--" + OPTIONS.get(field, field).replace("_", "-")


def _faults(error: ValidationError, named: Callable[[str], str] = str) -> list[str]:
    """A line for each fault, with the value that it found where that is one; ``named`` says what a field is called."""
    lines = []
    for fault in error.errors(include_url=False, include_context=False):
        message = str(fault["msg"]).removeprefix("Value error, ").removeprefix("Input ")
        if fault["type"] == "value_error":
            lines += message.split("\n")
        else:
            if isinstance(fault["input"], float) and not math.isfinite(fault["input"]):
                message = "should be a finite number"
            names = [str(part) for part in fault["loc"]]
            place = ".".join([*map(named, names[:1]), *names[1:]]) or "the whole"
            lines.append(f"{place}: {message}, found {describe(fault['input'])}")
    return lines


def read_config(folder: Path) -> TrainConfig:
    """The run of a folder.

    Raises:
        BadInput: There is none, or it is not understood.
    """
    path = folder / RUN_FILE
    try:
        return TrainConfig.model_validate_json(read_text(path, "run"))
    except ValidationError as error:
        raise BadInput(
            "\n".join(f"{path}: {line}" for line in _faults(error)),
            "the file is damaged, or of another version; what was trained there cannot be gone on with",
        ) from None


def check_same(found: TrainConfig, wanted: TrainConfig, where: Path) -> None:
    """Refuse to go on with another run's folder, naming each field that differs.

    Raises:
        BadInput: A field differs that decides what is computed.
    """
    ours, theirs = (config.model_dump(exclude={"spec"}) for config in (wanted, found))
    faults = [
        f"{where}: {name} is {theirs[name]!r} there, and {ours[name]!r} is asked for"
        for name in ours
        if name not in HOW and ours[name] != theirs[name]
    ]
    ours, theirs = wanted.spec.model_dump(), found.spec.model_dump()
    about = {"source", "notes", "expected"}
    faults += [
        f"{where}: spec.{name} is {theirs[name]!r} there, and {ours[name]!r} is asked for"
        for name in ours
        if name not in about and ours[name] != theirs[name]
    ]
    if faults:
        raise BadInput("\n".join(faults), "resume with the run's own options, or choose another folder")
