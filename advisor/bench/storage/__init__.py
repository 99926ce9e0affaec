"""Measures storage with what trainings do to it: data loading, shards, small files, checkpoints."""
