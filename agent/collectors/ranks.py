"""The collector `ranks`: metrics from the ledgers of this node's ranks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate, islice

from ...ledger.causes import STEP_BUCKETS_SECONDS
from ...ledger.directory import run_of
from ...ledger.given import MEMORY_OF
from ...ledger.layout import BEGINNINGS
from ...ledger.reader import Ledger
from ...verdict import out_of_memory
from ...verdict.devices import reason
from ...verdict.ends import end_of
from ...verdict.hang import missing_ranks, open_seconds
from ...verdict.spare import full_nodes, spare_of
from ..collector import Options
from ..group_sums import across_nodes
from ..ledgers import LedgerStore, Rank, Snapshot, rank_labels
from ..metrics.links import LINK_SUMS
from ..metrics.metric import Metric
from ..metrics.mounts import MOUNT_SUMS
from ..metrics.ranks import GROUP_PARTS, GROUP_WAITS, METRICS, PLACE, RANK
from ..metrics.runs import GROUP_SUMS, GROUPS_ACROSS, LIVE_RANKS, SUMS
from ..mounts_links import of_now
from ..reading import Histogram, Labels, Reading
from ..run_sums import Place, place_of

Samples = Iterable[tuple[Labels, float]]
Series = dict[Labels, "float | Histogram"]

MISSING_AFTER_SECONDS = 1.0
"""Waits in a collective that are shorter than this do not make another rank count as missing."""


def create(options: Options) -> RankCollector:
    return RankCollector(options.ledgers)


class RankCollector:
    """Reads all ledgers at each scrape."""

    def __init__(self, ledgers: LedgerStore):
        self._ledgers = ledgers
        self._labels: dict[Labels, _RankLabels] = {}

    def collect(self, reading: Reading) -> None:
        snapshot = self._ledgers.look()
        labels = {place: self._labels.get(place) or _RankLabels(place) for place in map(_place, _newest(snapshot))}
        self._labels = labels  # without those of ranks that are gone
        of_rank = list(zip(snapshot.ranks, labels.values(), strict=True))
        for metric in METRICS:
            if compute := COMPUTED.get(metric.source):
                reading.series(metric).update(compute(snapshot))
                continue
            samples = reading.series(metric)
            for rank, kept in of_rank:
                if metric.type == "histogram":
                    samples[kept.rank] = _histogram(metric, rank)
                else:
                    _add_words(samples, metric, kept.of[metric], rank.totals[metric.source])
        reading.series(LIVE_RANKS).update(_live(snapshot))
        for metric in SUMS:
            samples = reading.series(metric)
            for place, run in snapshot.runs.items():
                labels_of = [None if labels is None else (*place, *labels) for labels in metric.series]
                _add_words(samples, metric, labels_of, run.sums[metric.source])
        for place, run in snapshot.runs.items():
            for group, counted in run.groups.items():
                _add_labelled(reading, GROUP_SUMS, (*place, group), counted)
            for mount, counted in run.mounts.items():
                _add_labelled(reading, MOUNT_SUMS, (*place, *mount), counted)
            for link, counted in run.links.items():
                _add_labelled(reading, LINK_SUMS, (*place, *link), counted)
        reading.series(GROUPS_ACROSS).update(_across(snapshot))
        _add_mounts_and_links_of_now(reading, snapshot)


class _RankLabels:
    """The labels of one rank's series. They are built once, since building them would be most of a scrape's cost."""

    def __init__(self, place: Labels):
        self.rank = place[: len(RANK)]
        self.of = {
            metric: [None if labels is None else (*_identity_of(metric, place), *labels) for labels in metric.series]
            for metric in METRICS
        }


def _identity_of(metric: Metric, place: Labels) -> Labels:
    """The part of a rank's place that its series of a metric have: the rank, and often its node and its device."""
    return tuple(value for label, value in zip(PLACE, place, strict=True) if label in metric.labels)


def _histogram(metric: Metric, rank: Rank) -> Histogram:
    counts = list(accumulate(rank.totals["step_buckets"]))
    return Histogram(STEP_BUCKETS_SECONDS, counts, metric.base(rank.totals["step_ns"][0]))


