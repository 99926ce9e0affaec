"""Measures storage and network as trainings use them."""
