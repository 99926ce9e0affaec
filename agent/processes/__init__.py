"""Finds the processes of ranks and their workers, what they use, and the files that they have open."""
