"""How long a step would take if something were faster: the recorded steps, replayed with a change."""
