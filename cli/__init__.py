"""The `whyidle` command."""
