"""The dashboard Run: what is wrong with one run, which rank is responsible, and what it waits for."""

from __future__ import annotations

from .. import variables as v
from ..marks import ALERTS, CHECKPOINTS, DEPLOYMENTS, DRAINS, restarts, starts
from ..vocabulary import Dashboard, dashboard
from . import answer, collectives, comparison, data, gpus, health, ranks, steps


def build() -> Dashboard:
    return dashboard(
        "whyidle-run",
        "whyidle / Run",
        """One run: what it loses its time to, which rank makes the others wait, and what every part of a step takes.
        For a run that has ended, the last values in the time range are shown.""",
        variables=[
            v.data_source(),
            v.cluster(),
            v.owner(),
            v.run(),
            v.nodes("run_node:whyidle_ranks:count", v.RUN),
            v.ranks(),
            v.window(),
            v.choice("worst", "Ranks drawn", ("16", "32", "64", "128"), "32"),
            comparison.with_run(),
            comparison.ago(),
            v.members(),
            v.gpus(),
            v.exact(),
            ranks.shown(),
            ranks.listed(),
        ],
        annotations=[starts(v.RUN), restarts(v.RUN), CHECKPOINTS, DRAINS, DEPLOYMENTS, ALERTS],
        sections=[
            answer.section(gpus.activity()),
            ranks.section(),
            steps.section(),
            collectives.section(),
            data.loading(),
            comparison.comparison(),
            health.section(),
        ],
    )
