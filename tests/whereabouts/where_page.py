"""The table of whereabouts, for a terminal and for docs/accuracy.md. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from support_suite_of_cases import page_table
from where_judge import Judged
from where_rows import Case

COLUMNS = ("fault", "verdict (truth)", "named", "rate said", "gain said", "gain measured", "")


def line(found: Judged) -> str:
    truth = "" if found.truth is None else f" (truth {found.truth:.0%})"
    share = "" if found.share is None else f" {found.share:.0%}"
    named = ", ".join(f"{place} {_rate(rate)}".strip() for place, rate in found.named.items()) or "nothing"
    head = f"{'WRONG' if found.wrong else 'right'}  {found.name:27} {found.family}{share}{truth}; names {named}"
    error = "" if found.rate_error is None else f"; rate {found.rate_error:+.0%}"
    gain = f"; gain {_said(found.gain)}, measured {found.gain['measured']:.0%}" if found.gain else ""
    return "\n".join(
        [head + error + gain, f"         “{found.summary}”", *(f"         ✗ {one}" for one in found.wrong)]
    )


def table(cases: Sequence[Case], results: Mapping[str, Mapping[str, Any]]) -> str:
    """``results``: name -> what where_judge.py found, with its date."""
    return page_table(COLUMNS, cases, results, _row)


def _row(case: Case, result: Mapping[str, Any] | None) -> list[str]:
    if result is None:
        return [case.fault, *[""] * (len(COLUMNS) - 2), "not run"]
    found = Judged(**{key: value for key, value in result.items() if key not in ("date", "stolen")})
    share = f"{found.family} {found.share:.0%}" if found.share is not None else found.family
    truth = "" if found.truth is None else f" ({found.truth:.0%})"
    rates = [f"{_rate(rate)}" for rate in found.named.values() if rate]
    error = "" if found.rate_error is None else f" ({found.rate_error:+.0%})"
    wrong = "; ".join(found.wrong).replace("|", "/").replace("\n", " ")
    return [
        case.fault,
        share + truth,
        ", ".join(found.named) or "nothing",
        ", ".join(rates) + error,
        _said(found.gain),
        f"{found.gain['measured']:.0%}" if "measured" in found.gain else "",
        f"**wrong**: {wrong}" if wrong else "right",
    ]


def _rate(rate: float | None) -> str:
    return "" if rate is None else f"{rate / 1e6:.3g} MB/s"


def _said(gain: Mapping[str, float]) -> str:
    if "share" not in gain:
        return "none" if gain else ""
    return f"{gain['share']:.0%} ({gain['least']:.0%} to {gain['most']:.0%})"
