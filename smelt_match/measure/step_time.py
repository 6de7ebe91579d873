"""Training steps timed in turn, on this device.

Shapes: B rows, S tokens in a row, H width.

A step is the sum over visits of a block's forward and backward pass: embedding, output head and optimizer are left out,
since a match does not change what they cost by much. Blocks of one shape are timed once and weighed by their visits.
Weights of one block of each shape are kept, gradients and activations of one block at a time.
"""

from __future__ import annotations

import platform
import re
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from fractions import Fraction
from pathlib import Path

import torch
from torch import Tensor

from smelt_match.errors import BadInput
from smelt_match.model.block import Block
from smelt_match.model.reach import rows
from smelt_match.model.rotary import Rotation
from smelt_match.model.support import check_buildable
from smelt_match.spec.model import ModelSpec

TOKENS = {"cpu": 1024}
ACCELERATOR_TOKENS = 16_384
BALANCE = 0.01  # the balancing loss's share in the gradient
SCOPE = "forward and backward of the blocks, not compiled, weighed by visits; no embedding, output head or optimizer"


def devices() -> list[str]:
    """Devices of this machine, by the names that torch gives them."""
    found = ["cpu"]
    kind = torch.accelerator.current_accelerator(check_available=True)
    if kind is not None:
        found += [f"{kind.type}:{index}" for index in range(torch.accelerator.device_count())]
    return found


def find_device(text: str | None) -> torch.device:
    """A device by name; without one, the first accelerator, or the CPU.

    Raises:
        BadInput: This machine has no such device.
    """
    known = devices()
    if text is None:
        return torch.device(known[min(1, len(known) - 1)])
    found = next((name for name in known if text in (name, name.removesuffix(":0"))), None)
    if found is None:
        raise BadInput(f"--device {text[:40]!r}: this machine has no such device", f"devices here: {', '.join(known)}")
    return torch.device(found)


def device_name(device: torch.device) -> str:
    """What the device is, as its maker calls it; a CPU with the threads that torch uses."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type != "cpu":
        return f"{platform.machine()} {device.type}"
    name = platform.processor() or platform.machine()
    with suppress(OSError):
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        name = found[1].strip() if found else name
    threads = torch.get_num_threads()
    return f"{name}, {threads} thread{'s' * (threads != 1)}"


def step_shape(mean: Fraction, tokens: int) -> tuple[int, int]:
    """(rows, tokens of a row) of a step: one causal document a row whose mean attended context is ``mean``, or less.

    At most ``tokens`` in all: a document that is longer is cut to them.
    """
    length = min(tokens, max(1, round(2 * mean - 1)))
    return tokens // length, length


class Side:
    """One model's step: a block of each of its shapes, with random weights.

    Args:
        spec: The model.
        device: Where it runs.
        shape: (rows, tokens of a row).
    """

    def __init__(self, spec: ModelSpec, device: torch.device, shape: tuple[int, int]) -> None:
        if spec.loop is not None and spec.loop.kv_policy == "shared":
            raise BadInput(f"{spec.name}: loop.kv_policy shared: visits that differ cannot be timed yet")
        self.device = device
        self.blocks = [(block_at(spec, index, device), visits) for index, visits in shapes(spec).items()]
        self.reach = rows(shape[1], 0, device)
        self.rotation = Rotation(self.reach.positions, spec.head_dim, spec.rope_theta)
        self.x_BSH = torch.randn(*shape, spec.hidden_size, device=device).requires_grad_()
        self.gradient_BSH = torch.randn(*shape, spec.hidden_size, device=device)

    def seconds(self) -> float:
        """One step: Σ over visits of their block's seconds."""
        return sum(visits * self._block(block) for block, visits in self.blocks)

    def _block(self, block: Block) -> float:
        start = self._now()
        with torch.autocast(self.device.type, torch.bfloat16, enabled=half(self.device)):
            y_BSH, balance, _ = block(self.x_BSH, self.rotation, self.reach)
        outputs: tuple[Tensor, ...] = (y_BSH,)
        gradients: tuple[Tensor, ...] = (self.gradient_BSH,)
        if balance is not None:
            outputs, gradients = (y_BSH, balance.loss), (self.gradient_BSH, torch.full_like(balance.loss, BALANCE))
        torch.autograd.backward(outputs, gradients)
        end = self._now()
        block.zero_grad(set_to_none=True)
        self.x_BSH.grad = None
        return end - start

    def _now(self) -> float:
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)
        return time.process_time() if processor_time(self.device) else time.perf_counter()


