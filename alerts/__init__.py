"""Prometheus recording rules and alerts, generated from one configuration."""
