"""Predicts how long a step would take if something were faster, by a replay of the recorded steps."""
