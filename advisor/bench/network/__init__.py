"""The network bench: schedules of pairs, bandwidths, and which node or link is slow. Pure functions."""
