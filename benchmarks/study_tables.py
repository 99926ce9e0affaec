"""The tables of benchmarks/study.py, in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from study_cells import LINKS, STORAGES, Own, Result
from study_prices import NEAR, Cost, Prices, SetUp, cheapest, cost
from study_tiers import KEPT, TIERS

from whyidle.advisor.compare.comparison import Row, compare
from whyidle.advisor.compare.measures import MEASURES, end_to_end
from whyidle.cli.compare.text import Table, markdown_table, seconds, times
from whyidle.verdict.saved import Report

_OF = {measure.name: measure.of for measure in MEASURES}
END = "end"
SURVIVES = "survives the loss of a node"


def _text(header: Sequence[str], rows: Sequence[Sequence[str]], left: tuple[int, ...]) -> str:
    return "\n".join(markdown_table(Table("", [*header], [[*row] for row in rows], left)))


def whyidle_seconds(report: Report, name: str) -> float | None:
    """A measure of `whyidle compare`, from the ledgers."""
    value = end_to_end(report, int(report["steps"])) if name == END else _OF[name](report)
    return value and value.value


class Measured:
    """All rounds of one set-up. The fastest one counts: what other programs do can only make a round slower."""

    def __init__(self, results: Sequence[Result]):
        self.results = results
        self.cell = results[0].cell
        self.fastest = min(results, key=lambda one: one.own.total)
        self.report = self.fastest.report

    def ours(self, name: str) -> float | None:
        return whyidle_seconds(self.report, name)

    def own(self, of: Callable[[Own], float]) -> float:
        return of(self.fastest.own)

    def both(self, name: str, of: Callable[[Own], float]) -> str:
        return f"{seconds(self.ours(name))} / {seconds(self.own(of))}"

    @property
    def total(self) -> float:
        return self.own(lambda own: own.total)

    @property
    def spread(self) -> float:
        """How much longer the slowest round took than the fastest, as a ratio."""
        return max(one.own.total for one in self.results) / self.total - 1

    @property
    def verdict(self) -> str:
        verdict = self.report.get("verdict") or {}
        return f"{verdict['family']} {100 * verdict['share']:.0f} %" if verdict else "none"


def gathered(results: Sequence[Result]) -> list[Measured]:
    """By set-up, in the order of the study."""
    names = dict.fromkeys(result.cell.name for result in results)
    return [Measured([one for one in results if one.cell.name == name]) for name in names]


def end_to_end_table(found: Sequence[Measured]) -> str:
    """Each time twice: as whyidle has it from the ledgers, and by the clock of the training itself."""
    best = min(one.total for one in found)
    header = ["", "step", "batch wait", "batch wait, p99", "checkpoint", "model restore", "end to end"]
    header += ["to the best", "rounds differ by", "verdict"]
    rows = [
        [
            one.cell.name,
            one.both("step", lambda own: own.step),
            one.both("batch", lambda own: own.wait),
            one.both("batch-p99", lambda own: own.wait_p99),
            one.both("save", lambda own: own.save),
            one.both("restore", lambda own: own.restore),
            one.both(END, lambda own: own.total),
            times(one.total / best),
            f"{100 * one.spread:.0f} %",
            one.verdict,
        ]
        for one in found
    ]
    return _text(header, rows, (0, 9))


def tiers_table(found: Sequence[Measured]) -> str:
    """What each storage does in each phase of a training, on the fastest link."""
    on_fastest = [one for one in found if one.cell.link == LINKS[-1]]
    header = [
        "storage",
        "100 samples, in the data worker",
        "model restore",
        "checkpoint",
        SURVIVES,
        "what it is",
    ]
    rows = [
        [
            one.cell.storage.name,
            seconds(one.own(lambda own: own.read_100)),
            seconds(one.ours("restore")),
            seconds(one.ours("save")),
            one.cell.storage.survives,
            _what(one),
        ]
        for one in on_fastest
    ]
    return _text(header, rows, (0, 4, 5))


def _what(one: Measured) -> str:
    storage = one.cell.storage
    if storage.data == storage.checkpoints:
        return TIERS[storage.data].what
    return f"data on `{storage.data}`, checkpoints on `{storage.checkpoints}`"


def costs(found: Sequence[Measured], prices: Prices) -> list[Cost]:
    best = min(one.total for one in found)
    return [
        cost(
            SetUp(
                one.cell.name,
                one.cell.storage.data,
                one.cell.storage.checkpoints,
                one.cell.link.name,
                one.total / best,
                one.cell.storage.survives,
            ),
            prices,
        )
        for one in found
    ]


def prices_table(found: Sequence[Measured], prices: Prices) -> str:
    every = costs(found, prices)
    slowest = max(every, key=lambda one: one.hours)
    header = [
        "",
        "hours",
        "hours saved",
        "nodes",
        "link",
        "storage",
        "total",
        "for each hour saved",
        SURVIVES,
    ]
    rows = [
        [
            one.set_up.name,
            f"{one.hours:,.0f}",
            f"{slowest.hours - one.hours:,.0f}",
            *(f"${part:,.0f}" for part in (one.nodes, one.links, one.storage, one.total)),
            _for_each_hour(one, slowest),
            one.set_up.survives,
        ]
        for one in every
    ]
    return _text(header, rows, (0, 8)) + "\n\n" + chosen(every)


def _for_each_hour(one: Cost, slowest: Cost) -> str:
    """What link and storage cost more than those of the slowest set-up, for each hour that they save."""
    saved = slowest.hours - one.hours
    more = one.links + one.storage - slowest.links - slowest.storage
    return f"{'-' if more < 0 else ''}${abs(more) / saved:,.2f}" if saved > 0 else "–"


def chosen(every: Sequence[Cost]) -> str:
    """Sentences that name the cheapest set-ups that are fast enough."""
    [any_one, lasting] = cheapest(every), cheapest(every, surviving=True)
    if any_one is None:
        return "No set-up was measured."
    said = f"The cheapest set-up within {NEAR:.0%} of the fastest is {_named(any_one)}."
    if lasting is None:
        return f"{said} No set-up whose checkpoints survive the loss of a node is within {NEAR:.0%} of the fastest."
    if lasting is not any_one:
        said += f" The cheapest of those whose checkpoints survive the loss of a node is {_named(lasting)}."
    return said


def _named(one: Cost) -> str:
    return f"**{one.set_up.name}** ({one.hours:,.0f} hours, ${one.total:,.0f}): {KEPT[one.set_up.survives]}"


def effects_table(found: Sequence[Measured]) -> str:
    """Speed-ups by a better link, by better storage, and by both, from `whyidle compare` on the fastest rounds."""
    by_name = {one.cell.name: one.report for one in found}
    here = [storage.name for storage in STORAGES if f"{storage.name}-{LINKS[0].name}" in by_name]
    (fast, slow), (slow_link, fast_link) = (here[0], here[-1]), (LINKS[0].name, LINKS[-1].name)
    header = ["speed-up by", "step time", "batch wait", "checkpoint", "end to end"]
    header += ["where a step's difference comes from"]
    rows = []
    for what, before, after in (
        (f"link, on {slow}", f"{slow}-{slow_link}", f"{slow}-{fast_link}"),
        (f"link, on {fast}", f"{fast}-{slow_link}", f"{fast}-{fast_link}"),
        (f"storage, on {slow_link}", f"{slow}-{slow_link}", f"{fast}-{slow_link}"),
        (f"storage, on {fast_link}", f"{slow}-{fast_link}", f"{fast}-{fast_link}"),
        ("both", f"{slow}-{slow_link}", f"{fast}-{fast_link}"),
    ):
        [pair] = compare([(before, by_name[before]), (after, by_name[after])]).pairs
        mine = {row.name: row for row in pair.rows}
        faster = [times(mine[name].speedup) for name in ("step", "batch", "save", "end")]
        rows.append([what, *faster, _sources(pair.families)])
    return _text(header, rows, (0, 5))


def _sources(families: list[Row]) -> str:
    """The families that changed significantly and by at least a twentieth of the largest change."""
    changed = sorted((row for row in families if row.told), key=lambda row: -abs(row.difference or 0.0))
    most = max((abs(row.difference or 0.0) for row in changed), default=0.0)
    kept = [row for row in changed if abs(row.difference or 0.0) >= most / 20]
    return ", ".join(f"{row.name} {seconds(row.difference)}" for row in kept) or "no clear difference"


def learned(found: Sequence[Measured]) -> str:
    """A sentence about the losses. They show that the model learns, the same in each set-up."""
    first, last = ({round(getattr(one.own, name), 3) for each in found for one in each.results} for name in _LOSSES)
    return (
        f"The loss of a token went from {_range(first)} to {_range(last)} nats (mean of the last ten steps), "
        f"in {len(found)} set-ups."
    )


_LOSSES = ("first_loss", "last_loss")


def _range(values: set[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:.3f}" if low == high else f"between {low:.3f} and {high:.3f}"
