"""Writes the table of docs/causes.md from the rows of the causes in ledger/cause_rows.py.

python tools/causes.py           writes the table
python tools/causes.py --check   fails if the table is old, or if a row names a section that the page does not have
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from whyidle.ledger.cause_rows import CAUSE_ROWS, Cause

PAGE = Path(__file__).resolve().parents[1] / "docs" / "causes.md"
_TABLE = re.compile(r"(<!-- causes: begin -->\n).*?(<!-- causes: end -->)", re.DOTALL)
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def table() -> str:
    """The table, as Markdown."""
    head = "| cause | family | measured by |\n| --- | --- | --- |\n"
    return head + "".join(f"| {_name(row)} | {row.family} | {row.measured} |\n" for row in CAUSE_ROWS)


def _name(row: Cause) -> str:
    return f"[`{row.name}`](#{row.anchor})" if row.anchor else f"`{row.name}`"


def anchors(page: str) -> set[str]:
    """The anchors of the headings of a page, as GitHub makes them."""
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in _HEADING.findall(page)}


def main(check: bool) -> int:
    """Returns 1 if the page is not as it should be."""
    page = PAGE.read_text()
    missing = {row.anchor for row in CAUSE_ROWS if row.anchor} - anchors(page)
    if missing:
        print(f"docs/causes.md has no section {', '.join(sorted(missing))}: see ledger/cause_rows.py", file=sys.stderr)
        return 1
    wanted = _TABLE.sub(lambda found: found[1] + table() + found[2], page)
    if not check:
        PAGE.write_text(wanted)
    elif page != wanted:
        print("docs/causes.md differs from the rows in ledger/cause_rows.py: run `make docs`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
