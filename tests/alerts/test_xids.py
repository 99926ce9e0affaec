"""The table of XIDs: the alerts and the page recommend the actions of NVIDIA's catalogue."""

from __future__ import annotations

import re

import pytest

from whyidle.alerts import xids
from whyidle.alerts.alerting import alerts
from whyidle.alerts.config import DEFAULT

# NVIDIA's catalogue (see alerts/xids.py): the numbers by immediate action, without those that it calls unused.
RESTART_APP = {
    *(8, 11, 13, 25, 31, 32, 39, 40, 41, 60, 68, 69, 70, 71, 72, 75, 76, 77, 80, 82, 83, 84, 85, 86, 88, 89, 94),
    *range(96, 106),
    *range(126, 136),
    139,
}
IGNORE = {
    *(37, 38, 43, 44, 63, 66, 67, 92, 93, 106, 107, 108, 121, 137, 141, 152, 153, 160, 161),
}
RESET_GPU = {46, 62, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158}
WORKFLOW = {48, 74, *range(144, 151)}
RESTART = {79, 151}
CHECK_MECHANICALS = {54}


def class_of(number: int) -> str:
    [found] = [xid.of for xid in xids.XIDS if number in xid.numbers]
    return found


def test_each_number_is_listed_once() -> None:
    every = [number for xid in xids.XIDS for number in xid.numbers]
    assert len(every) == len(set(every))


@pytest.mark.parametrize(
    ("numbers", "of"),
    [
        (RESTART_APP | IGNORE, "software"),
        (RESET_GPU | WORKFLOW | RESTART, "reset"),
        (CHECK_MECHANICALS, "service"),
    ],
    ids=["software", "reset", "service"],
)
def test_class_is_the_immediate_action_of_the_catalogue(numbers: set[int], of: str) -> None:
    assert {number: class_of(number) for number in numbers} == dict.fromkeys(numbers, of)


def test_errors_that_need_a_reset_or_repair_are_not_harmless() -> None:
    told_wrong = {
        *(54, 61, 109, 110, 122, 123, 125, 136, *range(144, 152)),
        *(155, 156, 158, 167, 168, 169, 171, 172),
    }
    assert not told_wrong & set(xids.numbers("software"))
    assert told_wrong <= {*xids.numbers("reset"), *xids.numbers("service")}


def test_every_number_is_in_one_alert_of_its_class() -> None:
    named = {alert.name: alert for alert in alerts(DEFAULT)}
    classes: tuple[tuple[xids.Class, str], ...] = (("reset", "WhyidleGpuXidReset"), ("service", "WhyidleGpuService"))
    for of, name in classes:
        matched = set(re.findall(r'xid=~"([^"]+)"', named[name].expr))
        assert matched == {xids.pattern(of)}
    assert set(re.findall(r'xid!~"([^"]+)"', named["WhyidleGpuXid"].expr)) == {
        f"{xids.pattern('reset')}|{xids.pattern('service')}"
    }


def test_the_page_is_up_to_date() -> None:
    assert xids.PAGE.read_text(encoding="utf-8") == xids.page()
