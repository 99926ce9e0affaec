"""Grafana dashboards, generated with grafanalib. Pages use grafanalib only through :mod:`.vocabulary`."""