def processor_time(device: torch.device) -> bool:
    """Whether seconds are the processor's: with one thread they are free of what else the machine does."""
    return device.type == "cpu" and torch.get_num_threads() == 1


def half(device: torch.device) -> bool:
    """Whether products run in bf16, under autocast over float32 weights."""
    return device.type == "cuda"


def shapes(spec: ModelSpec) -> dict[int, int]:
    """Visits of each shape of block, by the first block that has it."""
    counts = spec.visits.counts
    plain = (spec.num_attention_heads, spec.num_key_value_heads)
    first: dict[tuple[object, ...], int] = {}
    found: Counter[int] = Counter()
    for index, visits in enumerate(counts):
        key = (index in spec.dense, plain if visits == 1 else spec.loop_heads)
        found[first.setdefault(key, index)] += visits
    return dict(found)


def block_at(spec: ModelSpec, index: int, device: torch.device) -> Block:
    """A block with random weights, which takes no memory before it is on its device."""
    with torch.device("meta"):
        block = Block(spec, index, "loss", "1/r")
    block.to_empty(device=device)
    with torch.no_grad():
        for parameter in block.parameters():
            if parameter.dim() > 1:
                parameter.uniform_(-0.03, 0.03)  # of standard deviation 0.02, as `initial` has it, but quickly drawn
            else:
                parameter.fill_(1.0)
    return block


class StepTimer:
    """Times models' steps in turn with the baseline's.

    Args:
        baseline: The model that all are compared with. Its blocks are built once.
        mean: Mean attended context of the steps.
        device: Its name, or None for the first accelerator or the CPU.
        tokens: At most so many in a step; None for 1,024 on a CPU and 16,384 elsewhere.
        build: Makes one model's step; a test may put another in its place.

    Raises:
        BadInput: There is no such device, too few tokens, or a baseline that cannot be built.
    """

    def __init__(
        self,
        baseline: ModelSpec,
        mean: Fraction,
        device: str | None = None,
        tokens: int | None = None,
        build: Callable[[ModelSpec, torch.device, tuple[int, int]], Side] = Side,
    ) -> None:
        check_buildable(baseline)
        self.baseline, self.device, self.build = baseline, find_device(device), build
        wanted = tokens if tokens is not None else TOKENS.get(self.device.type, ACCELERATOR_TOKENS)
        if wanted < 1:
            raise BadInput(f"--tokens {wanted}: a step has at least 1 token")
        self.shape = step_shape(mean, wanted)
        self._reference: Side | None = None

    @property
    def identity(self) -> dict[str, str]:
        """The device and the step, in words that can be compared."""
        B, S = self.shape
        return {
            "step": SCOPE,
            "device": device_name(self.device),
            "dtype": "bfloat16 autocast over float32 weights" if half(self.device) else "float32",
            "clock": "processor time" if processor_time(self.device) else "wall time",
            "tokens_per_step": str(B * S),
            "tokens_per_row": str(S),
            "torch": torch.__version__.split("+")[0],
        }

    def rounds(self, specs: Sequence[ModelSpec]) -> Generator[tuple[float, ...], None, None]:
        """Without end: seconds of the baseline's step, then of each model's, timed in turn.

        Every other round runs backwards, so that none always follows the same. The first step of each is not timed.

        Raises:
            BadInput: The device has too little memory.
        """
        try:
            if self._reference is None:
                self._reference = self._warm(self.baseline)
            sides = [self._reference, *map(self._warm, specs)]
            order = list(enumerate(sides))
            while True:
                seconds = {index: side.seconds() for index, side in order}
                yield tuple(seconds[index] for index in range(len(sides)))
                order.reverse()
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and not re.search("out of memory|allocate memory", str(error)):
                raise
            name = device_name(self.device)
            raise BadInput(f"{name}: has too little memory for this step", "fewer --tokens, or --device") from None

    def _warm(self, spec: ModelSpec) -> Side:
        side = self.build(spec, self.device, self.shape)
        side.seconds()
        return side
