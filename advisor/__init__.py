"""Finds out what to change in a run: predictions, comparisons, benches and advice."""
