"""Runs that are not on this node: what a Prometheus has recorded of them, asked for over its HTTP API."""
