"""What Prometheus computes: recording rules and alerts, generated from one configuration."""
