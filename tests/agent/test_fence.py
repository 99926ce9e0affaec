"""Fences, the agent's own metrics, and scrapes: what a collector that hangs, fails or is slow costs."""

from __future__ import annotations

import io
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse
from support_ledgers import DEADLINE_SECONDS, until

from whyidle.agent import own as own_module
from whyidle.agent.collector import Collector
from whyidle.agent.exporter import Exporter
from whyidle.agent.fence import Fences, Result
from whyidle.agent.log import Log
from whyidle.agent.metrics import METRIC, own
from whyidle.agent.own import FAILURES, OwnCounters
from whyidle.agent.reading import Absent, Blind, ReadError, Reading

SHORT = 0.5
"""A deadline that a hanging collector soon exceeds, and that other collectors meet."""
LONG = 3600.0
LOAD = METRIC["whyidle_rank_up"]
"""A metric for collectors to fill."""


class Fake:
    """A collector that follows instructions."""

    def __init__(self, act: Callable[[Reading], object] = lambda reading: None):
        self.act = act
        self.calls = 0

    def collect(self, reading: Reading) -> None:
        self.calls += 1
        reading.add(LOAD, ("lab", "run", str(self.calls)), self.calls)
        self.act(reading)


class Hanging(Fake):
    """Hangs until it is released."""

    def __init__(self) -> None:
        super().__init__(self._hang)
        self.go = threading.Event()
        self.inside = 0
        self.most = 0

    def _hang(self, reading: Reading) -> None:
        self.inside += 1
        self.most = max(self.most, self.inside)
        self.go.wait(DEADLINE_SECONDS)
        self.inside -= 1


def fail(reading: Reading) -> None:
    raise OSError("no luck")


def absent(reading: Reading) -> None:
    raise Absent("no such thing")


others: set[threading.Thread] = set()
"""Workers that existed before a test, from collectors that other tests in this process have left behind."""


def workers() -> int:
    return sum(thread.name == "collectors" and thread not in others for thread in threading.enumerate())


@pytest.fixture(autouse=True)
def _no_worker_stays() -> object:
    others.clear()
    others.update(thread for thread in threading.enumerate() if thread.name == "collectors")
    yield
    until(lambda: not workers())


def states(results: dict[str, Result]) -> dict[str, str]:
    return {name: result.state for name, result in results.items()}


def test_each_collector_has_its_outcome_in_order() -> None:
    hanging = Hanging()
    kinds = {"a": Fake(), "b": Fake(fail), "c": Fake(absent), "d": hanging, "e": Fake(), "f": Fake(fail)}
    fences = Fences(kinds, SHORT)
    results = fences.round()
    assert list(results) == list(kinds)
    expected = {"a": "up", "b": "fault", "c": "absent", "d": "deadline", "e": "up", "f": "fault"}
    assert states(results) == expected
    assert [name for name, result in results.items() if result.reading] == ["a", "e"]
    assert (results["b"].detail, results["c"].detail) == ("OSError: no luck", "no such thing")
    assert states(fences.round()) == expected | {"d": "hanging"}
    assert hanging.calls == 1
    hanging.go.set()
    until(lambda: states(fences.round())["d"] == "up")
    fences.close()


def test_a_thousand_rounds_never_stack_and_cost_one_deadline() -> None:
    hanging = [Hanging() for _ in range(3)]
    fences = Fences({"a": hanging[0], "b": Fake(), "c": hanging[1], "d": hanging[2]}, SHORT)
    seen = Counter(state for _ in range(1000) for state in states(fences.round()).values())
    assert seen == {"deadline": 3, "hanging": 3 * 999, "up": 1000}
    assert [(one.calls, one.most) for one in hanging] == [(1, 1)] * 3
    assert workers() == 4
    for one in hanging:
        one.go.set()
    until(lambda: workers() == 1)
    fences.close()


def test_late_readings_are_discarded_and_the_next_one_is_new() -> None:
    late = Hanging()
    fences = Fences({"late": late, "other": Fake()}, SHORT)
    assert states(fences.round()) == {"late": "deadline", "other": "up"}
    late.go.set()
    until(lambda: workers() == 1)
    result = fences.round()["late"]
    assert result.reading
    assert result.reading.samples == {LOAD: {("lab", "run", "2"): 2}}
    fences.close()


def test_a_collector_may_hang_repeatedly() -> None:
    one = Hanging()
    fences = Fences({"one": one}, 0.02)
    for times in range(1, 6):
        assert states(fences.round()) == {"one": "deadline"}
        assert states(fences.round()) == {"one": "hanging"}
        one.go.set()
        until(lambda: not workers())
        one.go.clear()
        assert (one.calls, one.most) == (times, 1)
    fences.close()


