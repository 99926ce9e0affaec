"""What is wrong in what whyidle says about a report. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from report_lab import Observed, Ran
from report_rows import Report

_NAMED = re.compile(r"\branks? (\d+)")
_FIRST = re.compile(r"\b[Rr]ank (\d+)(?: was the first to end| ended first)")


@dataclass(frozen=True)
class Judged:
    """A row of the page."""

    name: str
    truth: dict[str, float | None]
    """Family -> its true share."""
    family: str = ""
    share: float | None = None
    summary: str = ""
    advice: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0
    """How long the run with whyidle took, with its start."""

    def entry(self) -> dict[str, Any]:
        return asdict(self)


def judge(report: Report, seen: Observed) -> Judged:
    verdict = seen.report["verdict"] or {}
    truth = {family: of(seen.recorded.truths) if of else None for family, of in report.truth.items()}
    advice = [one["id"] for one in seen.report["advice"]]
    found = Judged(
        report.name,
        truth,
        verdict.get("family", ""),
        verdict.get("share"),
        verdict.get("summary", ""),
        advice,
        seconds=seen.recorded.seconds,
    )
    found.wrong.extend(
        [*_harmed(report, seen), *_verdict(report, found, seen), *_texts(report, seen), *_advice(report, advice)]
    )
    return found


def _harmed(report: Report, seen: Observed) -> Iterator[str]:
    """What whyidle has changed in the training."""
    for label, ran in (("without", seen.plain), ("with", seen.recorded)):
        if ran.status != report.status:
            yield f"exit status {ran.status} {label} whyidle, instead of {report.status}: {_last(ran)}"
    both = seen.plain.losses.keys() & seen.recorded.losses.keys()
    if not both:
        yield f"no rank recorded a loss: {_last(seen.recorded)}"
    if changed := [rank for rank in both if seen.plain.losses[rank] != seen.recorded.losses[rank]]:
        yield f"with whyidle, the losses of ranks {sorted(changed)} differ"


def _last(ran: Ran) -> str:
    return " / ".join(ran.output.strip().splitlines()[-3:])[-300:]


def _verdict(report: Report, found: Judged, seen: Observed) -> Iterator[str]:
    # The clocks of scripts count a wait as one thing. whyidle counts as `cpu` what threads queue for a CPU meanwhile,
    # which takes longer the busier the machine is.
    busy = max((truth.get("queued", 0.0) for truth in seen.recorded.truths), default=0.0)
    allowed = report.within / 100 * (1 + busy)
    if found.family not in found.truth:
        yield f"the verdict is {found.family or 'missing'} instead of {' or '.join(found.truth)}"
    else:
        truth = found.truth[found.family]
        if truth is not None and found.share is not None:
            # Where the clock of a script does not tell families apart, the time may be in any of them.
            # They do not tell the hand-over of a batch from the wait for it, either: some ms on a slow machine.
            most = found.share + sum(_share(seen, one) for one in found.truth if one != found.family)
            most += _handed(seen) if found.family == "storage" else 0.0
            if not found.share - allowed <= truth <= most + allowed:
                yield f"{found.family} differs by {100 * (found.share - truth):+.1f} points"
    named = _NAMED.search(found.summary)
    if report.late is not None and (named is None or int(named[1]) != report.late):
        yield f"the verdict does not name rank {report.late}"


def _share(seen: Observed, family: str) -> float:
    explained = seen.report.get("explained", {})
    return explained.get(family, 0.0) / max(sum(explained.values()), 1e-9)


def _handed(seen: Observed) -> float:
    """The share of the time in which finished batches were on their way to the loop."""
    whole = seen.report.get("rank_seconds") or 0.0
    return seen.report.get("seconds", {}).get("data_handoff", 0.0) / max(whole, 1e-9)


def _texts(report: Report, seen: Observed) -> Iterator[str]:
    first = _FIRST.search(seen.text)
    if report.first_to_end is not None and first and int(first[1]) != report.first_to_end:
        yield f"rank {first[1]} is called the first to end, but rank {report.first_to_end} was"
    yield from _said(seen.text, report.says, report.never, "")
    if report.asked_after is not None:
        during = seen.asked[0] if seen.asked else ""
        yield from _said(during, report.asked_says, report.asked_never, ", during the run")


def _said(text: str, says: tuple[str, ...], never: tuple[str, ...], when: str) -> Iterator[str]:
    flat = " ".join(text.split())
    yield from (f"does not say “{pattern}”{when}" for pattern in says if not re.search(pattern, flat))
    yield from (f"says “{found[0]}”{when}" for pattern in never if (found := re.search(pattern, flat)))


def _advice(report: Report, advice: list[str]) -> Iterator[str]:
    yield from (f"advice {rule} does not help here" for rule in report.misleading if rule in advice)
    yield from (f"advice {rule} is missing" for rule in report.advice if rule not in advice)
