"""The judgement of a case: what counts as wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from where_judge import judge, named_places, rate_of
from where_lab import Observed, Ran
from where_rows import Case, Change

CASE = Case("example", "a slow disk", ("reads.py",), named={"slow": 8e6}, change=Change("data.workers"))
RAN = Ran([0], [{"rank": 0, "wall": 10.0, "lost": {"data": 9.0}, "places": {}}], "")
MOUNT = "/tmp/x/slow (ext4, loop0)"
ADVICE = {"id": "data.workers", "share": 0.5, "least": 0.4, "most": 0.6}


def seen(said: str, *, family: str = "storage", share: float = 0.88, changed: float = 5.0, **report: Any) -> Observed:
    verdict = {"family": family, "share": share, "summary": said, "evidence": []}
    whole = {"verdict": verdict, "advice": [ADVICE], "families": {"cpu": 0.02}} | report
    after = replace(RAN, truths=[{**RAN.truths[0], "wall": changed}])
    return Observed(RAN, whole, said, {"slow": "/tmp/x/slow", "fast": "/tmp/x/fast"}, {}, after)


def wrong(*words: Any, case: Case = CASE, **options: Any) -> list[str]:
    return judge(case, seen(*words, **options)).wrong


def test_nothing_is_wrong_in_a_right_verdict() -> None:
    assert wrong(f"blocked on reads from {MOUNT}: 7.9 MB/s in reads of 1 MB") == []


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ("blocked on reads", "slow is not named"),
        (f"blocked on reads from {MOUNT}", "no rate of slow is said"),
        (f"blocked on reads from {MOUNT}: 6 MB/s", "the rate of slow is wrong by -25%"),
        (f"blocked on reads from {MOUNT}: 8 MB/s; and from /tmp/x/fast (ext4, loop1): 9 MB/s", "fast is named"),
    ],
)
def test_a_place_and_its_rate_have_to_be_right(said: str, sentence: str) -> None:
    assert wrong(said) == [sentence]


def test_another_family_is_wrong_and_a_share_may_lack_what_queued_for_a_cpu() -> None:
    said = f"reads from {MOUNT}: 8 MB/s"
    assert wrong(said, family="host") == ["the verdict is host instead of storage"]
    assert wrong(said, share=0.5) == ["storage differs by -40 points"]
    assert wrong(said, share=0.5, families={"cpu": 0.35}) == []


def test_a_gain_has_to_be_in_its_interval() -> None:
    said = f"reads from {MOUNT}: 8 MB/s"
    assert wrong(said, changed=9.0) == ["advice data.workers says 50% (40% to 60%), and saves 10%"]
    assert wrong(said, advice=[]) == ["advice data.workers is missing"]
    useless = replace(CASE, change=Change("data.workers", advised=False))
    assert wrong(said, advice=[], changed=10.2, case=useless) == []
    [_, promised] = wrong(said, changed=10.2, case=useless)
    assert promised == "advice data.workers promises at least 40%, but gains nothing"


def test_the_rate_of_a_link_stands_before_its_name() -> None:
    links = replace(seen("0.2 Gbit/s over eth0, which tbf limits to 0.2; eth1 (10 Gbit/s) carries nothing"), places={})
    links = replace(links, places={"eth0": "eth0", "eth1": "eth1"})
    assert named_places(links) == {"eth0": pytest.approx(25e6), "eth1": None}


def test_reads_rates_in_all_units() -> None:
    assert [rate_of(text) for text in ("at 1.5 kB/s", "8 Mbit/s", "none")] == [1500.0, 1e6, None]
