"""Several ranks in processes of their own, over gloo."""

from __future__ import annotations

import os
import socket
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _enter(rank: int, work: Callable[..., None], args: tuple[Any, ...], environment: dict[str, str]) -> None:
    os.environ.update(environment, RANK=str(rank), LOCAL_RANK=str(rank))
    torch.set_num_threads(1)
    try:
        work(*args)
    except BaseException:
        traceback.print_exc()
        raise


def run_ranks(size: int, work: Callable[..., None], *args: Any, per_node: int | None = None) -> None:
    """Call ``work`` in each of some ranks, as torchrun would; an error in one ends all."""
    environment = {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(per_node or size), "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    mp.start_processes(_enter, (work, args, environment), nprocs=size, start_method="spawn")  # type: ignore[no-untyped-call]


def save_gradients(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Leave tensors for the test to read."""
    from safetensors.torch import save_file

    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "gradients.safetensors")
