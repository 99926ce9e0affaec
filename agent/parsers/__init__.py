"""What the kernel writes -> what it means. Pure functions and dataclasses: no I/O, and nothing of metrics."""
