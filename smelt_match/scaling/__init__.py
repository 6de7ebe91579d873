"""Scaling laws from training end points: surfaces, frontier, compute saved, and how sure."""
