"""Measures what trainings need of a machine."""
