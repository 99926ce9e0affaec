"""Advice on what to change in a run: rules over measurements, each with the gain of its change."""
