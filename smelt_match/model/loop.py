"""The looped Transformer: blocks stored once, executed in the order of a layout's visits.

Shapes: B rows, S tokens in a row, H width, V vocabulary, E experts.
Source: arXiv 2609.01343v3, Sec. 3.1 and Eq. 8 and 9.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint as checkpointed

from smelt_match.errors import BadInput
from smelt_match.model.block import Block
from smelt_match.model.cache import KeysAndValues, KVCache, Slot, slots_of
from smelt_match.model.feed_forward import Balance, MixtureOfExperts
from smelt_match.model.initial import initialize
from smelt_match.model.norm import norm
from smelt_match.model.reach import Reach, packed, rows
from smelt_match.model.rotary import Rotation
from smelt_match.model.router import Router
from smelt_match.model.support import BALANCES, check_buildable, check_choice, kept_loop, scale_of, vocabulary
from smelt_match.spec.loop import Loop
from smelt_match.spec.model import ModelSpec

# The visit from 0, the residual stream before and after it (B, S, H), and how it used its experts.
Watch = Callable[[int, Tensor, Tensor, Balance | None], None]


class Output(NamedTuple):
    """What a forward pass returns.

    Attributes:
        logits_BSV: Scores of the next token.
        aux_loss: The mean of the load-balancing losses of all visits with experts, without a coefficient: 1 where
            experts are equally probable (the mean over layers as in MegaBlocks, which OLMoE trained with). 0 without
            experts, and where a bias balances.
    """

    logits_BSV: Tensor
    aux_loss: Tensor


class LoopedTransformer(nn.Module):
    """A decoder-only mixture-of-experts Transformer with any layout; an unlooped model is the layout ``none``.

    Under ``torch.device("meta")`` it takes no memory; `initialize` sets the weights once it has some.

    Args:
        spec: The model.
        vocab_size: V, where the spec does not state it.
        balance: ``loss``: the balancing loss is returned, for the caller to weigh. ``bias``: no loss; a bias in each
            router's selection, moved by `update_router_bias`.
        checkpoint: Whether to compute each visit again in the backward pass instead of keeping its activations.
        residual_scale: ``1/r`` scales each update of a block with r visits by 1/r; ``1`` does not. None
            takes what the spec states, and 1/r where it states nothing.

    Raises:
        BadInput: The spec has parts that cannot be built yet (each is named), or states no vocabulary.
    """

    def __init__(
        self,
        spec: ModelSpec,
        vocab_size: int | None = None,
        balance: str = "loss",
        checkpoint: bool = False,
        residual_scale: str | None = None,
    ) -> None:
        super().__init__()
        check_choice("balance", balance, BALANCES)
        check_buildable(spec)
        scale = scale_of(spec, residual_scale)
        self.spec, self.vocab_size, self.balance = spec, vocabulary(spec, vocab_size), balance
        self.checkpoint = checkpoint
        self.compiled = False  # whether each block is, by itself
        self.visits = spec.visits.visits
        self.loop = spec.loop or Loop()
        # Its own initialisation would be thrown away, and on the meta device it imports half of torch's compiler.
        weight = torch.empty(self.vocab_size, spec.hidden_size)
        self.embedding = nn.Embedding(self.vocab_size, spec.hidden_size, _weight=weight)
        self.blocks = nn.ModuleList(Block(spec, index, balance, scale) for index in range(spec.num_layers))
        self.final_norm = norm(spec.hidden_size, spec.rms_norm_eps, spec.norm_bias) if spec.final_norm else None
        self.head = None if spec.tie_word_embeddings else nn.Linear(spec.hidden_size, self.vocab_size, bias=False)
        initialize(self)

    def forward(
        self,
        tokens_BS: Tensor,
        segment_ids_BS: Tensor | None = None,
        cache: KVCache | None = None,
        last_only: bool = False,
        watch: Watch | None = None,
    ) -> Output:
        """Predict the next token at each position.

        Args:
            tokens_BS: Token ids, int64.
            segment_ids_BS: The document of each token in a packed row, as runs of equal integers; None for one
                document a row. Attention stays within documents, and positions restart.
            cache: Keys and values of earlier tokens, to be extended by these; only without gradients.
            last_only: Whether to score the last position only, as (B, 1, V).
            watch: Called after each visit, with what it changed.

        Raises:
            BadInput: The tokens are no integers of shape (rows, tokens), or there are none; or, on a CPU, one of them
                is not in the vocabulary.
        """
        if tokens_BS.dim() != 2 or tokens_BS.numel() == 0:
            shape = tuple(tokens_BS.shape)
            raise BadInput(f"tokens: shape (rows, tokens) with at least one of each is wanted, found {shape}")
        if tokens_BS.dtype not in (torch.int64, torch.int32):
            raise BadInput(f"tokens: int64 ids are wanted, found {tokens_BS.dtype}")
        reach = self._reach(tokens_BS, segment_ids_BS, cache)
        rotation = Rotation(reach.positions, self.spec.head_dim, self.spec.rope_theta)
        x_BSH, losses = self._embed(tokens_BS), []
        past = 0 if cache is None else cache.tokens
        kept: dict[int, KeysAndValues | None] = {}  # of each block's first visit, where later ones read them
        for visit, index in enumerate(self.visits):
            before_BSH = x_BSH
            first = kept.get(index)
            slot = None if cache is None or first is not None else cache.slot(visit, past)
            x_BSH, balance, kept[index] = self._visit(index, x_BSH, rotation, reach, slot, first)
            if watch is not None:
                watch(visit, before_BSH, x_BSH, balance)
            if balance is not None:
                losses.append(balance.loss)
                if self.balance == "bias" and self.training and cache is None:
                    self._router(index).count(balance.load_E)
        aux_loss = torch.stack(losses).mean() if losses else torch.zeros((), device=x_BSH.device)
        return Output(self._logits(x_BSH[:, -1:] if last_only else x_BSH), aux_loss)

    def _embed(self, tokens_BS: Tensor) -> Tensor:
        try:
            return self.embedding(tokens_BS)  # type: ignore[no-any-return]
        except IndexError:  # on a CPU torch looks for itself, on other devices it cannot tell
            least, most = (int(end) for end in tokens_BS.aminmax())
            raise BadInput(f"tokens: ids from 0 to {self.vocab_size - 1} are wanted, found {least} to {most}") from None

    def block(self, index: int) -> Block:
        """One of the stored blocks, from 0."""
        found = self.blocks[index]
        assert isinstance(found, Block)
        return found

    def compile_blocks(self) -> None:
        """Compile each block by itself, on its first visit."""
        for block in self.blocks:
            block.compile()
        self.compiled = True

    def _router(self, index: int) -> Router:
        experts = self.block(index).feed_forward
        assert isinstance(experts, MixtureOfExperts)
        return experts.router

    def _reach(self, tokens_BS: Tensor, segment_ids_BS: Tensor | None, cache: KVCache | None) -> Reach:
        B, S = tokens_BS.shape
        if cache is not None:
            if segment_ids_BS is not None:
                raise BadInput("segment_ids: a cache decodes whole rows; packed documents have no next token")
            if torch.is_grad_enabled():
                raise BadInput("a cache serves decoding, which has no gradients", "call under torch.no_grad()")
            if len(cache.places) != len(self.visits):
                raise BadInput(f"the cache is for {len(cache.places)} visits, the model has {len(self.visits)}")
            cache.check(B, S)
        if segment_ids_BS is None:
            return rows(S, 0 if cache is None else cache.tokens, tokens_BS.device)
        if segment_ids_BS.shape != tokens_BS.shape:
            shapes = tuple(segment_ids_BS.shape), tuple(tokens_BS.shape)
            raise BadInput("segment_ids: shape {} is not that of the tokens, {}".format(*shapes))
        return packed(segment_ids_BS, self.compiled)

    def _visit(
        self,
        index: int,
        x_BSH: Tensor,
        rotation: Rotation,
        reach: Reach,
        slot: Slot | None,
        first: KeysAndValues | None,
    ) -> tuple[Tensor, Balance | None, KeysAndValues | None]:
        block = self.blocks[index]
        if self.checkpoint and torch.is_grad_enabled():
            # Nothing in a block is random, so that the state of the generator need not be kept for its second run.
            found = checkpointed(
                block, x_BSH, rotation, reach, None, first, use_reentrant=False, preserve_rng_state=False
            )
        else:
            found = block(x_BSH, rotation, reach, slot, first)
        return found  # type: ignore[no-any-return]

    def _logits(self, x_BSH: Tensor) -> Tensor:
        if self.final_norm is not None:
            x_BSH = self.final_norm(x_BSH)
        return F.linear(x_BSH, self.embedding.weight if self.head is None else self.head.weight)

    def update_router_bias(self, rate: float = 1e-3) -> None:
        """Move every router's selection bias by the sign of its load error since the last call.

        Call it after each optimizer step. A block that is visited several times has one bias, for the load of all its
        visits. Rate: 0.001 as in DeepSeek-V3 (arXiv 2412.19437, Sec. 4.2). Ranks of a parallel run must add up
        ``load_E`` of their routers before.
        """
        if self.balance != "bias":
            raise BadInput(f"update_router_bias: the model was built with balance={self.balance!r}", "use 'bias'")
        for index in range(self.spec.num_layers):
            if index not in self.spec.dense:
                self._router(index).update_bias(rate)

    def new_cache(
        self, batch_size: int, max_tokens: int, policy: str | None = None, ring: int | None = None
    ) -> KVCache:
        """An empty KV cache, on the model's device and in its dtype.

        Args:
            batch_size: Rows.
            max_tokens: Tokens of a row that fit.
            policy: What it keeps (`smelt_match.model.cache`); None takes the spec's, which is ``visit`` by default.
            ring: Visits that the policy ``ring`` keeps.

        Raises:
            BadInput: There is no such policy, or the model is another function of its tokens under it.
        """
        loop = self.loop if policy is None else kept_loop(self.spec, policy, ring)
        heads = [self.block(index).attention.sizes[1:] for index in self.visits]
        weight = self.embedding.weight
        places = slots_of(self.visits, loop)
        return KVCache(heads, batch_size, max_tokens, weight.device, weight.dtype, places)