def _add_words(samples: Series, metric: Metric, labels_of: Sequence[Labels | None], words: tuple[int, ...]) -> None:
    """Adds the values of one word of a ledger as samples."""
    per, sparse = metric.per, metric.sparse
    for labels, value in zip(labels_of, words, strict=True):
        if labels is not None and (value or not sparse):
            samples[labels] = value / per if per != 1 else value


def _add_labelled(reading: Reading, metrics: Iterable[Metric], labels: Labels, words: tuple[int, ...]) -> None:
    """Adds the sums of one process group, mount or link: for each metric, as many words as it has series."""
    rest = iter(words)
    for metric in metrics:
        series = [(*labels, *each) for each in metric.series if each is not None]
        _add_words(reading.series(metric), metric, series, tuple(islice(rest, len(series))))


def _on_node(ledger: Ledger) -> Labels:
    return *rank_labels(ledger), ledger.node


def _place(ledger: Ledger) -> Labels:
    return *_on_node(ledger), ledger.device


def _newest(snapshot: Snapshot) -> Iterator[Ledger]:
    return (rank.newest for rank in snapshot.ranks)


def _live(snapshot: Snapshot) -> Series:
    counts: dict[Labels, float | Histogram] = dict.fromkeys(snapshot.runs, 0.0)
    live = Counter(place_of(ledger) for ledger in _newest(snapshot) if ledger.alive)
    return counts | {place: float(count) for place, count in live.items()}


def _across(snapshot: Snapshot) -> Series:
    """Only groups that have sums: there are not too many of them."""
    return {
        (*place, group): count
        for place, of_place in across_nodes(_newest(snapshot), place_of).items()
        for group, count in of_place.items()
        if group in snapshot.runs[place].groups
    }


def _add_mounts_and_links_of_now(reading: Reading, snapshot: Snapshot) -> None:
    live: dict[Place, list[Ledger]] = defaultdict(list)
    for ledger in _newest(snapshot):
        if ledger.alive:
            live[place_of(ledger)].append(ledger)
    for place, ledgers in live.items():
        run = snapshot.runs[place]
        for (metric, labels), value in of_now(ledgers, run.mounts, run.links).items():
            reading.series(metric)[(*place, *labels)] = value


def _open_phase(snapshot: Snapshot) -> Samples:
    for ledger in _newest(snapshot):
        if ledger.alive:
            yield (*_place(ledger), ledger.position.phase), open_seconds(ledger, snapshot.now_ns)


def _hang(snapshot: Snapshot) -> Samples:
    missing = missing_ranks(_newest(snapshot), snapshot.now_ns, longer_than=MISSING_AFTER_SECONDS)
    return [(_on_node(one.ledger), one.seconds) for one in missing]


def _identity(snapshot: Snapshot) -> Samples:
    for ledger in _newest(snapshot):
        numbers = (ledger.world_size, ledger.local_rank, ledger.attempt, ledger.pid)
        yield (*_place(ledger), ledger.strings["uuid"], *map(str, numbers)), 1


def _hooks(snapshot: Snapshot) -> Samples:
    for ledger in _newest(snapshot):
        rank = rank_labels(ledger)
        for hook, state in ledger.hook_states.items():
            yield (*rank, hook, state), 1


def _pending(snapshot: Snapshot) -> Samples:
    # Those of a killed rank are in its device-seconds.
    return [(rank_labels(one), one.pending_ns / 1e9 if one.alive or one.ended else 0.0) for one in _newest(snapshot)]


def _group_waits(snapshot: Snapshot) -> Samples:
    for rank in snapshot.ranks:
        labels = rank_labels(rank.newest)
        for group, words in rank.groups.items():
            for part, spent in zip(GROUP_PARTS, words, strict=False):  # the calls follow the parts
                yield (*labels, group, part), GROUP_WAITS.base(spent)


