"""What is wrong in what whyidle says about a case. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from where_lab import Observed, Ran
from where_rows import Case

GAIN_WITHIN, SHARE_WITHIN = 0.03, 0.15
"""How many points a gain may be beside its interval, and how many points a share may be off.
tests/reports compares shares more closely."""
FLOOR = 0.02
"""The lower bound of a gain that promises nothing."""
_RANK = re.compile(r"\b(?:ranks? |node)(\d+)")
_RATE = re.compile(r"([\d.,]+) ([kMG]?)(B|bit)/s")
_POWERS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}


@dataclass(frozen=True)
class Judged:
    """A row of the page."""

    name: str
    family: str = ""
    share: float | None = None
    truth: float | None = None
    """The share by the job's own clock."""
    summary: str = ""
    named: dict[str, float | None] = field(default_factory=dict)
    """Place that is named -> the rate that is said, in bytes a second."""
    rates: dict[str, float] = field(default_factory=dict)
    """Place -> its true rate, in bytes a second."""
    gain: dict[str, float] = field(default_factory=dict)
    """Of the change: `share`, `least` and `most` as predicted, and `measured`."""
    advice: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def entry(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def rate_error(self) -> float | None:
        errors = [said / self.rates[place] - 1 for place, said in self.named.items() if said and place in self.rates]
        return max(errors, key=abs, default=None)


def judge(case: Case, seen: Observed) -> Judged:
    verdict = seen.report["verdict"] or {}
    found = Judged(
        case.name,
        verdict.get("family", ""),
        verdict.get("share"),
        _truth(case, seen.ran),
        verdict.get("summary", ""),
        named_places(seen),
        _rates(case, seen),
        _gain(case, seen),
        [f"{one['id']} {one['share']:.0%}" for one in seen.report["advice"]],
    )
    found.wrong.extend([*_broken(case, seen), *_verdict(case, found, seen), *_change(case, found)])
    return found


def named_places(seen: Observed) -> dict[str, float | None]:
    """The places that verdict and evidence name, with their rates."""
    verdict = seen.report["verdict"] or {}
    found: dict[str, float | None] = {}
    for sentence in [verdict.get("summary", ""), *verdict.get("evidence", [])]:
        for place, name in seen.places.items():
            if match := re.search(rf"(?<![\w/.-]){re.escape(name)}(?![\w-])", sentence):
                over = re.search(rf"{_RATE.pattern} over {re.escape(name)}\b", sentence)
                rate = rate_of(over[0] if over else "" if place == name else sentence[match.end() :])
                found[place] = found.get(place) or rate
    return found


def rate_of(text: str) -> float | None:
    """The first rate of a text, in bytes a second."""
    if not (match := _RATE.search(text)):
        return None
    number, power, unit = match.groups()
    return float(number.replace(",", "")) * _POWERS[power] / (8 if unit == "bit" else 1)


def _truth(case: Case, ran: Ran) -> float | None:
    wall = sum(truth["wall"] for truth in ran.truths)
    return sum(truth["lost"].get(case.lost, 0.0) for truth in ran.truths) / wall if wall and case.lost else None


def _rates(case: Case, seen: Observed) -> dict[str, float]:
    found: dict[str, float] = {}
    for place, rate in case.named.items():
        if rate:
            found[place] = rate
        elif rate is None:
            own = [each["places"].get(seen.arguments.get(place), {}) for each in seen.ran.truths]
            seconds = sum(one.get("seconds", 0.0) for one in own)
            if seconds:
                found[place] = sum(one.get("bytes", 0.0) for one in own) / seconds
    return found


def _gain(case: Case, seen: Observed) -> dict[str, float]:
    change = case.change
    if change is None or seen.changed is None or not seen.changed.wall:
        return {}
    advice = next((one for one in seen.report["advice"] if one["id"] == change.rule), None)
    said = {key: advice[key] for key in ("share", "least", "most")} if advice else {}
    return said | {"measured": 1 - seen.changed.wall / seen.ran.wall}


def _broken(case: Case, seen: Observed) -> Iterator[str]:
    for ran in filter(None, (seen.ran, seen.changed)):
        if any(ran.status) or None in ran.status or len(ran.truths) != case.ranks:
            yield f"exit status {ran.status}: {' / '.join(ran.output.strip().splitlines()[-3:])[-300:]}"


def _verdict(case: Case, found: Judged, seen: Observed) -> Iterator[str]:
    if case.family and found.family not in case.family:
        yield f"the verdict is {found.family or 'missing'} instead of {' or '.join(case.family)}"
    elif case.family and found.truth is not None and not _near(found, seen.report["families"].get("cpu", 0.0)):
        yield f"{found.family} differs by {100 * ((found.share or 0.0) - found.truth):+.0f} points"
    yield from (f"{place} is not named" for place in case.named if place not in found.named)
    yield from (f"{place} is named" for place in found.named if place not in {*case.named, *case.may})
    for place, rate in found.rates.items():
        said = found.named.get(place)
        if place in found.named and said is None:
            yield f"no rate of {place} is said"
        elif said and abs(said / rate - 1) > case.within:
            yield f"the rate of {place} is wrong by {said / rate - 1:+.0%}"
    flat = " ".join(seen.text.split())
    yield from (f"does not say “{pattern}”" for pattern in case.says if not re.search(pattern, flat))
    yield from (f"says “{match[0]}”" for pattern in case.never if (match := re.search(pattern, flat)))
    if case.late is not None and str(case.late) not in _RANK.findall(found.summary):
        yield f"the verdict does not name rank or node {case.late}"


def _near(found: Judged, cpu: float) -> bool:
    """The job's clock also counts what queues for a CPU meanwhile, which whyidle calls `cpu`."""
    share, truth = found.share or 0.0, found.truth or 0.0
    return truth - SHARE_WITHIN - cpu <= share <= truth + SHARE_WITHIN


def _change(case: Case, found: Judged) -> Iterator[str]:
    change, gain = case.change, found.gain
    if change is None:
        return
    if "share" not in gain:
        if change.advised:
            yield f"advice {change.rule} is missing"
        return
    yield from _interval(change.rule, gain)
    if not change.advised and gain["least"] > FLOOR:
        yield f"advice {change.rule} promises at least {gain['least']:.0%}, but gains nothing"


def _interval(rule: str, gain: Mapping[str, float]) -> Iterator[str]:
    if "measured" in gain and not gain["least"] - GAIN_WITHIN <= gain["measured"] <= gain["most"] + GAIN_WITHIN:
        said = f"{gain['share']:.0%} ({gain['least']:.0%} to {gain['most']:.0%})"
        yield f"advice {rule} says {said}, and saves {gain['measured']:.0%}"
