"""The bytes that a training run moves: predicted by formulas, and counted by its hooks and adapters."""
