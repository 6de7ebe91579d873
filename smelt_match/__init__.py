"""Find the looped Transformer that costs the same as a baseline, and prove how close the match is."""

__version__ = "0.1.0"
