"""Meters: measure where the time of a wait, or of a span of steps, went on a CPU rank."""
