"""The page that `whyidle compare --html` writes: one file without scripts, for dark and light mode."""

from __future__ import annotations

from html import escape

from ...advisor.compare.comparison import Comparison, Row
from ...advisor.compare.conditions import Judged
from ...dashboards.colours import FAMILY_COLOUR
from ...ledger.causes import FAMILIES
from ..quantities import in_time
from .text import Table, notes, runs_of, sentence, tables

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #fff; --line: #d5d9df; --faint: #59636e }
@media (prefers-color-scheme: dark) { :root { --ink: #e8eaed; --paper: #16181c; --line: #3a3f47; --faint: #9aa4b0 } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem auto;
  max-width: 62rem; padding: 0 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem }
.wide { overflow-x: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .25rem .75rem .25rem 0; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap }
th { color: var(--faint); font-weight: 600 }
.words { text-align: left } .told { font-weight: 600 } .faint { color: var(--faint) }
.bars { display: grid; grid-template-columns: max-content 1fr max-content; gap: .4rem .75rem; align-items: center }
.bar { display: flex; height: 1.5rem } .bar span { min-width: 1px }
.key { display: flex; flex-wrap: wrap; gap: .25rem 1rem; margin: .75rem 0; padding: 0; list-style: none }
.key i { display: inline-block; width: .8rem; height: .8rem; margin-right: .35rem; vertical-align: -.05rem }
"""


def render_html(comparison: Comparison, judged: list[Judged]) -> str:
    names = ", ".join(one.name for one in comparison.runs)
    parts = [f"<h1>{escape(names)}</h1>", _runs(comparison), "<h2>A step</h2>", _bars(comparison)]
    parts += [f"<h2>{escape(table.title)}</h2>{_table(table)}" for table in tables(comparison)]
    if judged:
        parts.append(_list("Conditions", [sentence(one) for one in judged]))
    if said := notes(comparison):
        parts.append(_list("Notes", said))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>whyidle: {escape(names)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    )


def _runs(comparison: Comparison) -> str:
    return _list("", [f"{row[0]}: {' · '.join(row[1:])}" for row in runs_of(comparison)])


def _list(title: str, sentences: list[str]) -> str:
    head = f"<h2>{escape(title)}</h2>" if title else ""
    return f"{head}<ul>{''.join(f'<li>{escape(one)}</li>' for one in sentences)}</ul>"


def _table(table: Table) -> str:
    def row(cells: list[str], tag: str) -> str:
        return "".join(
            f"<{tag}{_class(cell, at in table.left)}>{escape(cell)}</{tag}>" for at, cell in enumerate(cells)
        )

    head = f"<tr>{row(table.header, 'th')}</tr>"
    body = "".join(f"<tr>{row(cells, 'td')}</tr>" for cells in table.rows)
    return f'<div class="wide"><table><thead>{head}</thead><tbody>{body}</tbody></table></div>'


def _class(cell: str, words: bool) -> str:
    names = ["words"] if words else []
    names += ["told"] if cell in ("faster", "slower") else []
    return f' class="{" ".join(names)}"' if names else ""


def _bars(comparison: Comparison) -> str:
    """A bar for each run: the time of a step by family. All bars have the same scale."""
    first: dict[str, float] = {row.name: row.before or 0.0 for row in _first(comparison)}
    runs = [first, *({row.name: row.after or 0.0 for row in pair.families} for pair in comparison.pairs)]
    longest = max(sum(run.values()) for run in runs) or 1.0
    lines = []
    for described, spent in zip(comparison.runs, runs, strict=True):
        pieces = "".join(
            f'<span style="width:{100 * max(0.0, spent.get(family, 0.0)) / longest:.2f}%;'
            f'background:{FAMILY_COLOUR[family]}" title="{family} {escape(in_time(spent[family]))}"></span>'
            for family in FAMILIES
            if spent.get(family, 0.0) > 0
        )
        lines.append(
            f'<span>{escape(described.name)}</span><div class="bar">{pieces}</div>'
            f"<span>{escape(in_time(described.seconds_per_step))}</span>"
        )
    used = [family for family in FAMILIES if any(run.get(family, 0.0) > 0 for run in runs)]
    key = "".join(f'<li><i style="background:{FAMILY_COLOUR[family]}"></i>{family}</li>' for family in used)
    return f'<div class="bars">{"".join(lines)}</div><ul class="key">{key}</ul>'


def _first(comparison: Comparison) -> list[Row]:
    """The families of the first run, from all pairs, because a pair leaves out families that neither of its runs
    has."""
    rows = {row.name: row for pair in comparison.pairs for row in pair.families}
    return list(rows.values())
