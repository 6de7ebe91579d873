"""From a spec and its weights to a checkpoint folder."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from smelt_match.errors import BadInput, MissingExtra
from smelt_match.export.checkpoint import tensors
from smelt_match.export.checkpoint.configs import MODELLING_FILE, OURS, looped_config, stock_config
from smelt_match.export.checkpoint.limits import check_looped, stock_class
from smelt_match.folders import new_folder
from smelt_match.model.initial import initialize
from smelt_match.model.loop import LoopedTransformer
from smelt_match.spec.model import ModelSpec

try:
    from safetensors import SafetensorError
    from safetensors.torch import load_file, save_file
except ImportError as missing:
    raise MissingExtra(
        f"exporting a checkpoint: {missing.name or 'safetensors'} is not installed", "pip install 'smelt-match[hf]'"
    ) from missing

MAX_SHARD_BYTES = 5 * 10**9
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def build(spec: ModelSpec, vocab_size: int | None, weights: Path | None, seed: int) -> LoopedTransformer:
    """The model with weights of a file (a safetensors file of its state dict), or freshly initialised from a seed."""
    with torch.device("meta"):
        model = LoopedTransformer(spec, vocab_size)
    if weights is not None:
        model.load_state_dict(_read(weights, model), assign=True)
        return model
    _check_memory(model)
    model.to_empty(device="cpu")
    initialize(model, torch.Generator().manual_seed(seed))
    return model


def _check_memory(model: LoopedTransformer) -> None:
    needed = sum(parameter.numel() for parameter in model.parameters()) * 4
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there:
        raise BadInput(
            f"{model.spec.name}: its weights take {needed:,} bytes, and this machine has {there:,} of memory"
        )


def _read(path: Path, model: LoopedTransformer) -> dict[str, Tensor]:
    """The state dict in a file, if it is exactly that of the model."""
    if not path.is_file():
        raise BadInput(f"{path}: no such weights file")
    try:
        found = load_file(path)
    except SafetensorError as error:
        raise BadInput(f"{path}: not a safetensors file: {error}") from error
    wanted = model.state_dict()
    faults = [f"{name} is missing" for name in wanted if name not in found]
    for name, tensor in found.items():
        if name not in wanted:
            faults.append(f"{name} is no weight of {model.spec.name}")
        elif tensor.shape != wanted[name].shape:
            faults.append(f"{name} has the shape {tuple(tensor.shape)}, not {tuple(wanted[name].shape)}")
        elif not tensor.is_floating_point():
            faults.append(f"{name} has the dtype {tensor.dtype}")
    if faults:
        more = [f"and {len(faults) - 8} more"] if len(faults) > 8 else []
        raise BadInput("\n".join(f"{path}: {fault}" for fault in [*faults[:8], *more]))
    return found


def export_unrolled(model: LoopedTransformer, path: Path, dtype: str = "float32", force: bool = False) -> str:
    """Write the unrolled model as a stock checkpoint: Mixtral, or Qwen3-MoE where it has query and key norms.

    Returns:
        The class that runs it.

    Raises:
        BadInput: No stock class runs it (every reason is told), or the folder cannot be written.
    """
    model_type = stock_class(model.spec)
    _check_balance(model)
    config = stock_config(model.spec, model.vocab_size, dtype, model_type)
    with new_folder(path, force, OURS) as folder:
        _write_weights(folder, lambda: tensors.unrolled(model, model_type), DTYPES[dtype])
        _write_json(folder / "config.json", config)
    return str(config["architectures"][0])


def export_looped(model: LoopedTransformer, path: Path, dtype: str = "float32", force: bool = False) -> str:
    """Write the looped model, weights stored once, with a modelling file that transformers loads from the folder.

    Returns:
        The class that runs it.

    Raises:
        BadInput: The modelling file does not implement all of the spec, or the folder cannot be written.
    """
    check_looped(model.spec)
    _check_balance(model)
    counts = model.spec.visits.counts
    scaled = all(model.block(index).scale == 1 / count for index, count in enumerate(counts))
    config = looped_config(model.spec, model.vocab_size, dtype, "1/r" if scaled else "1")
    with new_folder(path, force, OURS) as folder:
        _write_weights(folder, lambda: tensors.looped(model), DTYPES[dtype])
        _write_json(folder / "config.json", config)
        shutil.copyfile(Path(__file__).with_name(f"{MODELLING_FILE}.py"), folder / f"{MODELLING_FILE}.py")
    return str(config["architectures"][0])


def _check_balance(model: LoopedTransformer) -> None:
    if model.balance != "loss":
        raise BadInput(f"{model.spec.name}: balance={model.balance!r}: a selection bias cannot be exported yet")


def _write_json(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def _write_weights(folder: Path, named: Callable[[], tensors.Named], dtype: torch.dtype) -> None:
    """One file, or shards with an index. ``named`` yields names and tensors, in the same order at each call."""
    shards = _shards({name: tensor.numel() * dtype.itemsize for name, tensor in named()}, MAX_SHARD_BYTES)
    where: dict[str, str] = {}
    waiting: dict[str, Tensor] = {}
    free = shutil.disk_usage(folder).free
    needed = sum(sum(sizes.values()) for sizes in shards)
    if needed > free:
        raise BadInput(f"{folder.parent}: {needed:,} bytes are to be written, and {free:,} are free")
    last = {list(sizes)[-1]: index for index, sizes in enumerate(shards)}
    for name, tensor in named():
        # A copy of its own: safetensors refuses tensors that share memory, and copies of a block would.
        waiting[name] = tensor.detach().to(dtype).clone(memory_format=torch.contiguous_format)
        if name not in last:
            continue
        file = "model.safetensors"
        if len(shards) > 1:
            file = f"model-{last[name] + 1:05}-of-{len(shards):05}.safetensors"
        try:
            save_file(waiting, folder / file, metadata={"format": "pt"})
        except SafetensorError as error:
            raise BadInput(f"{folder.parent}: cannot write the weights: {error}") from error
        where |= dict.fromkeys(waiting, file)
        waiting = {}
    if len(shards) > 1:
        index = {"metadata": {"total_size": needed}, "weight_map": where}
        _write_json(folder / "model.safetensors.index.json", index)


def _shards(sizes: dict[str, int], limit: int) -> list[dict[str, int]]:
    """Consecutive tensors in groups of at most ``limit`` bytes, or of one larger tensor."""
    groups: list[dict[str, int]] = [{}]
    filled = 0
    for name, size in sizes.items():
        if groups[-1] and filled + size > limit:
            groups.append({})
            filled = 0
        groups[-1][name] = size
        filled += size
    return groups
