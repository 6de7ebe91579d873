"""A looped mixture-of-experts Transformer for Hugging Face transformers (5.4 or later).

`smelt-match export --to hf` writes this file beside the weights; it needs torch and transformers only:

    AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)

``config.visits`` lists the blocks in the order of their execution. A block is stored once and may be visited several
times; each of its updates is scaled by 1/(its visits) before it joins the residual stream (arXiv 2609.01343v3, Eq. 8
and 9), and each visit has a slot of its own in the KV cache. Attention is torch's scaled_dot_product_attention.
The loss is cross-entropy alone: the balancing loss of the routers belongs to pre-training.
"""

from dataclasses import fields

import torch
from torch import nn
from torch.nn import functional as F
from transformers import DynamicCache, GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

# transformers renamed past_key_values to cache in 5.x.
CACHE = "cache" if any(field.name == "cache" for field in fields(CausalLMOutputWithPast)) else "past_key_values"


class SmeltMatchConfig(PreTrainedConfig):
    """Dimensions, and which block runs when. ``num_hidden_layers`` counts visits, as caches do."""

    model_type = "smelt_match"

    def __init__(
        self,
        vocab_size=1024,
        hidden_size=128,
        visits=(0,),
        residual_scale="1/r",
        num_attention_heads=4,
        num_key_value_heads=2,
        loop_num_attention_heads=None,
        loop_num_key_value_heads=None,
        head_dim=32,
        qk_norm="none",
        num_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=64,
        norm_topk_prob=True,
        shared_expert_intermediate_size=None,
        shared_expert_gate=False,
        dense_blocks=(),
        intermediate_size=None,
        rope_theta=10000.0,
        rms_norm_eps=1e-6,
        initializer_range=0.02,
        max_position_embeddings=4096,
        use_cache=True,
        tie_word_embeddings=False,
        **kwargs,
    ):
        self.vocab_size, self.hidden_size = vocab_size, hidden_size
        self.visits, self.residual_scale = list(visits), residual_scale
        self.num_attention_heads, self.num_key_value_heads = num_attention_heads, num_key_value_heads
        self.loop_num_attention_heads = loop_num_attention_heads or num_attention_heads
        self.loop_num_key_value_heads = loop_num_key_value_heads or num_key_value_heads
        self.head_dim, self.qk_norm = head_dim, qk_norm
        self.num_experts, self.num_experts_per_tok = num_experts, num_experts_per_tok
        self.moe_intermediate_size, self.norm_topk_prob = moe_intermediate_size, norm_topk_prob
        self.shared_expert_intermediate_size = shared_expert_intermediate_size
        self.shared_expert_gate = shared_expert_gate
        self.dense_blocks, self.intermediate_size = list(dense_blocks), intermediate_size
        self.rope_theta, self.rms_norm_eps = rope_theta, rms_norm_eps
        self.initializer_range, self.max_position_embeddings = initializer_range, max_position_embeddings
        self.use_cache = use_cache
        kwargs.pop("num_hidden_layers", None)
        self.num_hidden_layers = len(self.visits)
        super().__init__(tie_word_embeddings=tie_word_embeddings, **kwargs)


class RMSNorm(nn.RMSNorm):
    """The gain follows the dtype of the input, which is bf16 under autocast."""

    def forward(self, x):
        return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


class Attention(nn.Module):
    def __init__(self, config, heads, groups):
        super().__init__()
        width, size = config.hidden_size, config.head_dim
        self.heads, self.groups, self.size, self.qk_norm = heads, groups, size, config.qk_norm
        self.q_proj = nn.Linear(width, heads * size, bias=False)
        self.k_proj = nn.Linear(width, groups * size, bias=False)
        self.v_proj = nn.Linear(width, groups * size, bias=False)
        self.o_proj = nn.Linear(heads * size, width, bias=False)
        if config.qk_norm != "none":
            normed = (size, size) if config.qk_norm == "head" else (heads * size, groups * size)
            self.q_norm, self.k_norm = (RMSNorm(width, eps=config.rms_norm_eps) for width in normed)

    def forward(self, x, rotation, reach, cache, visit):
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        if self.qk_norm == "width":
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (states.unflatten(-1, (-1, self.size)) for states in (q, k, v))
        if self.qk_norm == "head":
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = rotate(q, *rotation).transpose(1, 2), rotate(k, *rotation).transpose(1, 2), v.transpose(1, 2)
        if cache is not None:
            k, v = cache.update(k, v, visit)
        mask = reach.mask(k.shape[-2])
        shared = self.heads != self.groups
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=shared)
        return self.o_proj(y.transpose(1, 2).flatten(2))


