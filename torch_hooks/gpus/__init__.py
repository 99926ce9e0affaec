"""The GPUs of a rank: which it was given, and whether it uses them."""
