"""Real trainings of four ranks in many shapes, each with a known fault, whose truth comes from their own clocks."""
