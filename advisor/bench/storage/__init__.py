"""Measures storage with the work of trainings: data loading, shards, small files, checkpoints."""
