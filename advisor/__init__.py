"""What to change: predictions from what was recorded."""
