"""Budgets as exact integers and rationals: what a model stores, computes and caches, under a named convention."""
