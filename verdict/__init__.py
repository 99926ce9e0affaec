"""What a run lost its time to: pure functions over ledgers."""
