"""What runs otherwise on a GPU, against the reference path: each check says how far the two are apart.

Shapes: T tokens, H width, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from gpu_models import Bench
from torch import Tensor

from smelt_match.measure.step_time import half
from smelt_match.model.experts import grouped
from smelt_match.model.loop import LoopedTransformer
from smelt_match.model.segments import expert_segments
from smelt_match.spec.model import ModelSpec

V = 128


def small(bench: Bench) -> ModelSpec:
    """A small looped model whose widths the GPU's own paths take."""
    H = bench.sizes.check_width
    return ModelSpec(
        name="small", hidden_size=H, num_layers=4, num_experts=8, experts_per_token=2, expert_intermediate_size=H // 2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=max(16, H // 4), vocab_size=V, layout="mid50x2",
    )  # fmt: skip


def compared(found: Tensor, expected: Tensor, limit: float) -> dict[str, Any]:
    """How far two results are apart, as a share of the expected one's size."""
    found, expected = found.detach().float().cpu(), expected.detach().float().cpu()
    error = float((found - expected).norm() / expected.norm())
    return {"relative_error": error, "limit": limit, "agrees": error <= limit}


def packed_masks(bench: Bench) -> dict[str, Any]:
    """Packed documents: FlexAttention here in bf16 against one document after the other on a CPU in float32."""
    here = bench.model(small(bench))
    there = LoopedTransformer(small(bench))
    there.load_state_dict({name: tensor.cpu() for name, tensor in here.state_dict().items()})
    ids = torch.randint(0, V, (2, 256))
    segments = (torch.arange(256) >= torch.tensor([[100], [256]])).long()
    with torch.autocast(bench.device.type, torch.bfloat16, enabled=half(bench.device)):
        out = here(ids.to(bench.device), segments.to(bench.device))
    out.logits_BSV.float().square().mean().backward()
    finite = all(p.grad is not None and bool(p.grad.isfinite().all()) for n, p in here.named_parameters())
    with torch.no_grad():
        return compared(out.logits_BSV, there(ids, segments).logits_BSV, 0.03) | {"gradients_are_finite": finite}


def grouped_gemm(bench: Bench) -> dict[str, Any]:
    """Experts by bf16 grouped GEMM against expert after expert in float32, forward and backward."""
    block = bench.model(small(bench)).block(0)
    moe = block.feed_forward
    x_TH = torch.randn(512, bench.sizes.check_width, device=bench.device)
    with torch.no_grad():
        routing = moe.router(x_TH)
    results = []
    for dtype in (torch.bfloat16, torch.float32):
        x, up, down = (t.detach().to(dtype).requires_grad_() for t in (x_TH, moe.experts.up, moe.experts.down))
        weights = routing.weights_TK.to(dtype)
        if dtype == torch.bfloat16:
            y = grouped(x, routing._replace(weights_TK=weights), up, down, None, None, True)
        else:
            y = expert_segments(x, weights, routing.experts_TK, up, down, None, None, True)
        y.float().square().sum().backward()
        results.append({"output": y, "x": x.grad, "up": up.grad, "down": down.grad})
    return {name: compared(results[0][name], results[1][name], 0.03) for name in results[0]}


def one_graph(bench: Bench) -> dict[str, Any]:
    """A step compiled as one graph, which a break would end with an error, against the same step eagerly."""
    model = bench.model(small(bench))
    ids = torch.randint(0, V, (2, 128), device=bench.device)
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend=bench.sizes.compiler)
    results = []
    for run in (compiled, model):
        out = run(ids)
        (out.logits_BSV.square().mean() + out.aux_loss).backward()
        gradient = model.block(1).attention.query.weight.grad
        assert gradient is not None
        results.append((out.logits_BSV, gradient.clone()))
        model.zero_grad(set_to_none=True)
    names = ("logits", "gradient")
    parts = {name: compared(ours, theirs, 0.01) for name, ours, theirs in zip(names, *results, strict=True)}
    return {"graph_breaks": 0, "compiler": bench.sizes.compiler, **parts}
