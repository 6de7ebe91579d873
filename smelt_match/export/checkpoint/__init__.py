"""Checkpoints and configs for other systems: Hugging Face, unrolled or looped; torchtitan; Megatron-LM."""
