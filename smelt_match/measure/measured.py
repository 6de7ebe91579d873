"""A spec's model, built and run: what it stores, what its passes execute, what its cache holds.

Shapes: B rows, S tokens in a row, H width, V vocabulary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from smelt_match.errors import BadInput
from smelt_match.measure.executed import by_dispatch, by_trace
from smelt_match.model.cache import KVCache
from smelt_match.model.loop import LoopedTransformer
from smelt_match.model.parameters import component_of, component_parameters
from smelt_match.model.reach import Reach
from smelt_match.spec.model import ModelSpec

HEAD = "output head"


@dataclass(frozen=True)
class Measured:
    """What was found by building and running a model, without a look at any formula of a model's cost.

    Attributes:
        params: Stored parameters by component, embeddings and head among them.
        executed: Forward FLOPs of all tokens by component, operators counted as they ran (FlopCounterMode).
        traced: The same from the nodes of a trace (fvcore, two FLOPs for each multiply-add), or None.
        train: FLOPs of the forward and the backward pass, operators counted as they ran.
        kv_bytes: What a filled cache holds.
        kv_tokens: Tokens it was filled with.
        kv_element_bytes: Bytes of one of its elements.
        kv_slots: Its slots: one for each visit, or as the loop's KV policy says.
        tokens: Tokens of the run.
        head: Whether the output head was run.
    """

    params: dict[str, int]
    executed: dict[str, int]
    traced: dict[str, int] | None
    train: int
    kv_bytes: int
    kv_tokens: int
    kv_element_bytes: int
    kv_slots: int
    tokens: int
    head: bool


class Body(LoopedTransformer):
    """The model as it is measured: the output head is left out where it is not billed.

    On the meta device the lengths of packed documents cannot be read from a tensor, so that they are told here.
    """

    head_runs: bool = True
    lengths: tuple[int, ...] = ()

    def _logits(self, x_BSH: Tensor) -> Tensor:
        if self.head_runs:
            return super()._logits(x_BSH)
        return x_BSH if self.final_norm is None else self.final_norm(x_BSH)

    def _reach(self, tokens_BS: Tensor, segment_ids_BS: Tensor | None, cache: KVCache | None) -> Reach:
        if tokens_BS.is_meta and len(self.lengths) > 1 and cache is None:
            return Reach(torch.empty(1, sum(self.lengths), dtype=torch.int64, device="meta"), lengths=self.lengths)
        return super()._reach(tokens_BS, segment_ids_BS, cache)


def measure(
    spec: ModelSpec,
    documents: Sequence[int] = (783,),
    head: bool = False,
    device: str = "meta",
    trace: bool = True,
) -> Measured:
    """Build a model, run a training step and a prompt, and count operators.

    Args:
        spec: The model; a vocabulary that it does not state is taken as 1, since a look-up costs no FLOPs.
        documents: Lengths of causal documents, packed into one row.
        head: Whether the output head is run; needs a vocabulary.
        device: ``meta`` takes no memory, whatever the size.
        trace: Whether the forward pass is traced, too.

    Raises:
        BadInput: The model cannot be built, or it runs an operator that has no formula.
    """
    if head and spec.vocab_size is None:
        raise BadInput(f"{spec.name}: the output head cannot be measured without vocab_size")
    with torch.device(device):
        model = Body(spec, None if spec.vocab_size else 1)
        model.head_runs, model.lengths = head, tuple(documents)
        tokens = torch.zeros(1, sum(documents), dtype=torch.int64)
    inputs = (tokens,) if len(documents) == 1 else (tokens, _segments(documents, tokens.device))

    def step() -> Tensor:
        output = model(*inputs)
        return output.logits_BSV.float().sum() + output.aux_loss  # type: ignore[no-any-return]

    executed, train = by_dispatch(model, step)
    traced = _components(by_trace(model, inputs)) if trace else None
    cache = _filled(model, min(documents))
    return Measured(
        params=component_parameters(model),
        executed=_components(executed),
        traced=traced,
        train=train,
        kv_bytes=_stored_bytes(cache),
        kv_tokens=cache.tokens,
        kv_element_bytes=cache.slots[0].keys_BPGD.element_size(),
        kv_slots=len(cache),
        tokens=sum(documents),
        head=head,
    )


def _segments(documents: Sequence[int], device: torch.device) -> Tensor:
    if device.type == "meta":
        return torch.empty(1, sum(documents), dtype=torch.int64, device=device)
    lengths = torch.tensor(documents, device=device)
    return torch.arange(len(documents), device=device).repeat_interleave(lengths)[None]


@torch.no_grad()
def _filled(model: Body, tokens: int) -> KVCache:
    """A cache after a prompt of this length, with room for no more."""
    cache = model.new_cache(1, tokens)
    model(torch.zeros(1, tokens, dtype=torch.int64, device=model.embedding.weight.device), cache=cache)
    short = [index for index, slot in enumerate(cache.slots) if slot.filled != tokens]
    if short:
        raise BadInput(f"{model.spec.name}: the slots {short} of its cache were not filled")
    return cache


def _stored_bytes(cache: KVCache) -> int:
    """Bytes of the storage behind every slot, each storage once."""
    storages = {}
    for slot in cache.slots:
        for tensor in (slot.keys_BPGD, slot.values_BPGC):
            storage = tensor.untyped_storage()
            storages[storage._cdata] = storage.nbytes()
    return sum(storages.values())


def _components(modules: Counter[str]) -> dict[str, int]:
    """FLOPs by the ledger's components: a module's own are its weights', an attention's own are its scores'."""
    found: Counter[str] = Counter()
    for name, count in modules.items():
        if name == "":
            found[HEAD] += count
        elif name.endswith(".attention"):
            found["attention scores"] += count
        else:
            found[component_of(f"{name}.weight")] += count
    return dict(found)
