"""Packed documents: each is computed as if it were alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from smelt_match.errors import BadInput
from smelt_match.model import attention, reach
from smelt_match.model.loop import LoopedTransformer
from tests.model.tiny import VARIANTS, build, tiny, tokens

SEGMENTS = torch.tensor(
    [[5, 5, 5, 2, 2, 2, 2, 9, 5, 5, 5], [0] * 11, [0] * 10 + [1], [0, 1, 2, 3, 4, 4, 4, 4, 4, 4, 4]]
)


def _alone(model: LoopedTransformer, ids: Tensor) -> Tensor:
    """Logits of every document of `SEGMENTS` by itself, put back into rows."""
    rows = []
    for row, segments in zip(ids, SEGMENTS, strict=True):
        lengths = torch.unique_consecutive(segments, return_counts=True)[1].tolist()
        rows.append(torch.cat([model(document[None]).logits_BSV[0] for document in row.split(lengths)]))
    return torch.stack(rows)


@pytest.mark.parametrize("variant", VARIANTS)
def test_packed_documents_have_the_logits_of_the_documents_alone(variant: str) -> None:
    model, ids = build(tiny("mid50x2", **VARIANTS[variant])), tokens(4)
    torch.testing.assert_close(model(ids, SEGMENTS).logits_BSV, _alone(model, ids), rtol=1e-3, atol=1e-4)


def test_packing_matters() -> None:
    model, ids = build(tiny()), tokens(4)
    together, apart = model(ids).logits_BSV, model(ids, SEGMENTS).logits_BSV
    assert torch.allclose(together[1], apart[1], rtol=1e-3, atol=1e-4)  # one document
    assert not torch.allclose(together[0], apart[0], rtol=1e-3, atol=1e-4)


def test_positions_restart_with_each_document_and_an_id_may_return() -> None:
    found = reach.packed(SEGMENTS)
    assert found.positions[0].tolist() == [0, 1, 2, 0, 1, 2, 3, 0, 0, 1, 2]
    assert found.positions[1].tolist() == list(range(11))
    assert found.lengths == (3, 4, 1, 3, 11, 10, 1, 1, 1, 1, 1, 7)


def test_rows_of_one_document_each_are_plainly_causal() -> None:
    found = reach.packed(torch.tensor([[3, 3, 3], [1, 1, 1]]))
    assert found.lengths is None
    assert found.mask is None


def test_compiled_blocks_get_a_mask_whatever_the_documents() -> None:
    for segments in (SEGMENTS, torch.tensor([[3, 3, 3], [1, 1, 1]])):
        found, expected = reach.packed(segments, compiled=True), _by_mask(segments)
        assert found.lengths is None
        assert found.mask is not None
        assert torch.equal(found.mask, expected.mask)
        assert torch.equal(found.positions, expected.positions)


def _by_mask(segments: Tensor) -> reach.Reach:
    index = torch.arange(segments.shape[1])
    document = torch.cat([torch.zeros(len(segments), 1), (segments[:, 1:] != segments[:, :-1]).float()], 1).cumsum(1)
    mask = (document[:, None, :, None] == document[:, None, None, :]) & (index[:, None] >= index)
    return reach.Reach(reach.packed(segments).positions, mask=mask)


def test_a_mask_and_a_block_mask_give_what_documents_one_by_one_give(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.nn.attention.flex_attention import flex_attention

    monkeypatch.setattr(attention, "_flex", lambda: flex_attention)  # compiled on a GPU; the formula is the same
    q, k, v = torch.randn(4, 11, 4, 16), torch.randn(4, 11, 2, 16), torch.randn(4, 11, 2, 16)
    packed = reach.packed(SEGMENTS)
    expected = attention.attend(q, k, v, packed)
    torch.testing.assert_close(attention.attend(q, k, v, _by_mask(SEGMENTS)), expected)
    document = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2, 3, 3, 3], [0] * 11, [0] * 10 + [1], [0, 1, 2, 3, *[4] * 7]])
    blocks = reach.Reach(packed.positions, blocks=reach._block_mask(document))
    with pytest.warns(UserWarning, match="unfused"):
        torch.testing.assert_close(attention.attend(q, k, v, blocks), expected)


@pytest.mark.parametrize(
    ("segments", "says"),
    [
        (torch.zeros(2, 7, dtype=torch.int64), r"\(2, 7\) is not that of the tokens, \(2, 11\)"),
        (torch.zeros(2, 11), "float32"),
    ],
)
def test_segment_ids_that_do_not_fit_are_refused(segments: Tensor, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        build(tiny())(tokens(), segments)
