"""What a node reports: the ledgers of its ranks, as Prometheus metrics."""
