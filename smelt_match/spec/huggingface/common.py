"""Fields that no budget depends on, in every architecture, and fields that may hold one value only."""

from __future__ import annotations

from typing import Any


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


BOOKKEEPING = _names(
    """
    _name_or_path name_or_path _attn_implementation _attn_implementation_autoset _attn_implementation_internal
    _experts_implementation _experts_implementation_internal _commit_hash attn_implementation experts_implementation
    auto_map transformers_version torch_dtype dtype use_cache use_return_dict return_dict output_hidden_states
    output_attentions output_router_logits torchscript use_bfloat16 id2label label2id num_labels problem_type
    task_specific_params finetuning_task tokenizer_class prefix bos_token_id eos_token_id pad_token_id sep_token_id
    cls_token_id unk_token_id mask_token_id decoder_start_token_id gradient_checkpointing pretraining_tp
    chunk_size_feed_forward tf_legacy_loss is_decoder unsloth_version unsloth_fixed transformers.js_config
    """
)
GENERATION = _names(
    """
    temperature top_k top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size
    encoder_no_repeat_ngram_size bad_words_ids num_return_sequences num_beams num_beam_groups diversity_penalty
    max_length max_new_tokens min_length do_sample early_stopping forced_bos_token_id forced_eos_token_id
    remove_invalid_values exponential_decay_length_penalty suppress_tokens begin_suppress_tokens output_scores
    return_dict_in_generate cache_implementation
    """
)
TRAINING = _names(
    """
    initializer_range attention_dropout attn_pdrop embd_pdrop emb_pdrop resid_pdrop hidden_dropout hidden_dropout_prob
    attention_probs_dropout_prob classifier_dropout router_aux_loss_coef router_jitter_noise input_jitter_noise
    aux_loss_alpha seq_aux
    """
)
SHAPELESS = _names(
    """
    max_position_embeddings max_seq_len max_sequence_length model_max_length hidden_act hidden_activation
    partial_rotary_factor rotary_pct rope_interleave rope_local_base_freq original_max_position_embeddings
    """
)
IGNORED = BOOKKEEPING | GENERATION | TRAINING | SHAPELESS

QUANTISED = ("quantization_config", "quantization", "compression_config")

# Fields that change what is counted, and the values under which they do not.
NEUTRAL: dict[str, tuple[tuple[Any, ...], str]] = {
    "is_encoder_decoder": ((False, None), "only decoder-only models can be counted"),
    "add_cross_attention": ((False, None), "cross-attention cannot be counted"),
    "cross_attention_hidden_size": ((None,), "cross-attention cannot be counted"),
    "tie_encoder_decoder": ((False, None), "only decoder-only models can be counted"),
    "pruned_heads": (({}, None), "pruned heads cannot be counted"),
    "per_layer_config": (({}, None), "layers of different sizes cannot be counted"),
    "use_bidirectional_attention": ((False, None), "only causal attention can be counted"),
    **dict.fromkeys(QUANTISED, ((None,), "a quantised checkpoint; only models with plain weights can be counted")),
}
# What transformers calls its activations (activations.py, ACT2CLS, 5.24); none has parameters that are counted.
ACTIVATIONS = _names(
    """
    gelu gelu_10 gelu_fast gelu_new gelu_python gelu_pytorch_tanh gelu_python_tanh gelu_accurate hardswish laplace
    leaky_relu linear mish quick_gelu relu relu2 relu6 sigmoid silu sqrtsoftplus swish tanh
    """
)
HEADS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
