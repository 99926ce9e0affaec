"""Runs beside each other: which is faster, by how much, how sure that is, and where the difference comes from."""
