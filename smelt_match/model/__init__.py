"""The looped mixture-of-experts Transformer in torch, built from a spec."""
