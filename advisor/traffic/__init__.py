"""Bytes that a training run moves: predicted, and as its hooks and adapters counted them."""
