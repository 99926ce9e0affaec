"""Compares runs: which one is faster, by how much, how certain that is, and where the difference comes from."""
