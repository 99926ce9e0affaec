"""Counts which of the shipped alerts fire in a week of 1,024 healthy nodes, and how often.

    python benchmarks/healthy_week.py [--days N ...] [--part PART] [--seed N] [--json FILE]

Nothing is wrong in this week. Each day is one run of promtool over eight hours, which contain all the events that a day
of 1,024 nodes has. Nodes without events are alike, so a few represent all of them.

    restarts    runs that start again, after a pause and with a start-up of up to 25 minutes
    drains      nodes that are drained, take their links down, reboot, and then host another run
    notebooks   one process that computes now and then, while a person thinks for up to an hour
    counters    one counter of errors that grows steadily, slowly or fast, on a hundredth of all nodes
    quiet       runs that train, with a checkpoint every half an hour

Rules are evaluated every two minutes, with their own `for`. An alert counts once per day and subject; the alert on a
bad counter counts once. All events are random, and the same for the same seed. This is not a test: nothing passes or
fails.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from whyidle.alerts.output import groups, to_yaml
from whyidle.ledger.causes import CAUSE_FAMILY

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))  # for the sums that an agent makes

NODES, DAYS, MINUTES = 1024, 7, 8 * 60
RESTARTS, DRAINS, NOTEBOOKS, QUIET = 12, 10, 6, 2
"""Events per day. Bad counters are per week: the same ones on each of its days."""
BAD = NODES // 100
BOOTED = -14_400
"""The minute of the last boot: ten days before the start."""
TRAINS = {"compute": 0.9, "network": 0.05, "data_read": 0.02, "host": 0.02, "data_cpu": 0.0096, "unattributed": 0.0004}
CHECKPOINT_EVERY, CHECKPOINT_SECONDS = 30, 40
BAD_COUNTERS = (
    'whyidle_rdma_symbol_errors_total{%s, device="mlx5_0", port="1"}',
    'whyidle_rdma_receive_errors_total{%s, device="mlx5_0", port="1"}',
    'whyidle_nic_errors_total{%s, device="eth0", direction="receive"}',
    'whyidle_read_errors_total{%s, collector="rdma"}',
)
FIRING = 'count by (alertname, severity, run, instance) (count_over_time(ALERTS{alertstate="firing"}[8h]))'
FOUND = re.compile(r'\{([^{}]*alertname="[^{}]*)\}')
LABEL = re.compile(r'(\w+)="([^"]*)"')

Value = float | None
Course = Callable[[int], Value]
Series = Iterator[tuple[str, Course]]


def always(value: float) -> Course:
    return lambda _: value


ONE, ZERO = always(1.0), always(0.0)


def agent(node: str) -> str:
    return f'job="whyidle", instance="{node}:9838"'


def node(name: str, there: Course = ONE, booted: int = BOOTED, link: Course = ONE) -> Series:
    """The series of a node. ``there`` is 1 while its agent answers; ``booted`` is the minute of its last boot."""
    own = agent(name)

    def here(course: Course) -> Course:
        return lambda minute: course(minute) if there(minute) else None

    yield f"up{{{own}}}", there
    yield f'whyidle_build_info{{{own}, version="1"}}', here(ONE)
    yield f'whyidle_node_info{{{own}, node="{name}", kernel="6.8", arch="x86_64"}}', here(ONE)
    yield (
        f"whyidle_cpu_boot_time_seconds{{{own}}}",
        here(lambda minute: 60.0 * (booted if minute >= booted else -14_400)),
    )
    yield f'whyidle_collector_up{{{own}, collector="ranks"}}', here(ONE)
    yield f'whyidle_collector_up{{{own}, collector="rdma"}}', here(ONE)
    yield f'whyidle_gpu_info{{{own}, gpu="0", uuid="GPU-{name}"}}', here(ONE)
    yield f'whyidle_gpu_lost{{{own}, gpu="0", uuid="GPU-{name}"}}', here(ZERO)
    yield f'whyidle_rdma_port_up{{{own}, device="mlx5_0", port="1"}}', here(link)


class Rank:
    """What a rank did, minute by minute.

    ``doing`` returns the shares of a minute by cause, and None before the start and after the end of the rank.
    """

    def __init__(self, run: str, number: int, size: int, where: str, doing: Callable[[int], dict[str, float] | None]):
        self.of = f'{agent(where)}, owner="nlp", run="{run}", rank="{number}"'
        self.place = f'{self.of}, node="{where}", device="cuda:0"'
        self.size, self.uuid = size, f"GPU-{where}"
        self.spent: list[dict[str, float]] = []
        self.steps = [0.0]
        self.lives = [doing(minute) for minute in range(MINUTES)]
        total: dict[str, float] = {}
        for parts in self.lives:
            self.spent.append(dict(total))
            for cause, share in (parts or {}).items():
                total[cause] = total.get(cause, 0.0) + 60 * share
            self.steps.append(self.steps[-1] + 60 * (parts or {}).get("compute", 0.0))
        self.begins = next(minute for minute, parts in enumerate(self.lives) if parts)
        self.causes = sorted(total)

    def seen(self, course: Course) -> Course:
        """Ends a course ten minutes after the end of the rank, as its series do."""
        return lambda minute: course(minute) if any(self.lives[max(0, minute - 10) : minute + 1]) else None

    def series(self) -> Series:
        for cause in self.causes:
            labels = f'{self.place}, cause="{cause}", family="{CAUSE_FAMILY[cause]}"'
            yield (
                f"whyidle_device_seconds_total{{{labels}}}",
                self.seen(lambda minute, cause=cause: self.spent[minute].get(cause, 0.0)),
            )
        yield f"whyidle_steps_total{{{self.of}}}", self.seen(lambda minute: self.steps[minute])
        yield f"whyidle_rank_up{{{self.of}}}", self.seen(lambda minute: float(bool(self.lives[minute])))
        yield f"whyidle_world_size{{{self.of}}}", self.seen(always(float(self.size)))
        attempt = 'local_rank="0", attempt="0", pid="7"'
        info = f'{self.place}, uuid="{self.uuid}", world_size="{self.size}", {attempt}'
        yield f"whyidle_rank_info{{{info}}}", self.seen(ONE)
        for phase in ("startup", "host"):
            yield f'whyidle_phase_open_seconds{{{self.place}, phase="{phase}"}}', self.open(phase)

    def open(self, phase: str) -> Course:
        """Seconds for which the rank has been in one phase without a break: start-up, or its own Python."""

        def since(minute: int) -> Value:
            begin = minute
            while begin >= 0 and (self.lives[begin] or {}).get(phase) == 1.0:
                begin -= 1
            return 60.0 * (minute - begin - 1) if begin < minute - 1 else None

        return since


def training(minute: int) -> dict[str, float]:
    saves = CHECKPOINT_SECONDS / 60 if minute % CHECKPOINT_EVERY == 7 else 0.0
    return {**{cause: share * (1 - saves) for cause, share in TRAINS.items()}, "checkpoint_write": saves}


def two_nodes(run: str, doing: Callable[[int], dict[str, float] | None]) -> Series:
    for number in range(2):
        where = f"{run}-{number}"
        yield from node(where)
        yield from Rank(run, number, 2, where, doing).series()


def restart(run: str, chance: random.Random) -> Series:
    ends, pause, startup = chance.randint(30, 400), chance.randint(0, 4), chance.randint(1, 25)

    def doing(minute: int) -> dict[str, float] | None:
        if ends <= minute < ends + pause:
            return None
        return {"startup": 1.0} if 0 <= minute - ends - pause < startup else training(minute)

    yield from two_nodes(run, doing)


def drain(name: str, chance: random.Random) -> Series:
    ends = chance.randint(30, 300)
    links_down = ends + chance.randint(2, 10)
    gone = links_down + chance.randint(1, 10)
    back = gone + chance.randint(3, 45)
    links_up, given = back + chance.randint(0, 10), back + chance.randint(15, 40)
    link = lambda minute: float(not links_down <= minute < links_up)  # noqa: E731
    yield from node(name, lambda minute: float(not gone <= minute < back), back - 2, link)
    yield from Rank(f"before-{name}", 0, 1, name, lambda minute: training(minute) if minute < ends else None).series()
    yield from Rank(f"after-{name}", 0, 1, name, lambda minute: training(minute) if minute >= given else None).series()


def notebook(name: str, chance: random.Random) -> Series:
    computes: list[bool] = []
    while len(computes) < MINUTES:
        computes += [True] * chance.randint(1, 15) + [False] * chance.randint(2, 60)
    yield from node(name)
    yield from Rank(
        name, 0, 1, name, lambda minute: {"compute": 0.97, "host": 0.03} if computes[minute] else {"host": 1.0}
    ).series()


def bad_counter(name: str, chance: random.Random) -> Series:
    rate, which = 60 * 10 ** chance.uniform(-3, 1), chance.choice(BAD_COUNTERS)
    yield from node(name)
    yield which % agent(name), lambda minute: rate * minute


def day(number: int, seed: int, part: float) -> Series:
    """The series of one day with ``part`` of all events, and at least one of each kind."""
    week, chance = random.Random(seed), random.Random(f"{seed} {number}")
    for count, name, story in ((RESTARTS, "run", restart), (DRAINS, "drain", drain), (NOTEBOOKS, "lab", notebook)):
        for index in range(max(1, round(part * count))):
            yield from story(f"{name}{index}", chance)
    for index in range(max(1, round(part * BAD))):
        yield from bad_counter(f"bad{index}", week)
    for index in range(QUIET):
        yield from two_nodes(f"quiet{index}", training)


def written(course: Course) -> str:
    """A course in promtool's notation."""
    return " ".join("_" if (value := course(minute)) is None else f"{value:.10g}" for minute in range(MINUTES))


