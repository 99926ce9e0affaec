"""What the rank was given, and what it uses of it."""
