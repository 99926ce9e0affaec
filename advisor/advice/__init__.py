"""What to change in a run: rules over what was measured, each with what it would bring."""