def test_a_round_ends_in_time_with_collectors_that_are_slow_but_keep_their_deadline() -> None:
    let = threading.Event()
    slow = {name: Fake(lambda reading: let.wait(0.2)) for name in "abcdefghij"}
    fences = Fences(dict(slow), LONG)
    end = time.monotonic() + 0.5
    results = states(fences.round(lambda: end))
    assert list(results) == list(slow)
    counts = Counter(results.values())
    assert counts["deadline"] <= 1
    assert counts["skipped"] == 10 - counts["up"] - counts["deadline"] > 0
    assert list(results.values()) == sorted(results.values(), key=["up", "deadline", "skipped"].index)
    let.set()
    until(lambda: set(states(fences.round()).values()) == {"up"})
    fences.close()


def test_a_round_without_time_left_ends_soon() -> None:
    hanging = Hanging()
    fences = Fences({"hanging": hanging, "next": Fake()}, LONG)
    assert set(states(fences.round(lambda: 0.0)).values()) <= {"skipped", "deadline"}
    hanging.go.set()
    until(lambda: set(states(fences.round()).values()) == {"up"})
    fences.close()


# -- the agent's own metrics


def books(*names: str) -> tuple[OwnCounters, io.StringIO]:
    lines = io.StringIO()
    return OwnCounters(names, Log("info", "logfmt", lines)), lines


def values(reading: Reading, metric: object) -> dict[tuple[str, ...], object]:
    return {
        labels: value for one, samples in reading.samples.items() if one is metric for labels, value in samples.items()
    }


def test_failures_are_counted_by_reason() -> None:
    mine, _ = books("a", "b")
    for state in ("deadline", "hanging", "hanging", "skipped", "fault"):
        reading = mine.enter({"a": Result(state), "b": Result("absent")})
    counts = values(reading, own.FAILURES)
    assert counts == {
        **{("a", reason): 2 if reason == "hanging" else 1 for reason in FAILURES},
        **{("b", reason): 0 for reason in FAILURES},
    }
    assert values(reading, own.UP) == {("a",): 0}


def test_exports_up_duration_and_age() -> None:
    mine, _ = books("a")
    reading = mine.enter({"a": Result("up", Reading(), 0.25)})
    assert (values(reading, own.UP), values(reading, own.DURATION)) == ({("a",): 1}, {("a",): 0.25})
    assert values(reading, own.AGE) == {("a",): 0.0}
    time.sleep(0.01)
    reading = mine.enter({"a": Result("hanging")})
    assert (values(reading, own.UP), values(reading, own.DURATION)) == ({("a",): 0}, {})
    assert values(reading, own.AGE)["a",] > 0.009  # pyright: ignore[reportOperatorIssue]
    reading = mine.enter({"a": Result("absent")})
    assert [values(reading, metric) for metric in (own.UP, own.DURATION, own.AGE)] == [{}, {}, {}]


def test_logs_a_change_once() -> None:
    mine, lines = books("a")
    up, fault = Result("up", Reading()), Result("fault", detail="OSError: no luck")
    for result in (up, up, fault, fault, Result("deadline"), Result("hanging"), up, Result("absent"), up, up):
        mine.enter({"a": result})
    told = [line.partition(" ts=")[0] for line in lines.getvalue().splitlines()]
    assert told == [
        'level=warn msg="the collector did not answer" collector=a reason=fault detail="OSError: no luck"',
        'level=warn msg="the collector did not answer" collector=a reason=deadline detail=""',
        'level=info msg="the collector answers again" collector=a',
        'level=info msg="the collector has nothing to read on this node" collector=a detail=""',
        'level=info msg="the collector answers again" collector=a',
    ]


def test_read_errors_are_counted_logged_once_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_module, "ERROR_SERIES", 10)
    mine, lines = books("a", "b")
    for _ in range(3):
        reading = Reading()
        for number in range(100):
            reading.error(f"disk{number}", "stat", "garbage" if number % 2 else "missing")
        result = mine.enter({"a": Result("up", reading)})
    counts = values(result, own.READ_ERRORS)
    assert len(counts) == 12
    assert counts["a", "disk3", "stat", "garbage"] == 3
    assert counts["a", "", "", "garbage"] == counts["a", "", "", "missing"] == 135
    assert lines.getvalue().count("cannot be read") == 10
    assert mine.errors["a", ReadError("disk3", "stat", "garbage")] == 3


def test_logs_blind_spots_once() -> None:
    mine, lines = books("a")
    for _ in range(3):
        reading = Reading()
        reading.blind("the speed", "it is dark", "light a lamp")
        mine.enter({"a": Result("up", reading)})
    assert list(mine.blind) == [("a", Blind("the speed", "it is dark", "light a lamp"))]
    assert lines.getvalue().count("light a lamp") == 1