def fired(series: Series, folder: Path) -> list[dict[str, str]]:
    """The labels of the alerts that fired at any time of a day."""
    from support_sums import with_sums

    (folder / "rules.yaml").write_text(to_yaml(groups()))
    test = {
        "interval": "1m",
        "input_series": [
            {"series": name, "values": values}
            for name, values in with_sums((name, written(course)) for name, course in series)
        ],
        "promql_expr_test": [{"expr": FIRING, "eval_time": f"{MINUTES - 1}m", "exp_samples": []}],
    }
    document = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": "2m",
        "group_eval_order": [group.name for group in groups()],
        "tests": [test],
    }
    (folder / "day.yaml").write_text(json.dumps(document))  # JSON is also YAML, and faster to write
    command, less_garbage = ["promtool", "test", "rules", "day.yaml"], {**os.environ, "GOGC": "400"}
    done = subprocess.run(command, cwd=folder, env=less_garbage, capture_output=True, text=True)
    text = done.stdout + done.stderr
    if done.returncode == 0 or "got:" not in text:  # at least the watchdog fires
        raise RuntimeError(f"promtool does not answer the question: {text[:2000]}")
    return [dict(LABEL.findall(labels)) for labels in FOUND.findall(text.partition("got:")[2])]


def main() -> int:
    parser = argparse.ArgumentParser(description="Which alerts fire in a week of 1,024 healthy nodes.")
    parser.add_argument(
        "--days", type=int, nargs="+", default=list(range(DAYS)), help="which days (default: all seven)"
    )
    parser.add_argument("--part", type=float, default=1.0, help="of all that happens on a day (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="another week (default: %(default)s)")
    parser.add_argument("--json", metavar="FILE", help="also write all alerts as JSON")
    args = parser.parse_args()
    week: dict[int, list[dict[str, str]]] = {}
    for number in args.days:
        with tempfile.TemporaryDirectory() as folder:
            week[number] = fired(day(number, args.seed, args.part), Path(folder))
        counts = Counter((one["severity"], one["alertname"]) for one in week[number])
        said = ", ".join(f"{count} {severity} {name}" for (severity, name), count in sorted(counts.items()))
        print(f"day {number}: {said}", flush=True)
    for severity in ("critical", "warning"):
        found = [one for alerts in week.values() for one in alerts if one["severity"] == severity]
        bad = {one["instance"] for one in found if one.get("instance", "").startswith("bad")}
        others = [one for one in found if one.get("instance") not in bad]
        print(f"{severity} in {len(week)} days: {len(others)}, and {len(bad)} bad counters")
    if args.json:
        Path(args.json).write_text(json.dumps(week, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
