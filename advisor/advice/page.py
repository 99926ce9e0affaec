"""Writes the rules into docs/advice.md and docs/runbook.md: `python -m whyidle.advisor.advice.page`.

With `--check` it only compares. The generated parts are between two comments; the rest of the pages is written by hand.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from ...ledger.causes import FAMILIES
from .rule import HERE, Rule
from .table import RULES

DOCS = Path(__file__).resolve().parents[2] / "docs"
TITLES = {
    "cpu": "CPUs",
    "memory": "Memory",
    "shm": "Shared memory",
    "data": "Batches",
    "storage": "Mounts",
    "network": "Transfers",
    "straggler": "Late ranks",
    "pipeline": "Pipelines",
    "checkpoint": "Saves",
    "evaluation": "Evaluations",
    "host": "The loop's own process",
    "compute": "Compute beside training",
}
"""First part of the id of a rule -> heading."""


def pages() -> dict[str, dict[str, str]]:
    """Returns file name -> name of a generated part -> its text."""
    # No alert says that time is lost to compute.
    runbook = {family: text for family in FAMILIES if family != "compute" and (text := _of_family(family))}
    return {"advice.md": {"rules": "\n".join(_table())}, "runbook.md": runbook}


def _table() -> Iterator[str]:
    for kind, title in TITLES.items():
        yield f"### {title}\n"
        yield "| rule | applies when | change | gain | check | tried |"
        yield "| --- | --- | --- | --- | --- | --- |"
        for rule in RULES:
            if rule.id.split(".")[0] == kind:
                cells = (f"`{rule.id}`", rule.when, rule.change, rule.gain, rule.check, rule.tried)
                yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
        yield ""


def _of_family(family: str) -> str:
    said = [_item(rule) for rule in RULES if family in rule.families]
    head = "**Advice** that `whyidle report` may give, with numbers ([advice.md](advice.md)):\n"
    return "\n".join([head, *said]) if said else ""


def _item(rule: Rule) -> str:
    tried = "" if rule.tried == HERE else f" (tried: {rule.tried})"
    return f"- `{rule.id}`: {rule.change[0].lower()}{rule.change[1:]}{tried}"


def filled(text: str, parts: dict[str, str]) -> str:
    """Returns a page with its generated parts filled in. Raises ValueError if the page has no place for a part."""
    for name, part in parts.items():
        pattern = re.compile(rf"(<!-- advice: {name} -->\n).*?(<!-- advice: end -->)", re.DOTALL)
        text, count = pattern.subn(lambda match, part=part: f"{match[1]}{part.rstrip()}\n{match[2]}", text)
        if count != 1:
            raise ValueError(f"the comment <!-- advice: {name} --> is there {count} times")
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the rules of advice into the docs.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is not up to date")
    check = parser.parse_args().check
    stale = []
    for name, parts in pages().items():
        path = DOCS / name
        text = path.read_text(encoding="utf-8")
        if text == (now := filled(text, parts)):
            continue
        stale.append(name)
        if not check:
            path.write_text(now, encoding="utf-8")
    if check and stale:
        print(
            f"docs/{' and docs/'.join(stale)} differ from the rules in advisor/advice/: run `make docs`",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
