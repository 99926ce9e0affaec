"""Reads the logs that ranks have written (stamps.py)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from parallel.spec import RANKS, Spec

Entry = dict[str, Any]


@dataclass(frozen=True)
class Log:
    """The records of one rank. All times are in ns of CLOCK_MONOTONIC, unless a name says seconds."""

    entries: list[Entry]

    def of(self, what: str) -> list[Entry]:
        return [entry for entry in self.entries if entry["what"] == what and entry["step"] >= 0]

    @property
    def steps(self) -> list[Entry]:
        return self.of("step")

    def idle(self) -> list[int]:
        """For each step, the time in which this rank's training thread was not on a CPU."""
        return [step["end"] - step["start"] - step["cpu"] for step in self.steps]

    @property
    def step_seconds(self) -> float:
        """The mean without the first step, in which connections are made."""
        steps = self.steps[1:]
        return sum(step["end"] - step["start"] for step in steps) / len(steps) / 1e9

    @property
    def end(self) -> int:
        """When the job ended."""
        (end,) = (entry["at"] for entry in self.entries if entry["what"] == "end")
        return end

    @property
    def window_seconds(self) -> float:
        """From the start of the first step to the end of the job."""
        return (self.end - self.steps[0]["start"]) / 1e9

    @property
    def sent(self) -> int:
        """Bytes over the slow cable, from the first step to the last."""
        (cable,) = (entry["bytes"] for entry in self.entries if entry["what"] == "cable")
        return cable - self.steps[0]["bytes"]


def read_logs(spec: Spec) -> list[Log]:
    return [Log([json.loads(line) for line in spec.log(rank).read_text().splitlines()]) for rank in range(RANKS)]
