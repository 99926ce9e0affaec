"""The agent: serves the ledgers and the counters of one node as Prometheus metrics."""
