"""The weights of a run as safetensors, with the spec that they belong to."""

from __future__ import annotations

import io
import os
import shutil
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from smelt_match.errors import BadInput
from smelt_match.files import explained, read_text, write_atomic
from smelt_match.model.loop import LoopedTransformer
from smelt_match.model.support import scale_of
from smelt_match.spec.loop import Loop
from smelt_match.spec.model import ModelSpec
from smelt_match.spec.yaml import load, validate
from smelt_match.train.config import TrainConfig
from smelt_match.train.engine import Engine
from smelt_match.train.optimizer import full

WEIGHTS, SPEC = "model.safetensors", "model.yaml"


def write_weights(engine: Engine, folder: Path) -> None:
    """Write the model's state dict in float32, whole on one rank, and its spec beside it."""
    tensors = {name: full(tensor).cpu().contiguous() for name, tensor in engine.model.state_dict().items()}
    if not engine.world.leads:
        return
    write_atomic(folder / SPEC, spec_yaml(_as_trained(engine.config)), force=True)
    path, scratch = folder / WEIGHTS, folder / f".{WEIGHTS}"
    try:
        with explained(path, "write there"):
            save_file(tensors, scratch, metadata={"format": "pt"})
            shutil.copymode(folder / SPEC, scratch)  # safetensors makes files that nobody else may read
            with scratch.open("rb") as stream:
                os.fsync(stream.fileno())
            os.replace(scratch, path)
    except SafetensorError as error:
        raise BadInput(f"{path}: cannot write there: {error}", "make room, then run the same command again") from None
    finally:
        scratch.unlink(missing_ok=True)


def _as_trained(config: TrainConfig) -> ModelSpec:
    """The spec with the residual scale that the run had, which the command line may have chosen."""
    if scale_of(config.spec, None) == config.residual_scale:
        return config.spec
    loop = Loop() if config.spec.loop is None else config.spec.loop
    stated = loop.model_dump(exclude_unset=True) | {"residual_scale": config.residual_scale}
    return config.spec.changed(loop=stated)


def spec_yaml(spec: ModelSpec) -> str:
    """A spec as a YAML file that reads back as the same spec."""
    from ruamel.yaml import YAML

    yaml, stream = YAML(typ="safe", pure=True), io.StringIO()
    yaml.default_flow_style = False
    yaml.dump(spec.model_dump(mode="json", exclude_unset=True), stream)
    return stream.getvalue()


def read_model(folder: Path, device: str = "cpu") -> LoopedTransformer:
    """The trained model of a run's folder.

    Raises:
        BadInput: The run has not ended, or its files do not fit each other.
    """
    path = folder / WEIGHTS
    if not path.is_file():
        raise BadInput(f"{folder}: holds no {WEIGHTS}: the run has not ended", "run the same command again")
    spec = validate(ModelSpec, load(read_text(folder / SPEC, "spec file"), str(folder / SPEC)))
    with safe_open(path, framework="pt", device=device) as stream:
        tensors = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118 (no mapping)
    balance = "bias" if any(name.endswith("router.bias_E") for name in tensors) else "loss"
    with torch.device("meta"):
        model = LoopedTransformer(spec, balance=balance)
    try:
        model.load_state_dict(tensors, assign=True)
    except RuntimeError as error:
        raise BadInput(f"{path}: its weights are not those of {folder / SPEC}: {error}") from None
    return model.eval()
