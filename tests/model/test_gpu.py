"""What runs otherwise on a GPU: FlexAttention for packed documents and grouped GEMM for experts, in bf16."""

from __future__ import annotations

import pytest
import torch

from smelt_match.model.generate import generate
from smelt_match.model.loop import LoopedTransformer
from tests.model.tiny import V, tiny

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

WIDE = {"hidden_size": 64, "head_dim": 32, "expert_intermediate_size": 24}
SEGMENTS = torch.tensor([[0] * 100 + [1] * 156, [0] * 256])


def _pair() -> tuple[LoopedTransformer, LoopedTransformer]:
    here = LoopedTransformer(tiny("mid50x2", **WIDE))
    there = LoopedTransformer(tiny("mid50x2", **WIDE)).cuda()
    there.load_state_dict(here.state_dict())
    return here, there


@pytest.mark.parametrize("segments", [None, SEGMENTS])
@pytest.mark.parametrize("autocast", [False, True])
def test_a_gpu_computes_what_the_cpu_computes(segments: torch.Tensor | None, autocast: bool) -> None:
    here, there = _pair()
    ids = torch.randint(0, V, (2, 256))
    expected = here(ids, segments)
    with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
        found = there(ids.cuda(), None if segments is None else segments.cuda())
    tolerance = {"rtol": 0.1, "atol": 0.02} if autocast else {"rtol": 1e-2, "atol": 1e-3}
    torch.testing.assert_close(found.logits_BSV.float().cpu(), expected.logits_BSV, **tolerance)
    (found.logits_BSV.float().square().mean() + found.aux_loss).backward()
    assert all(parameter.grad is not None for parameter in there.parameters())


def test_a_gpu_continues_as_the_cpu_does() -> None:
    here, there = _pair()
    prompt = torch.randint(0, V, (2, 5))
    assert torch.equal(generate(there, prompt.cuda(), 6).cpu(), generate(here, prompt, 6))
