"""Counted = built = executed."""
