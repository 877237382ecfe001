"""Budgets and penalties in runs that another framework drives: Lightning, transformers, Accelerate."""
