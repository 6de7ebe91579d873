"""Ablations: every point of a sweep matched anew, trained on the same tokens, and compared with its noise."""
