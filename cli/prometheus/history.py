"""Asks Prometheus for the attempts of a run, and where the time of each attempt went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil

from ...advisor import history
from ...advisor.goodput import Goodput
from ...advisor.history import Process, ProcessKey, Recorded
from ...ledger.layout import BEGINNINGS
from ...verdict.recent import SAVING
from ...verdict.standing import ASIDE
from .client import Course, Labels, NoAnswer, Prometheus, over
from .runs import SECONDS, Chosen

LEAST_STEP, MOST_STEPS = 30.0, 40_000
"""The least seconds between two points of a witness's series, and the most points: 65 s apart over 30 days."""
MOST_ATTEMPTS = 200
"""Each attempt costs about twelve queries."""
FRESH = 300.0
"""The seconds for which Prometheus and its rules use the last sample as the current one."""
SCRAPED, EVALUATION = 30.0, 60.0
"""The most seconds until all agents are scraped, and until a rule has recorded their counters. The rules have the same
limits."""
MILLISECOND = 0.001
_SAVES = 'cause=~"' + "|".join(SAVING) + '"'
_ASIDE = 'cause=~"' + "|".join(ASIDE) + '"'


def ask(asked: Prometheus, chosen: Chosen) -> tuple[Goodput, list[str]]:
    """Returns the goodput of a run over all its nodes, and sentences about what was not recorded. Raises NoAnswer."""
    return _History(asked, chosen).goodput()


