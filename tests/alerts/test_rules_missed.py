"""Each family of causes as a fault, from the counters of ledgers to the alert: the right family, once, and no other
alert.

A run of each kind is the input of the shipped alerts in promtool, with all recording rules that they use. The fault
takes a tenth, a quarter or half of the time, all the time or in bursts like checkpoints.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support_rules import assert_all_rules
from support_sums import with_sums

from whyidle.alerts.config import DEFAULT
from whyidle.ledger.causes import CAUSE_FAMILY

pytestmark = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")

CAUSES = {
    "storage": "data_read",
    "network": "network",
    "cpu": "data_cpu",
    "host": "host",
    "straggler": "straggler",
    "pipeline": "pipeline",
    "communication": "collective",
}
SHARES = (0.1, 0.25, 0.5)
SHAPES = ("steady", "bursts")
EVERY_SECONDS, CYCLE_MINUTES = 45, 15
SEEN_AT = ("100m", "112m", "130m", "150m")
"""Within bursts and between them."""
SAMPLES = 151 * 60 // EVERY_SECONDS

THRESHOLDS = {family: getattr(DEFAULT.alerts, f"{family}_share") for family in CAUSES}


def run_name(family: str, share: float, shape: str) -> str:
    return f"{family}-{share:g}-{shape}"


def lost(share: float, shape: str) -> list[float]:
    """Seconds lost until each sample."""
    burst = share * CYCLE_MINUTES * 60
    found, total = [], 0.0
    for sample in range(SAMPLES):
        found.append(total)
        into = sample * EVERY_SECONDS % (CYCLE_MINUTES * 60)
        total += share * EVERY_SECONDS if shape == "steady" else EVERY_SECONDS * (into < burst)
    return found


def series(family: str, share: float, shape: str) -> Iterator[dict[str, str]]:
    rank = f'job="whyidle", instance="n:9838", owner="nlp", run="{run_name(family, share, shape)}", rank="0"'
    place = f'{rank}, node="n", device="cuda:0"'
    gone = lost(share, shape)
    spent = {"compute": [sample * EVERY_SECONDS - gone[sample] for sample in range(SAMPLES)], CAUSES[family]: gone}
    for cause, seconds in spent.items():
        labels = f'{place}, cause="{cause}", family="{CAUSE_FAMILY[cause]}"'
        yield {"series": f"whyidle_device_seconds_total{{{labels}}}", "values": " ".join(f"{s:g}" for s in seconds)}
    yield {"series": f"whyidle_steps_total{{{rank}}}", "values": f"1+30x{SAMPLES}"}
    yield {"series": f"whyidle_rank_up{{{rank}}}", "values": f"1x{SAMPLES}"}
    yield {"series": f'whyidle_rank_info{{{place}, world_size="1", attempt="0", pid="7"}}', "values": f"1x{SAMPLES}"}


def alert(family: str, share: float, shape: str) -> dict[str, Any]:
    run = run_name(family, share, shape)
    labels = f'alertname="WhyidleLostTo", family="{family}", owner="nlp", run="{run}", severity="warning"'
    return {"labels": f'ALERTS{{alertstate="firing", {labels}}}', "value": 1}


@pytest.mark.long
def test_each_family_fires_its_own_alert_once(tmp_path: Path) -> None:
    cases = [(family, share, shape) for family in CAUSES for share in SHARES for shape in SHAPES]
    beyond = [case for case in cases if case[1] >= THRESHOLDS[case[0]]]
    quiet = "|".join(("WhyidleWatchdog", "WhyidleAgentAbsent"))  # nothing is scraped here
    test = {
        "interval": f"{EVERY_SECONDS}s",
        "input_series": [
            {"series": name, "values": values}
            for case in cases
            for name, values in with_sums((one["series"], one["values"]) for one in series(*case))
        ],
        "promql_expr_test": [
            {
                "expr": f'ALERTS{{alertstate="firing", alertname!~"{quiet}"}}',
                "eval_time": at,
                "exp_samples": [alert(*case) for case in beyond],
            }
            for at in SEEN_AT
        ],
    }
    assert_all_rules(test, tmp_path)
