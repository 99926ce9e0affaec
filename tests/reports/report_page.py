"""The section *Public reports* of docs/accuracy.md, from the results of run.py. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from report_rows import Report
from support_suite_of_cases import page_table

COLUMNS = ("report", "pattern", "truth", "whyidle", "verdict", "note")


def table(reports: Sequence[Report], results: Mapping[str, Mapping[str, Any]]) -> str:
    """``results``: name -> what report_judge.py found, with its date."""
    return page_table(COLUMNS, reports, results, _row)


def _row(report: Report, found: Mapping[str, Any] | None) -> list[str]:
    begin = [", ".join(map(_link, report.sources)), report.pattern]
    if found is None:
        return [*begin, " or ".join(report.truth), "", "not run", ""]
    truth = " or ".join(_share(family, share) for family, share in found["truth"].items())
    told = _share(found["family"], found["share"]) or "no verdict"
    return [*begin, truth, told, "**wrong**" if found["wrong"] else "right", _plain("; ".join(found["wrong"]))]


def _share(family: str, share: float | None) -> str:
    return family if share is None else f"{family} {share:.1%}"


def _link(source: str) -> str:
    repository, _, number = source.partition("#")
    if source.startswith("https://"):
        return f"[{source.split('/')[2]}]({source})"
    return f"[{source}](https://github.com/{repository}/issues/{number})"


def _plain(text: str) -> str:
    return text.replace("|", "/").replace("\n", " ")
