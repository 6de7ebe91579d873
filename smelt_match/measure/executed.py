"""FLOPs of a model that is run, counted by two programs that know nothing of the ledger.

`by_dispatch` counts operators as they are executed, forward and backward (torch.utils.flop_counter.FlopCounterMode).
`by_trace` counts the nodes of a traced forward pass (fvcore's FlopCountAnalysis, which counts multiply-adds).
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from smelt_match.errors import BadInput
from smelt_match.measure.formulas import ATTENTION, KNOWN, TRACED, attention, costs_nothing, unknown


class Witness(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operator that is executed, and refuses one that would count as nothing without being cheap."""

    supports_higher_order_operators = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        packet = getattr(func, "_overloadpacket", func)
        name = packet._qualified_op_name if packet is not func else f"higher_order::{func.name()}"
        if packet not in KNOWN and not costs_nothing(name):
            unknown([name])
        return func(*args, **(kwargs or {}))


class WholeAttention(TorchFunctionMode):
    """Keeps attention one operator where it has no kernel of its own.

    On the meta device torch takes it apart into products of all pairs, and a causal half could not be told any more:
    there our operator takes its place, which has the same shapes. Elsewhere the kernels that do not take it apart are
    counted as they are.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            query, key, value = args[:3]
            if kwargs.get("attn_mask") is not None:
                unknown(["attention with a mask: shapes do not say how many pairs it leaves"])
            if query.is_meta:
                return attention(query, key, value, kwargs.get("is_causal", False))
            if torch._fused_sdp_choice(query, key, value, **kwargs) == 0:
                unknown(["attention in plain products (no kernel for these shapes)"])
        return func(*args, **kwargs)


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit warns of every size that is read, and of itself
        yield


def by_dispatch(model: nn.Module, run: Callable[[], Tensor]) -> tuple[Counter[str], int]:
    """Run a model and the backward pass of what it returns, and count every operator.

    Args:
        model: For the names of its modules.
        run: A forward pass that ends in one number.

    Returns:
        Forward FLOPs of each module without those within it, and those of both passes.

    Raises:
        BadInput: An operator has no formula.
    """
    with _quiet(), Witness(), FlopCounterMode(display=False, custom_mapping=dict(ATTENTION)) as counter:  # type: ignore[no-untyped-call]
        with WholeAttention():
            loss = run()
        forward = {name: sum(counts.values()) for name, counts in counter.get_flop_counts().items()}
        loss.backward()  # type: ignore[no-untyped-call]
    root = type(model).__name__
    inside = {name.removeprefix(root).removeprefix("."): count for name, count in forward.items() if name != "Global"}
    return _within_modules(inside, forward.get("Global", 0)), counter.get_total_flops()


def by_trace(model: nn.Module, inputs: tuple[Any, ...]) -> Counter[str]:
    """Trace a model's forward pass and count its nodes.

    Returns:
        Forward FLOPs of each module without those within it.

    Raises:
        BadInput: An operator has no formula.
    """
    with _quiet():
        from fvcore.nn import FlopCountAnalysis  # type: ignore[import-untyped]

        analysis = FlopCountAnalysis(model, inputs).set_op_handle(**TRACED)
        analysis.unsupported_ops_warnings(False).uncalled_modules_warnings(False).tracer_warnings("none")
        inside = {name: 2 * int(count) for name, count in analysis.by_module().items()}
        without = sorted(name for name in analysis.unsupported_ops() if not costs_nothing(name))
    if without:
        unknown(without)
    return _within_modules(inside, inside.get("", 0))


def _within_modules(inside: Mapping[str, int], total: int) -> Counter[str]:
    """What each module costs without the modules within it; lists of modules are never called, and have no entry.

    Raises:
        BadInput: The modules do not add up to the total.
    """
    found = Counter({name: count for name, count in inside.items() if count})
    for name, count in inside.items():
        parent = name
        while count and parent:
            parent = parent.rpartition(".")[0]
            if parent in inside:
                found[parent] -= count
                break
    if found.total() != total or any(count < 0 for count in found.values()):
        raise BadInput(f"cannot be measured: of {total:,} FLOPs, {found.total():,} are within modules")
    return +found