def test_exports_its_own_process_as_the_kernel_shows_it() -> None:
    mine, _ = books()
    found = {metric.name: samples for metric, samples in mine.enter({}).samples.items()}
    assert {metric.name for metric in own.PROCESS} <= found.keys()
    psutil = pytest.importorskip("psutil")
    process = psutil.Process()
    assert found["process_start_time_seconds"][()] == pytest.approx(process.create_time(), abs=1.5)
    assert found["process_open_fds"][()] == pytest.approx(process.num_fds(), abs=3)
    assert found["process_resident_memory_bytes"][()] == pytest.approx(process.memory_info().rss, rel=0.1)
    assert found["process_cpu_seconds_total"][()] == pytest.approx(sum(process.cpu_times()[:2]), abs=0.5)


# -- scrapes


def exporter(collectors: dict[str, Collector], deadline: float = LONG) -> Exporter:
    return Exporter(collectors, Log(stream=io.StringIO()), deadline)


def series(text: bytes) -> dict[str, dict[tuple[str, ...], float]]:
    return {
        family.name: {tuple(sample.labels.values()): sample.value for sample in family.samples}
        for family in parse(text.decode())
    }


def test_concurrent_scrapes_share_a_round() -> None:
    one = Hanging()
    shared = exporter({"one": one})
    with ThreadPoolExecutor(20) as pool:
        answers = [pool.submit(shared.scrape, openmetrics=bool(number % 2)) for number in range(20)]
        until(lambda: one.inside)
        time.sleep(0.1)  # a caller that is too late starts its own round, which is correct too
        one.go.set()
        texts = {answer.result(DEADLINE_SECONDS) for answer in answers}
    assert one.calls < 10
    assert one.most == 1
    assert len(texts) <= 2 * one.calls
    shared.close()


def test_concurrent_scrapes_and_rounds_are_complete() -> None:
    kinds = {"a": Fake(), "b": Fake(fail), "c": Fake(absent)}
    busy = exporter(dict(kinds))

    def look(number: int) -> set[str]:
        busy.keep_up(0.0)
        text = busy.scrape(openmetrics=bool(number % 2)).decode()
        assert text.endswith("\n")
        assert text.endswith("# EOF\n") == bool(number % 2)
        return set(re.findall(r"^whyidle_collector_\w+", text, re.MULTILINE))

    with ThreadPoolExecutor(16) as pool:
        [names] = set(map(frozenset, pool.map(look, range(400))))
    assert "whyidle_collector_up" in names
    assert kinds["a"].calls == kinds["b"].calls == kinds["c"].calls
    busy.close()


def test_does_not_serve_old_readings() -> None:
    moody = Fake()
    mine = exporter({"moody": moody, "other": Fake()})
    assert series(mine.scrape())["whyidle_collector_up"] == {("moody",): 1, ("other",): 1}
    assert series(mine.scrape())["whyidle_rank_up"] == {("lab", "run", "2"): 2}
    moody.act = fail
    kinds = series(mine.scrape())
    assert kinds["whyidle_rank_up"] == {("lab", "run", "3"): 3}, "the other's alone"
    assert kinds["whyidle_collector_up"] == {("moody",): 0, ("other",): 1}
    assert kinds["whyidle_collector_failures"]["moody", "fault"] == 1
    moody.act = lambda reading: None
    assert series(mine.scrape())["whyidle_collector_up"] == {("moody",): 1, ("other",): 1}
    mine.close()


def test_the_shortest_scrape_timeout_applies() -> None:
    slow = Hanging()
    mine = exporter({"slow": slow, "next": Hanging(), "last": Fake()}, 0.2)
    with ThreadPoolExecutor(2) as pool:
        patient = pool.submit(mine.scrape, seconds=LONG)
        until(lambda: slow.inside)
        hurried = pool.submit(mine.scrape, seconds=0.0)
        failures = series(hurried.result(DEADLINE_SECONDS))["whyidle_collector_failures"]
        assert patient.result(DEADLINE_SECONDS) == hurried.result()
    assert failures["slow", "deadline"] == 1
    assert failures["next", "skipped"] == failures["last", "skipped"] == 1
    slow.go.set()
    mine.close()


def test_recovers_from_an_error_in_the_agents_own_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = exporter({"a": Fake()})
    with monkeypatch.context() as patched:
        patched.setattr(OwnCounters, "enter", lambda self, results: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            mine.scrape()
    assert b"whyidle_collector_up" in mine.scrape()
    mine.close()


def test_runs_a_round_only_if_there_was_no_scrape() -> None:
    one = Fake()
    mine = exporter({"one": one})
    mine.keep_up(LONG)
    mine.keep_up(LONG)
    assert one.calls == 1
    mine.scrape()
    mine.keep_up(0.0)
    assert one.calls == 3
    mine.close()
