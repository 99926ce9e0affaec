"""How fast ranks reach each other: schedules, bandwidths, and which node or link is slow. Pure functions."""
