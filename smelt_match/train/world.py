"""The ranks of a run: one process, or those that torchrun started, with the mesh that weights are sharded over."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from smelt_match.errors import BadInput
from smelt_match.model.loop import LoopedTransformer


@dataclass(frozen=True)
class World:
    """Where this process stands among the ranks.

    Attributes:
        device: What it computes on.
        rank, size: Of all ranks.
        mesh: What weights are sharded over, or None for one process: all ranks, or ranks of a node beside nodes.
    """

    device: torch.device
    rank: int = 0
    size: int = 1
    mesh: DeviceMesh | None = None

    @property
    def leads(self) -> bool:
        """Whether this rank writes what is written once."""
        return self.rank == 0

    def total(self, values: Tensor) -> Tensor:
        """The sum over ranks; it changes ``values``."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def any(self, here: bool) -> bool:
        """Whether something is so on any rank."""
        if self.size == 1:
            return here
        return bool(self.total(torch.tensor(int(here), device=self.device)))

    def wait(self) -> None:
        """Until every rank is here."""
        if self.size > 1:
            dist.barrier()

    def agree(self, fault: str) -> list[str]:
        """What went wrong on any rank, so that all stop together: each rank's sentence, empty ones left out."""
        if self.size == 1:
            return [fault] if fault else []
        found: list[str | None] = [None] * self.size
        dist.all_gather_object(found, fault)
        return [text for text in found if text]

    def shard(self, model: LoopedTransformer) -> None:
        """Shard the weights of each block, and what is outside of blocks, over the mesh (FSDP2).

        A block is sharded once however often it is visited: each visit gathers its weights anew, and its gradient is
        reduced once for each visit, and added up. With a mesh of nodes and ranks (HSDP), weights are sharded within a
        node and gradients averaged over nodes.
        """
        if self.mesh is None:
            return
        for block in model.blocks:
            fully_shard(block, mesh=self.mesh)
        fully_shard(model, mesh=self.mesh)
        assert isinstance(model, FSDPModule)


def check_device(device: str) -> None:
    """Refuse a device that is not there.

    Raises:
        BadInput: No GPU is found, or it is no device at all.
    """
    if device == "cuda" and not torch.cuda.is_available():
        why = "this torch was built without CUDA" if torch.version.cuda is None else "torch finds no GPU"
        raise BadInput(f"--device cuda: {why}", "train with --device cpu, or install a torch for your GPU")
    if device not in ("cpu", "cuda"):
        raise BadInput(f"--device {device[:40]!r} is not one of cpu, cuda")


def default_device() -> str:
    """``cuda`` where there is a GPU, else ``cpu``."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def ranks_started() -> int:
    """Ranks that torchrun started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


@contextmanager
def open_world(device: str) -> Iterator[World]:
    """The ranks of this run, from the variables that torchrun sets. A group of processes that is there already is used.

    Raises:
        BadInput: The device is not there, or another rank has ended.
    """
    check_device(device)
    size, ours = ranks_started(), False
    if size > 1 and not dist.is_initialized():
        dist.init_process_group("nccl" if device == "cuda" else "gloo")
        ours = True
    try:
        if not dist.is_initialized() or dist.get_world_size() == 1:
            yield World(torch.device(device))
            return
        here = torch.device(device)
        if device == "cuda":
            here = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
            torch.cuda.set_device(here)
        yield World(here, dist.get_rank(), dist.get_world_size(), _mesh(device, dist.get_world_size()))
    except RuntimeError as error:
        if size == 1 or not _is_lost_rank(error):
            raise
        why = str(error).strip().splitlines()[0][:200]
        raise BadInput(
            f"another rank cannot be reached any more: {why}", "see what it printed; the same command goes on"
        ) from error
    finally:
        if ours:
            dist.destroy_process_group()


def _is_lost_rank(error: RuntimeError) -> bool:
    """Gloo has no error of its own; NCCL has."""
    return isinstance(error, dist.DistBackendError) or "gloo" in str(error).lower()


def _mesh(device: str, size: int) -> DeviceMesh:
    local = int(os.environ.get("LOCAL_WORLD_SIZE", size))
    if local >= size:
        return init_device_mesh(device, (size,), mesh_dim_names=("shard",))
    if size % local:
        raise BadInput(f"{size} ranks on nodes of {local}: every node must have as many")
    return init_device_mesh(device, (size // local, local), mesh_dim_names=("replicate", "shard"))
