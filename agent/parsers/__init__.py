"""Parsers for files and messages, mostly of the kernel. Pure functions and dataclasses: no I/O and no metrics."""
