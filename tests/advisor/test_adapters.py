"""Traffic between GPUs and of storage, by adapter, from two answers of an agent."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from support_yaml import read_yaml

from whyidle.advisor.traffic.adapters import METRICS, Use, uses
from whyidle.agent.metrics import METRIC
from whyidle.cli.traffic import text

CASES = Path(__file__).parents[1] / "alerts/cases/recording/traffic.yaml"
SECONDS = 4.0
SERIES = re.compile(r"(\w+)\{@\w+, (.*)\}")
LABEL = re.compile(r'(\w+)="([^"]*)"')

Answer = list[tuple[str, dict[str, str], float]]


def answers(series: dict[str, Any]) -> tuple[Answer, Answer]:
    """Two answers of an agent from the series of a case: a rate per second for counters, otherwise VALUExTIMES."""
    before, after = [], []
    for written, value in series.items():
        found = SERIES.fullmatch(written)
        assert found, written
        name, labels = found[1], dict(LABEL.findall(found[2]))
        number = float(str(value).split("x")[0])
        counter = name.endswith("_total")
        before.append((name, labels, 1000.0 if counter else number))
        after.append((name, labels, 1000.0 + SECONDS * number if counter else number))
    return before, after


def cases() -> list[Any]:
    """The cases of the recording rules that need neither object stores nor pods, of which only the rules know more."""
    return [case for case in read_yaml(CASES.read_text()) if not re.search("object store|pods", case["name"])]


@pytest.mark.parametrize("case", cases(), ids=lambda case: case["name"])
def test_agrees_with_the_recording_rules(case: Any) -> None:
    found = uses(*answers(case["series"]), SECONDS)
    moved: dict[tuple[str, str, str], float] = {}
    for written, value in case["expect"].get("node_adapter:whyidle_traffic_bytes:rate", {}).items():
        labels = dict(LABEL.findall(written))
        key = labels["adapter"], labels["direction"], labels["traffic"]
        moved[key] = moved.get(key, 0.0) + value
    told = {(one.adapter, one.direction, "gpu"): one.gpu for one in found if one.gpu}
    told |= {(one.adapter, one.direction, "mount"): one.storage for one in found if one.storage}
    assert told == moved or not moved
    collisions = {dict(LABEL.findall(one))["adapter"] for one in case["expect"]["node_adapter:whyidle_collision:ratio"]}
    assert {one.adapter for one in found if one.collides} == collisions


def test_everything_else_is_the_rest_of_the_adapter() -> None:
    (receive, transmit) = uses(*answers(cases()[0]["series"]), SECONDS)
    assert receive == Use("eth0", "receive", 100.0, 40.0, 32.0, 8.0)
    assert receive.collides
    assert transmit == Use("eth0", "transmit", 100.0, 40.0, 8.0, 0.0)
    assert not transmit.collides


def test_a_counter_that_began_again_or_is_new_is_left_out() -> None:
    before, after = answers(cases()[0]["series"])
    again = [(name, labels, 5000.0 if "link" in name else value) for name, labels, value in before]
    assert {one.gpu for one in uses(again, after, SECONDS)} == {0.0}
    assert uses([], after, SECONDS) == []
    assert uses(before, [], SECONDS) == []


def test_an_adapter_without_a_known_speed_does_not_collide() -> None:
    before, after = answers({k: v for k, v in cases()[0]["series"].items() if "speed" not in k})
    found = uses(before, after, SECONDS)
    assert (found[0].gpu, found[0].storage, found[0].speed, found[0].collides) == (40.0, 32.0, 0.0, False)
    assert "whether they collide is not known" in told(found)


def test_says_where_they_collide() -> None:
    said = told(uses(*answers(cases()[0]["series"]), SECONDS))
    row = next(line.split() for line in said.splitlines() if "receive" in line)
    assert " ".join(row) == "eth0 receive 800 bit/s 320 bit/s (40 %) 256 bit/s (32 %) 64.0 bit/s (8 %)"
    assert "they collide on eth0 (receive): each takes at least 20 % of the speed" in said
    apart = told(uses(*answers(cases()[1]["series"]), SECONDS))
    assert "they do not collide: on no adapter do both take 20 % of the speed in one direction" in apart
    assert text.traffic_of_adapters({"adapter_traffic": []}) == []


def told(found: list[Use]) -> str:
    return "\n".join(
        text.traffic_of_adapters({"adapter_traffic": [{**one._asdict(), "collides": one.collides} for one in found]})
    )


def test_asks_for_metrics_that_the_agent_declares() -> None:
    assert set(METRICS) <= METRIC.keys()
