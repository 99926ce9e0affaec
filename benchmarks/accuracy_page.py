"""docs/accuracy.md from results and the template accuracy_page.md. Pure functions: cells and results in, text out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from string import Template

from accuracy_cells import CPU, CUDA, DEMO, DEVICES, PEERS, SIMULATED, Cell, Finding, Result
from accuracy_notes import note

Results = Mapping[Cell, Result]

TITLES = {CPU: "CPU ranks", SIMULATED: "The simulated device", CUDA: "CUDA on a stand-in", DEMO: "The demo's job"}
"""Device -> the heading of its table in the template."""
TEMPLATE = Path(__file__).with_suffix(".md")
KEPT = ("reports", "whereabouts", "background")
"""The tables that other programs write into the page: tests/reports/run.py, tests/whereabouts/run.py and
tests/background/run.py."""
COLUMNS = ("job", "fault", "truth", "whyidle", "error", "culprit", "rest", "verdict", "note")
PEER_COLUMNS = ("job", "fault", "whyidle", "TraceML 0.5.0", "torch.profiler")


def page(cells: Sequence[Cell], results: Results, before: str = "") -> str:
    """``before``: the page as it was. Its tables of KEPT stay."""
    tables = {device: _table(device, cells, results) for device in DEVICES}
    head = {"when": _when(results), "summary": _summary(cells, results), "peers": _peers(cells, results)}
    return Template(TEMPLATE.read_text()).substitute(head, **tables, **{name: kept(before, name) for name in KEPT})


def kept(text: str, name: str) -> str:
    """A table of KEPT in a page."""
    begin, end = _marks(name)
    return text.partition(begin)[2].partition(end)[0]


def insert(text: str, name: str, table: str) -> str:
    """The page with another table of KEPT."""
    begin, end = _marks(name)
    before, _, rest = text.partition(begin)
    return f"{before}{begin}{table}{end}{rest.partition(end)[2]}"


def _marks(name: str) -> tuple[str, str]:
    return f"<!-- {name}: table -->\n", f"<!-- {name}: end -->\n"


def _when(results: Results) -> str:
    if not results:
        return "Nothing has been run yet."
    dates, commits = (sorted({of(result) for result in results.values()}) for of in (lambda one: one.date, _commit))
    stolen = max(result.stolen for result in results.values())
    machines = sorted({result.machine for result in results.values()})
    return (
        f"It was run on {' and '.join(dates)}, at commit {' and '.join(commits)}, on {' and '.join(machines)}. While a"
        f" cell ran, a hypervisor took up to {stolen:.0%} of the CPU time."
    )


def _commit(result: Result) -> str:
    return f"`{result.commit}`"


def _run(result: Result) -> str:
    return f"run on {result.date} at {_commit(result)}"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _summary(cells: Sequence[Cell], results: Results) -> str:
    columns = ("device", "right", "largest error", "median error", "culprit named first", "not run")
    return table(columns, [_line(device, cells, results) for device in DEVICES])


def _line(device: str, cells: Sequence[Cell], results: Results) -> list[str]:
    of_device = [cell for cell in cells if cell.device == device]
    found = [finding for cell in of_device if (finding := _finding(cell, results)) is not None]
    errors = [100 * abs(finding.error) for finding in found if finding.error is not None]
    named = [finding.named for finding in found if finding.named is not None]
    right = sum(not finding.wrong for finding in found)
    return [
        f"[{TITLES[device]}](#{_anchor(TITLES[device])})",
        f"{right} of {len(found)}",
        f"{max(errors):.1f} points" if errors else "",
        f"{median(errors):.1f} points" if errors else "",
        f"{sum(named)} of {len(named)}",
        str(len(of_device) - len(found)),
    ]


def _anchor(title: str) -> str:
    return "".join(each for each in title.lower() if each.isalnum() or each in "- ").replace(" ", "-")


def _finding(cell: Cell, results: Results) -> Finding | None:
    return results[cell].finding if cell in results else None


def _table(device: str, cells: Sequence[Cell], results: Results) -> str:
    """A table, and when most of its cells were run. The other cells say it in their notes."""
    of_device = [cell for cell in cells if cell.device == device]
    usual = Counter(_run(results[cell]) for cell in of_device if cell in results).most_common(1)
    head = f"{usual[0][0].capitalize()}.\n\n" if usual else ""
    return head + table(COLUMNS, [_row(cell, results.get(cell), usual[0][0] if usual else "") for cell in of_device])


def _row(cell: Cell, result: Result | None, usual: str) -> list[str]:
    begin = [cell.job, cell.fault or "–"]
    finding = result.finding if result else None
    if result is None or finding is None:
        reason = result.reason if result else "it has no result yet"
        return [*begin, *[""] * 5, "not run", _plain(reason)]
    return [
        *begin,
        _truth(finding),
        _share(finding.told, finding.told_share),
        "" if finding.error is None else f"{100 * finding.error:+.1f}",
        {None: "", True: f"rank {finding.culprit}", False: f"rank {finding.culprit}, not named"}[finding.named],
        "" if finding.rest is None else f"{finding.rest:.2%}",
        "**wrong**" if finding.wrong else "right",
        _note(cell, result, finding, usual),
    ]


def _note(cell: Cell, result: Result, finding: Finding, usual: str) -> str:
    said = [*finding.wrong, note(cell)] if finding.wrong else []
    said += [_run(result)] if _run(result) != usual else []
    return _plain("; ".join(filter(None, said)))


def _truth(finding: Finding) -> str:
    """For a range: from its start to its end."""
    if finding.least is not None and finding.share is not None:
        return f"{finding.family} {finding.least:.1%} to {finding.share:.1%}"
    return _share(finding.family, finding.share) or "nothing"


def _share(family: str, share: float | None) -> str:
    return "" if not family or share is None else f"{family} {share:.1%}"


def _plain(text: str) -> str:
    return text.replace("|", "/").replace("\n", " ")


def _peers(cells: Sequence[Cell], results: Results) -> str:
    rows = []
    for cell in (cell for cell in cells if cell.device == DEMO):
        ours = _finding(cell, results)
        told = _with_truth(_share(ours.told, ours.told_share), ours) if ours else "not run"
        rows.append([cell.job, cell.fault, told, *(_peer(Cell(tool, cell.job, cell.fault), results) for tool in PEERS)])
    return table(PEER_COLUMNS, rows)


def _peer(cell: Cell, results: Results) -> str:
    finding = _finding(cell, results)
    if finding is not None:
        return _plain(_with_truth(finding.told, finding))
    return f"not run: {_plain(results[cell].reason) if cell in results else 'it has no result yet'}"


def _with_truth(told: str, finding: Finding) -> str:
    return told if finding.share is None else f"{told} (truth: {finding.share:.1%})"