class _History:
    def __init__(self, asked: Prometheus, chosen: Chosen):
        self._asked, self._chosen = asked, chosen
        self._seen = asked.series(chosen.of("whyidle_rank_info"), chosen.start, chosen.end)
        self._apart = max(LEAST_STEP, ceil((chosen.end - chosen.start) / MOST_STEPS))
        self._counters: dict[tuple[str, float], dict[str, float]] = {}
        self._counted_on: dict[float, dict[str, dict[str, float]]] = {}

    def goodput(self) -> tuple[Goodput, list[str]]:
        attempts = self._attempts()
        chosen = self._chosen
        history.set_bounds(attempts, chosen.start, chosen.end, self._apart + EVALUATION)
        for one in attempts:
            spans = history.standstills(one)
            one.stalled = history.stalled(one, spans, [self._aside(*span) for span in spans])
        found = history.goodput_of(chosen.run, attempts)
        found.ranks = len({_rank(one) for one in self._seen})
        return found, [*history.holes(attempts), *(f"Prometheus warns: {one}" for one in self._asked.warnings)]

    def _attempts(self) -> list[Recorded]:
        witnesses = self._witnesses()
        if not witnesses:
            raise NoAnswer("there is no scrape of this run in this time: look back further with --since")
        if len(witnesses) > MOST_ATTEMPTS:
            raise NoAnswer(
                f"the run has {len(witnesses)} attempts in this time, and {MOST_ATTEMPTS} can be added up: look back"
                " over less with --since"
            )
        last = self._chosen.end - witnesses[-1].last < FRESH
        phases = self._by("phase", self._chosen.of("whyidle_phase_open_seconds"), self._chosen.end) if last else {}
        return [
            self._attempt(witnesses, place, phases if one is witnesses[-1] else {})
            for place, one in enumerate(witnesses)
        ]

    def _witnesses(self) -> list[Process]:
        """The witness of each attempt, which is its lowest rank, with everything that is recorded of it."""
        lowest: dict[int, int] = {}
        for one in self._seen:
            attempt = _attempt_of(one)
            lowest[attempt] = min(_rank(one), lowest.get(attempt, _rank(one)))
        ranks = "|".join(str(rank) for rank in sorted(set(lowest.values())))

        def of(metric: str) -> str:
            return self._chosen.of(metric, f'rank=~"{ranks}"')

        sightings: dict[ProcessKey, list[tuple[float, float]]] = {}
        nodes: dict[str, str] = {}
        for labels, points in self._courses(f"timestamp({of('whyidle_rank_info')})"):
            nodes[labels.get("instance", "")] = _node(labels)
            if _rank(labels) == lowest.get(_attempt_of(labels)):
                who = ProcessKey(_node(labels), _rank(labels), _attempt_of(labels), labels.get("pid", ""))
                sightings.setdefault(who, []).extend(points)
        opened = of("whyidle_phase_open_seconds")
        since: dict[tuple[str, int, str], list[tuple[float, float]]] = {}
        for labels, points in self._courses(f"timestamp({opened}) - {opened}"):
            since.setdefault((_node(labels), _rank(labels), labels.get("phase", "")), []).extend(points)
        steps: dict[tuple[str, int], list[tuple[float, float]]] = {}
        made = of("whyidle_steps_total")
        # While the server is down, a query repeats the last sample for five minutes, as if the run made no steps.
        before = f"timestamp({made} offset {round(1000 * self._apart)}ms)"
        for labels, points in self._courses(f"{made} unless timestamp({made}) == {before}"):
            steps.setdefault((nodes.get(labels.get("instance", ""), ""), _rank(labels)), []).extend(points)
        booked: dict[tuple[str, int], list[tuple[float, float]]] = {}
        startups = self._chosen.of("whyidle_device_seconds_total", f'rank=~"{ranks}", cause="startup"')
        for labels, points in self._courses(startups):
            booked.setdefault((_node(labels), _rank(labels)), []).extend(points)
        for points in (*sightings.values(), *since.values(), *steps.values(), *booked.values()):
            points.sort()  # several agents may have exported the rank, one after the other
        found = history.processes(sightings)
        history.add_phases(found, since)
        history.add_startups(found, booked)
        history.add_steps(found, steps)
        return found

    def _attempt(self, witnesses: Sequence[Process], place: int, phases: Mapping[str, float]) -> Recorded:
        one = witnesses[place]
        following = witnesses[place + 1] if place + 1 < len(witnesses) else None
        own = [labels for labels in self._seen if _attempt_of(labels) == one.who.attempt]
        ranks = len({_rank(labels) for labels in own})
        # The last query that did not return it is the earliest possible start.
        start = one.asked - self._apart if place else self._chosen.start
        end = following.asked - self._apart if following else self._chosen.end
        seconds = self._recorded("cause", "", start, end)
        seconds = history.without(seconds, self._twice(one, witnesses[:place], {_node(labels) for labels in own}))
        for cause, more in history.open_causes(phases).items():
            seconds[cause] = seconds.get(cause, 0.0) + more
        # The counters of the first attempt began at 0, unless it started before anything was recorded.
        whole = place == 0 and one.who.attempt == 0 and (one.opened is not None or seconds.get("startup", 0.0) > 0)

        def grown(metric: str, matchers: str = "") -> float:
            counter = self._chosen.of(metric, matchers)
            return history.grown(
                {} if whole else self._counted(counter, one.first),
                self._counted(counter, one.last),
                self._counted(counter, following.first) if following is not None else {},
            )

        killed, failed = self._end(one) if following is None and not phases else (None, None)
        recorded = Recorded(
            witness=one,
            ranks=ranks,
            world_size=max(_number(labels, "world_size") for labels in own),
            seconds=seconds,
            steps=round(grown("whyidle_steps_total")),
            saves=round(grown("whyidle_checkpoints_total", 'kind="save"')),
            blocked=grown("whyidle_device_seconds_total", _SAVES),
            blocked_cpu=grown("whyidle_device_seconds_total", 'cause="checkpoint_cpu"'),
            alive=bool(phases),
            killed=killed,
            failed=bool(failed),
            unused=self._unused(one, ranks),
        )
        self._add_beginning(recorded)
        return recorded

    def _add_beginning(self, one: Recorded) -> None:
        """Sets which checkpoint an attempt has restored, and whether it was asked to end. The last scrape tells it."""
        moment, on = one.witness.last, "on (instance, owner, run, rank)"
        info = self._chosen.of("whyidle_rank_info", f'attempt="{one.witness.who.attempt}"')
        restored, stopped = (self._chosen.of(f"whyidle_rank_{name}") for name in ("restored_step", "stopped"))
        how = "max by (beginning, saved_by, requeues)"
        answer = self._asked.query(f"{how} ({restored} and {on} {info})", moment)
        # Ranks of other nodes than the one that saves may not know all of it.
        known = max(answer, key=lambda each: BEGINNINGS.index(_beginning(each.labels)), default=None)
        if known is not None:
            one.beginning = _beginning(known.labels)
            one.restored_step = round(known.value)
            one.restored_from, one.requeues = (_number(known.labels, name) for name in ("saved_by", "requeues"))
        # A launcher stops the other ranks of one that has crashed.
        asked_to_end = f"count ({stopped} and {on} {info}) == count ({info})"
        one.stopped = bool(self._asked.query(asked_to_end, moment))

    def _end(self, one: Process) -> tuple[bool | None, ...]:
        """Whether a rank of the last attempt was killed, and whether one failed; None where no agent has told."""
        rank = "instance, owner, run, rank"
        info = self._chosen.of("whyidle_rank_info", f'attempt="{one.who.attempt}"')
        # Not so early that Prometheus still takes what it saw of an earlier attempt for the present.
        back = round(self._chosen.end - min(one.first + FRESH, one.last)) + 1
        found = []
        for metric in ("whyidle_rank_killed", "whyidle_rank_failed"):
            told = f"{self._chosen.of(metric)} and on ({rank}) {info}"
            answer = self._asked.query(f"max (max_over_time(({told})[{back}s:{LEAST_STEP:g}s]))", self._chosen.end)
            found.append(bool(answer[0].value) if answer else None)
        return tuple(found)

    def _unused(self, one: Process, ranks: int) -> float:
        """The share of an attempt's ranks that used none of their GPUs. A rank tells it after some steps, until it
        ends."""
        seen = f"{self._chosen.of('whyidle_rank_unused_gpus')}{over(max(SCRAPED, one.last - one.first))}"
        answer = self._asked.query(f"count (group by (rank) (last_over_time({seen})))", one.last)
        return min(1.0, answer[0].value / ranks) if answer else 0.0

    def _counted(self, counter: str, moment: float) -> dict[str, float]:
        """The value of a counter at a moment, by node and rank."""
        if (found := self._counters.get((counter, moment))) is None:
            rank, recent = "instance, owner, run, rank", f"[{FRESH:g}s]"
            info = f"last_over_time({self._chosen.of('whyidle_rank_info')}{recent})"
            # If a node had two agents, the one that counted more has counted everything that the other one did.
            query = (
                f"max by (node, rank) (sum by ({rank}) (last_over_time({counter}{recent}))"
                f" * on ({rank}) group_left (node) group by ({rank}, node) ({info})) > 0"
            )
            answer = self._asked.query(query, moment)
            found = {f"{_node(labels)} {_rank(labels)}": value for labels, value in answer}
            self._counters[counter, moment] = found
        return found

    def _aside(self, start: float, end: float) -> float:
        """Rank-seconds of saves, evaluations and rollouts that ended between ``start`` and ``end``, or soon after."""
        return sum(self._recorded("cause", _ASIDE, start, end + EVALUATION).values())

    def _recorded(self, label: str, matchers: str, start: float, end: float) -> dict[str, float]:
        """Rank-seconds by a label, as rules recorded them from ``start`` until before ``end``."""
        return self._by(
            label, f"sum_over_time({self._chosen.of(SECONDS, matchers)}{over(end - start)})", end - MILLISECOND
        )

    def _twice(self, one: Process, earlier: Sequence[Process], nodes: set[str]) -> dict[str, float]:
        """Rank-seconds by cause of earlier attempts that were recorded a second time when this attempt began.

        An agent drops the series of a rank some time after its end, and exports them again when the rank restarts. The
        rules, which have not seen the series for minutes, then record all of it a second time.
        """
        found: dict[str, float] = {}
        left = set(nodes)
        for before in reversed(earlier):
            if one.first - before.last <= FRESH:
                left -= self._books(before.last).keys()
                continue
            now = self._books(one.first + SCRAPED)
            for node, books in self._books(before.last).items():
                if node in left and sum(now.get(node, {}).values()) >= sum(books.values()):
                    for cause, seconds in books.items():
                        found[cause] = found.get(cause, 0.0) + seconds
                left.discard(node)
        return found

    def _books(self, moment: float) -> dict[str, dict[str, float]]:
        """Node -> rank-seconds by cause that agents had counted at a moment."""
        if (found := self._counted_on.get(moment)) is None:
            books = self._chosen.of("whyidle_device_seconds_total")
            found = self._counted_on[moment] = {}
            for labels, value in self._asked.query(f"sum by (node, cause) ({books})", moment):
                found.setdefault(_node(labels), {})[labels.get("cause", "")] = value
        return found

    def _by(self, label: str, expression: str, moment: float) -> dict[str, float]:
        answer = self._asked.query(f"sum by ({label}) ({expression})", moment)
        return {labels.get(label, ""): max(0.0, value) for labels, value in answer}

    def _courses(self, expression: str) -> list[Course]:
        return self._asked.range(expression, self._chosen.start, self._chosen.end, self._apart)


def _node(labels: Labels) -> str:
    return labels.get("node", "")


def _rank(labels: Labels) -> int:
    return _number(labels, "rank")


def _attempt_of(labels: Labels) -> int:
    return _number(labels, "attempt")


def _beginning(labels: Labels) -> str:
    found = labels.get("beginning", "")
    return found if found in BEGINNINGS else ""


def _number(labels: Labels, name: str) -> int:
    try:
        return int(labels.get(name, ""))
    except ValueError:
        raise NoAnswer(f"a series of this run has no number as {name}: {labels}") from None
