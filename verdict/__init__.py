"""What a run lost, and to what: pure functions over ledgers."""
