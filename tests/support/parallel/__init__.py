"""Real trainings of four ranks in many shapes, each with a known fault. Their own clocks give the truth."""
