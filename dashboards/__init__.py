"""What people look at: Grafana dashboards, generated with grafanalib, which stands behind :mod:`.vocabulary` alone."""
