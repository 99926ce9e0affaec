"""Runs on other nodes: asks Prometheus over its HTTP API for what it has recorded about them."""