def _group_calls(snapshot: Snapshot) -> Samples:
    for rank in snapshot.ranks:
        labels = rank_labels(rank.newest)
        for group, (*_, calls) in rank.groups.items():
            yield (*labels, rank.newest.node, group), calls


def _world_size(snapshot: Snapshot) -> Samples:
    return [(rank_labels(ledger), float(ledger.world_size)) for ledger in _newest(snapshot)]


def _up(snapshot: Snapshot) -> Samples:
    return [(rank_labels(ledger), float(ledger.alive)) for ledger in _newest(snapshot)]


def _killed(snapshot: Snapshot) -> Samples:
    return _ended(snapshot, "killed")


def _out_of_memory(snapshot: Snapshot) -> Samples:
    for ledger in _newest(snapshot):
        if evidence := out_of_memory.evidence(ledger):
            yield (*_on_node(ledger), evidence), 1.0


def _failed(snapshot: Snapshot) -> Samples:
    return _ended(snapshot, "failed")


def _ended(snapshot: Snapshot, how: str) -> Samples:
    return [(_on_node(ledger), float(end_of(ledger) == how)) for ledger in _newest(snapshot) if not ledger.alive]


def _stopped(snapshot: Snapshot) -> Samples:
    return [(_on_node(ledger), 1.0) for ledger in _newest(snapshot) if ledger.stopped_by]


def _restored(snapshot: Snapshot) -> Samples:
    for ledger in _newest(snapshot):
        if ledger.restored_step:
            how = BEGINNINGS[ledger.beginning], str(ledger.restored_attempt - 1), str(ledger.requeues)
            yield (*rank_labels(ledger), *how), float(ledger.restored_step - 1)


def _unused(snapshot: Snapshot) -> Samples:
    live = [ledger for ledger in _newest(snapshot) if ledger.alive]
    unused = [ledger for ledger in live if reason(ledger)]
    full = {run: full_nodes(run, live) for run in {run_of(ledger) for ledger in unused}}
    for ledger in unused:
        if ledger.node not in full[run_of(ledger)]:
            yield (*_on_node(ledger), reason(ledger)), float(ledger.gpus_visible)


def _allowed(snapshot: Snapshot) -> Samples:
    for ledger in _newest(snapshot):
        if ledger.alive and ledger.cpus_allowed:
            quota, allowed = ledger.cpu_quota_milli / 1000, float(ledger.cpus_allowed)
            by = "quota" if 0 < quota < allowed else "affinity" if allowed < ledger.cpus_node else ""
            yield (*_on_node(ledger), by), quota if by == "quota" else allowed


def _memory(snapshot: Snapshot, word: str) -> Samples:
    for ledger in _newest(snapshot):
        if ledger.alive and ledger.memory_at_ns:
            yield (*_on_node(ledger), MEMORY_OF[ledger.memory_of]), float(ledger.words[word][0])


def _spare(snapshot: Snapshot) -> Samples:
    live = [ledger for ledger in _newest(snapshot) if ledger.alive]
    for run in {run_of(ledger) for ledger in live if ledger.gpus_visible > 1}:
        for one in spare_of(run, live):
            if one.unused:
                yield (*run, one.node), float(one.unused)


def _errors(snapshot: Snapshot) -> Samples:
    return [((reason,), count) for reason, count in snapshot.errors.items()]


COMPUTED: dict[str, Callable[[Snapshot], Samples]] = {
    "<pending>": _pending,
    "<open phase>": _open_phase,
    "<hang>": _hang,
    "<group waits>": _group_waits,
    "<group calls>": _group_calls,
    "<identity>": _identity,
    "<world size>": _world_size,
    "<up>": _up,
    "<killed>": _killed,
    "<out of memory>": _out_of_memory,
    "<failed>": _failed,
    "<stopped>": _stopped,
    "<restored>": _restored,
    "<hooks>": _hooks,
    "<unused gpus>": _unused,
    "<allowed cpus>": _allowed,
    "<used memory>": partial(_memory, word="memory_used_bytes"),
    "<memory limit>": partial(_memory, word="memory_limit_bytes"),
    "<spare gpus>": _spare,
    "<errors>": _errors,
}