def rotate(x, cos, sin):
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class Reach:
    """Which keys a query sees: earlier ones that ``attention_mask`` (rows, tokens so far) does not leave out.

    Static caches come with a mask that `generate` has made, (rows, 1, queries, keys), which is used as it is.
    """

    def __init__(self, past, length, attention_mask, device):
        if attention_mask is not None and attention_mask.dim() not in (2, 4):
            raise ValueError(f"attention_mask: shape (rows, tokens) is wanted, found {tuple(attention_mask.shape)}")
        self.past, self.length, self.attended, self.device = past, length, attention_mask, device
        self.found = {}

    def mask(self, keys):
        """(rows or 1, 1, queries, keys), or None for plain causal attention."""
        if self.attended is None and self.past == 0 and keys == self.length:
            return None
        if self.attended is not None and self.attended.dim() == 4:
            return self.attended
        if keys not in self.found:
            query = torch.arange(self.past, self.past + self.length, device=self.device)[:, None]
            key = torch.arange(keys, device=self.device)
            found = (key <= query)[None, None]
            if self.attended is not None:
                attended = F.pad(self.attended.bool(), (0, keys - self.attended.shape[1]), value=True)
                # A padded query sees itself, since a query that sees nothing would turn into NaN.
                found = found & (attended[:, None, None] | (key == query))
            self.found[keys] = found
        return self.found[keys]


class Dense(nn.Module):
    def __init__(self, config, width):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, width, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, width, bias=False)
        self.down_proj = nn.Linear(width, config.hidden_size, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Router(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.num_experts, config.hidden_size))
        self.experts_per_token, self.normalize = config.num_experts_per_tok, config.norm_topk_prob

    def forward(self, x):
        """Weights and indices of each token's experts; float32, since rounding changes the choice."""
        weights, chosen = F.linear(x.float(), self.weight.float()).softmax(dim=-1).topk(self.experts_per_token)
        if self.normalize:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        return weights.to(x.dtype), chosen


class Experts(nn.Module):
    def __init__(self, config):
        super().__init__()
        experts, width, inner = config.num_experts, config.hidden_size, config.moe_intermediate_size
        self.gate_up_proj = nn.Parameter(torch.empty(experts, 2 * inner, width))
        self.down_proj = nn.Parameter(torch.empty(experts, width, inner))

    def forward(self, x, weights, chosen):
        y = torch.zeros_like(x)
        for expert in chosen.unique().tolist():
            token, place = torch.where(chosen == expert)
            gate, up = F.linear(x[token], self.gate_up_proj[expert]).chunk(2, dim=-1)
            found = F.linear(F.silu(gate) * up * weights[token, place, None], self.down_proj[expert])
            y.index_add_(0, token, found.to(y.dtype))
        return y


