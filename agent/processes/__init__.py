"""The ranks as processes: which they are, who their workers are, what they use and which files they have open."""
