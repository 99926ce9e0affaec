"""The collector `ranks`: what the ledgers of this node's ranks say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate

from ...torch_hooks.causes import STEP_BUCKETS_SECONDS
from ...torch_hooks.ledger import Ledger
from ..collector import Options
from ..hang import missing_ranks, open_seconds
from ..ledgers import LedgerStore, Rank, Snapshot
from ..metrics.metric import Metric
from ..metrics.ranks import METRICS
from ..reading import Histogram, Labels, Reading

Samples = Iterable[tuple[Labels, float]]

MISSING_AFTER_SECONDS = 1.0
"""A wait in a collective that is shorter than this is nobody's absence."""


def create(options: Options) -> RankCollector:
    return RankCollector(options.ledgers)


class RankCollector:
    """Reads all ledgers at each scrape."""

    def __init__(self, ledgers: LedgerStore):
        self._ledgers = ledgers

    def collect(self, reading: Reading) -> None:
        snapshot = self._ledgers.look()
        for metric in METRICS:
            if metric.type == "histogram":
                for rank in snapshot.ranks:
                    reading.add(metric, _rank(rank.newest), _histogram(metric, rank))
            elif compute := COMPUTED.get(metric.source):
                reading.series(metric).update(compute(snapshot))
            else:
                reading.series(metric).update(_summed(metric, snapshot))


def _histogram(metric: Metric, rank: Rank) -> Histogram:
    counts = list(accumulate(rank.totals["step_buckets"]))
    return Histogram(STEP_BUCKETS_SECONDS, counts, metric.base(rank.totals["step_ns"][0]))


def _summed(metric: Metric, snapshot: Snapshot) -> Samples:
    """A counter straight from a word of the ledgers."""
    place = _place if "device" in metric.labels else _rank
    for rank in snapshot.ranks:
        identity = place(rank.newest)
        for labels, value in zip(metric.series, rank.totals[metric.source], strict=True):
            if labels is not None and (value or not metric.sparse):
                yield (*identity, *labels), metric.base(value)


def _rank(ledger: Ledger) -> tuple[str, ...]:
    return ledger.run, str(ledger.rank)


def _place(ledger: Ledger) -> tuple[str, ...]:
    return ledger.run, str(ledger.rank), ledger.node, ledger.device


def _newest(snapshot: Snapshot) -> Iterator[Ledger]:
    return (rank.newest for rank in snapshot.ranks)


def _open_phase(snapshot: Snapshot) -> Samples:
    for ledger in _newest(snapshot):
        if ledger.alive:
            yield (*_place(ledger), ledger.phase_name), open_seconds(ledger, snapshot.now_ns)


def _hang(snapshot: Snapshot) -> Samples:
    missing = missing_ranks(_newest(snapshot), snapshot.now_ns, longer_than=MISSING_AFTER_SECONDS)
    found = {_rank(one.ledger): one.seconds for one in missing}
    return [(_rank(ledger), found.get(_rank(ledger), 0.0)) for ledger in _newest(snapshot)]


def _identity(snapshot: Snapshot) -> Samples:
    for ledger in _newest(snapshot):
        numbers = (ledger.world_size, ledger.local_rank, ledger.attempt, ledger.pid)
        yield (*_place(ledger), ledger.strings["uuid"], *map(str, numbers)), 1


def _hooks(snapshot: Snapshot) -> Samples:
    for ledger in _newest(snapshot):
        for hook, state in ledger.hook_states.items():
            yield (*_rank(ledger), hook, state), 1


def _pending(snapshot: Snapshot) -> Samples:
    return [(_rank(ledger), ledger.pending_ns / 1e9) for ledger in _newest(snapshot)]


def _up(snapshot: Snapshot) -> Samples:
    return [(_rank(ledger), float(ledger.alive)) for ledger in _newest(snapshot)]


def _errors(snapshot: Snapshot) -> Samples:
    return [((reason,), count) for reason, count in snapshot.errors.items()]


COMPUTED: dict[str, Callable[[Snapshot], Samples]] = {
    "<pending>": _pending,
    "<open phase>": _open_phase,
    "<hang>": _hang,
    "<identity>": _identity,
    "<up>": _up,
    "<hooks>": _hooks,
    "<errors>": _errors,
}