class MixtureOfExperts(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.gate, self.experts = Router(config), Experts(config)
        shared = config.shared_expert_intermediate_size
        self.shared_expert = Dense(config, shared) if shared else None
        gated = shared and config.shared_expert_gate
        self.shared_expert_gate = nn.Linear(config.hidden_size, 1, bias=False) if gated else None

    def forward(self, x):
        flat = x.flatten(0, 1)
        y = self.experts(flat, *self.gate(flat)).view_as(x)
        if self.shared_expert is None:
            return y
        shared = self.shared_expert(x)
        if self.shared_expert_gate is not None:
            shared = shared * torch.sigmoid(self.shared_expert_gate(x))
        return y + shared


class Block(nn.Module):
    """Weights that are stored once and executed at each of their visits."""

    def __init__(self, config, index):
        super().__init__()
        visits = config.visits.count(index)
        heads = (config.num_attention_heads, config.num_key_value_heads)
        if visits > 1:
            heads = (config.loop_num_attention_heads, config.loop_num_key_value_heads)
        self.scale = 1 / visits if config.residual_scale == "1/r" else 1.0
        self.input_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.self_attn = Attention(config, *heads)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        dense = index in config.dense_blocks
        self.mlp = Dense(config, config.intermediate_size) if dense else MixtureOfExperts(config)

    def forward(self, x, rotation, reach, cache, visit):
        update = self.self_attn(self.input_layernorm(x), rotation, reach, cache, visit)
        x = torch.add(x, update, alpha=self.scale)
        return torch.add(x, self.mlp(self.post_attention_layernorm(x)), alpha=self.scale)


def given_or(asked, configured):
    return configured if asked is None else asked


class SmeltMatchPreTrainedModel(PreTrainedModel):
    config_class = SmeltMatchConfig
    base_model_prefix = "model"
    _no_split_modules = ["Block"]  # noqa: RUF012
    _supports_sdpa = True

    @torch.no_grad()
    def _init_weights(self, module):
        super()._init_weights(module)
        if isinstance(module, (Experts, Router)):
            for parameter in module.parameters(recurse=False):
                if not getattr(parameter, "_is_hf_initialized", False):
                    parameter.normal_(0.0, self.config.initializer_range)


class SmeltMatchModel(SmeltMatchPreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config, index) for index in range(max(config.visits) + 1))
        self.norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_init()

    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        position_ids=None,
        cache=None,
        past_key_values=None,
        inputs_embeds=None,
        use_cache=None,
        output_hidden_states=None,
        return_dict=None,
    ):
        """Hidden states, where asked for: of the embedding, then after each visit; the last one is normed."""
        x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        cache = past_key_values if cache is None else cache
        if cache is None and (self.config.use_cache if use_cache is None else use_cache):
            cache = DynamicCache()
        past = 0 if cache is None else cache.get_seq_length()
        reach = Reach(past, x.shape[1], attention_mask, x.device)
        if position_ids is None:
            position_ids = torch.arange(past, past + x.shape[1], device=x.device)[None]
        rotation = self._rotation(position_ids, x.dtype)
        states = [x]
        keeps = given_or(output_hidden_states, self.config.output_hidden_states)
        for visit, index in enumerate(self.config.visits):
            x = self.layers[index](x, rotation, reach, cache, visit)
            states.append(x if keeps else None)
        x = self.norm(x)
        states[-1] = x
        found = BaseModelOutputWithPast(
            last_hidden_state=x, hidden_states=tuple(states) if keeps else None, **{CACHE: cache}
        )
        return found if given_or(return_dict, self.config.return_dict) else found.to_tuple()

    def _rotation(self, position_ids, dtype):
        size = self.config.head_dim
        exponents = torch.arange(0, size, 2, device=position_ids.device, dtype=torch.float32) / size
        angles = position_ids.float()[..., None, None] * self.config.rope_theta**-exponents
        return angles.cos().to(dtype), angles.sin().to(dtype)


class SmeltMatchForCausalLM(SmeltMatchPreTrainedModel, GenerationMixin):
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config):
        super().__init__(config)
        self.model = SmeltMatchModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        position_ids=None,
        cache=None,
        past_key_values=None,
        inputs_embeds=None,
        labels=None,
        use_cache=None,
        output_hidden_states=None,
        return_dict=None,
        logits_to_keep=0,
        **kwargs,
    ):
        cache = past_key_values if cache is None else cache
        found = self.model(
            input_ids, attention_mask, position_ids, cache, inputs_embeds=inputs_embeds, use_cache=use_cache,
            output_hidden_states=output_hidden_states, return_dict=True,
        )  # fmt: skip
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(found.last_hidden_state[:, kept])
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        output = CausalLMOutputWithPast(
            loss=loss, logits=logits, hidden_states=found.hidden_states, **{CACHE: found.get(CACHE)}
        )
        return output if given_or(return_dict, self.config.return_dict) else output.to_tuple()
