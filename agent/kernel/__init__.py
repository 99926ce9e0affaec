"""What the kernel tells by other ways than one file: calls, and facts put together from several files."""
