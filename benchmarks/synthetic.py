"""A synthetic fleet: the series of one node's real agent, multiplied by the number of nodes, with values that grow.

The series are those of a real agent on a node of 8 GPUs, 8 adapters and 8 live ranks (benchmarks/agent.py, `whole`).
The labels instance, run, rank, node and uuid differ between nodes. The runs lose time to different families. The series
that rules record for a few nodes are multiplied in the same way.
"""

from __future__ import annotations

import runpy
import tempfile
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse
from remote_write import Batch

from whyidle.agent.metrics.links import LINK_RANKS, LINK_SPEED, LINK_SUMS
from whyidle.agent.metrics.mounts import MOUNT_SUMS
from whyidle.agent.metrics.ranks import DEVICE_SECONDS, GROUP_CALLS, GROUP_PARTS, GROUP_WAITS, PLACE
from whyidle.agent.metrics.runs import GROUP_SUMS, GROUPS_ACROSS, LIVE_RANKS, RUN_PLACE
from whyidle.agent.metrics.runs import METRICS as RUN_METRICS
from whyidle.ledger.causes import CAUSE_FAMILY, CAUSES, CHECKPOINT_KINDS

HERE = Path(__file__).resolve().parent
GPUS = 8
KINDS = 4
"""The number of different ways in which nodes grow, so that there are fewer curves than series (see tsdb_block.py)."""
SAMPLED_NODES = 2
"""The number of nodes that represent all nodes of a run: the one with the late rank, and another."""
BATCH = 5_000  # series per request
STEP_SECONDS = 0.4
STEP_SHARES = ((0.25, 0.2), (0.5, 0.9), (1.0, 0.99), (2.5, 1.0))  # upper bound -> share of steps
FAULTS: tuple[dict[str, float], ...] = (
    {"network": 0.25},
    {"straggler": 0.2},
    {"data_read": 0.22},
    {"data_cpu": 0.15, "data_queue": 0.1},
    {"checkpoint_write": 0.18},
    {"host": 0.3},
    {},
)
"""The faults of the runs, in turns: cause -> share of each second that is lost to it."""
SHARES = {"host": 0.02, "network": 0.04, "unattributed": 0.002}
"""Cause -> the share of each second that every run loses to it."""
TAKEN = tuple(dict.fromkeys(("compute", "startup", *SHARES, *(cause for fault in FAULTS for cause in fault))))
"""The causes that have series, because they took some time in a run."""
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")
"""The operations of each rank: those of a sharded model. The ranks of the real node have no series of operations."""
GROUPS = {"tp": 0, "dp": GPUS}
"""Process group -> the groups of this name that have members on a node and elsewhere. Each rank is in one of each name:
tensor parallelism within the nodes, and data parallelism across them."""
GROUP_BYTES = {"tp": 5e9, "dp": 5e8}
"""Process group -> bus bytes per second and rank."""
MOUNTS = (("/data", "lustre"), ("/ckpt", "nfs4"))
"""The mounts at which ranks are blocked: in reads and in saves, by the mounts' own counters."""
LINKS = (*(("rdma", f"mlx5_{port}/1") for port in range(GPUS)), ("tcp", "eth0"))
"""The links that carry transfers. The interface has segments."""
LATE = {"storage": 0.02, "compute": 0.01}
"""Family -> seconds per second by which the first rank of each run is late because of it."""
WAITED_FOR = ("storage", "straggler")
"""The families that made the late ranks late. Other families have no series."""
SILENT = (
    *("error", "fault", "drop", "discard", "fail", "xid", "lost", "downed", "recover", "unmeasured", "recompute"),
    *("throttled", "ecn_", "cnp_", "exceeded", "retransmi", "timeout", "naks", "out_of_sequence", "pause", "_wait"),
    *("stalled", "marks", "carrier"),
)
"""Parts of the names of counters of faults and stalls. These counters stand still on most nodes."""
OCCURRED: dict[str, tuple[str, frozenset[str]]] = {
    "whyidle_rdma_port_errors_total": ("error", frozenset(("switch_relay", "vl15_dropped"))),
    "whyidle_rdma_requester_errors_total": ("error", frozenset(("completion", "completion_flushed"))),
    "whyidle_rdma_responder_errors_total": ("error", frozenset(("completion", "completion_flushed"))),
    "whyidle_gpu_throttled_seconds_total": ("reason", frozenset(("sw_power_cap",))),
}
"""Metric -> its label of kinds, and the kinds that have occurred on a sound node, as this benchmark assumes. Others
have no series. On the fake node every kind has occurred. The assumption: InfiniBand drops its own multicast packets,
the end of each job flushes operations, and GPUs at full load reach their power cap."""


@dataclass(frozen=True)
class Line:
    """One series of the node that is multiplied."""

    name: str
    type: str
    labels: dict[str, str]
    value: float


def template() -> list[Line]:
    """The series of a real agent on a fake node. Needs the same programs as `make bench`, such as a C compiler."""
    whole = runpy.run_path(str(HERE / "agent.py"))["whole"]
    with tempfile.TemporaryDirectory() as scratch, whole(Path(scratch)) as target:
        for _ in range(3):
            text = target.scrape()[1].decode()
    sums = {metric.name for metric in RUN_METRICS}
    lines = [
        Line(sample.name, family.type, dict(sample.labels), float(sample.value))
        for family in parse(text)
        for sample in family.samples
        if sample.name not in sums
        and not (sample.name == DEVICE_SECONDS.name and "rank" in sample.labels)
        and _occurred(sample.name, sample.labels)
    ]
    gpus = {line.labels["gpu"]: line.labels["uuid"] for line in lines if line.name == "whyidle_gpu_info"}
    for line in lines:
        if line.name == "whyidle_rank_info":  # the ranks of the node have invented GPUs
            line.labels["uuid"] = gpus[line.labels["rank"]]
    target = {"instance": "", "job": "whyidle", "cluster": "lab"}
    return [
        Line(line.name, line.type, line.labels | target, line.value)
        for line in (
            *lines,
            Line("up", "gauge", {}, 1.0),
            *_collectives(lines),
            *_waits(lines),
            *_device_seconds(lines),
            *_sums(lines),
        )
    ]


def _occurred(name: str, labels: Mapping[str, str]) -> bool:
    label, kinds = OCCURRED.get(name, ("", frozenset()))
    return not label or labels[label] in kinds


def _collectives(lines: list[Line]) -> Iterator[Line]:
    for line in lines:
        if line.name == "whyidle_rank_up":
            for op in COLLECTIVES:
                yield Line("whyidle_collective_bytes_total", "counter", {**line.labels, "op": op}, 0.0)
                yield Line("whyidle_collective_calls_total", "counter", {**line.labels, "op": op}, 0.0)


def _waits(lines: list[Line]) -> Iterator[Line]:
    """Series that an agent has only after there was something to count, for a node with one late rank."""
    for line in lines:
        if line.name == "whyidle_rank_up":
            for family in WAITED_FOR:
                yield Line("whyidle_waited_for_seconds_total", "counter", {**line.labels, "family": family}, 0.0)
            for group in GROUPS:
                for part in GROUP_PARTS:
                    yield Line(GROUP_WAITS.name, "counter", {**line.labels, "group": group, "part": part}, 0.0)
                yield Line(GROUP_CALLS.name, "counter", {**line.labels, "node": "", "group": group}, 0.0)
            for family in LATE if line.labels["rank"] == "0" else ():
                labels = {**line.labels, "node": "", "family": family}
                yield Line("whyidle_late_seconds_total", "counter", labels, 0.0)


def _device_seconds(lines: list[Line]) -> Iterator[Line]:
    """Device-seconds of each rank, by all causes in TAKEN. The ranks of the real node have only a few causes."""
    for line in lines:
        if line.name == "whyidle_rank_info":
            place = {label: line.labels[label] for label in PLACE}
            for cause in TAKEN:
                yield Line(
                    DEVICE_SECONDS.name, "counter", {**place, "cause": cause, "family": CAUSE_FAMILY[cause]}, 1.0
                )


def _sums(lines: list[Line]) -> Iterator[Line]:
    """The sums over the ranks of a run that the agent exports."""
    place = next(line.labels for line in lines if line.name == "whyidle_rank_info")
    place = {label: place[label] for label in RUN_PLACE}
    for name, labels in (
        ("whyidle_run_device_seconds_total", [{"cause": each, "family": CAUSE_FAMILY[each]} for each in TAKEN]),
        ("whyidle_run_waited_for_seconds_total", [{"family": each} for each in WAITED_FOR]),
        ("whyidle_run_collective_bytes_total", [{"op": each} for each in COLLECTIVES]),
        *((metric.name, [{"group": each} for each in GROUPS]) for metric in GROUP_SUMS),
        ("whyidle_run_steps_total", [{}]),
        ("whyidle_run_checkpoints_total", [{"kind": each} for each in CHECKPOINT_KINDS]),
        ("whyidle_run_hook_faults_total", [{}]),
    ):
        for of in labels:
            yield Line(name, "counter", {**place, **of}, 0.0)
    blocked, *moved = MOUNT_SUMS
    for (mount, fstype), activity in zip(MOUNTS, ("data", "checkpoint"), strict=True):
        of = {**place, "mount": mount, "fstype": fstype}
        yield Line(blocked.name, "counter", {**of, "activity": activity}, 0.0)
        for metric in moved:
            yield Line(metric.name, "counter", {**of, "counted_by": "mount"}, 0.0)
    for kind, link in LINKS:
        of = {**place, "kind": kind, "link": link}
        yield Line(LINK_SPEED.name, "gauge", of, 5e10)
        yield Line(LINK_RANKS.name, "gauge", of, 1.0)
        for metric in LINK_SUMS:
            if kind == "tcp" or metric.unit != "segments":
                for each in metric.series:
                    yield Line(
                        metric.name,
                        "counter",
                        dict(zip(metric.labels, (*of.values(), *(each or ())), strict=True)),
                        0.0,
                    )
    for group, across in GROUPS.items():
        yield Line(GROUPS_ACROSS.name, "gauge", {**place, "group": group}, float(across))
    yield Line(LIVE_RANKS.name, "gauge", place, float(GPUS))


def chance(*words: object) -> float:
    """A number from 0 to 1 that is the same for the same words."""
    return zlib.crc32(repr(words).encode()) / 2**32


class Fleet:
    """``nodes`` nodes of 8 GPUs, in runs of ``per_run`` nodes."""

    def __init__(self, lines: list[Line], nodes: int, per_run: int):
        self.lines, self.nodes, self.per_run = lines, nodes, per_run

    def owner(self) -> str:
        return "research"

    def run(self, node: int) -> str:
        return f"train-{node // self.per_run:03d}"

    def node(self, node: int) -> str:
        return f"node-{node:04d}"

    def instance(self, node: int) -> str:
        return f"10.0.{node // 250}.{node % 250}:9420"

    def of_run(self, node: int) -> range:
        """The nodes of the run of a node."""
        first = node // self.per_run * self.per_run
        return range(first, min(first + self.per_run, self.nodes))

    def members(self, node: int) -> list[str]:
        """The names of the nodes of the run of a node."""
        return [self.node(one) for one in self.of_run(node)]

    def gpus(self, node: int) -> list[str]:
        """The GPUs of the run of a node."""
        ranks = [line for line in self.lines if line.name == "whyidle_rank_info"]
        return [self.labels(line, one)["uuid"] for one in self.of_run(node) for line in ranks]

    def fault(self, node: int) -> int:
        """The index in FAULTS of the fault of the node's run."""
        return node // self.per_run % len(FAULTS)

    def labels(self, line: Line, node: int) -> dict[str, str]:
        changed = {"__name__": line.name, **line.labels}
        if "instance" in line.labels:
            changed["instance"] = self.instance(node)
        if "owner" in line.labels:
            changed["owner"] = self.owner()
        if "run" in line.labels:
            changed["run"] = self.run(node)
        if "rank" in line.labels:
            changed["rank"] = str(int(line.labels["rank"]) + GPUS * (node % self.per_run))
        if "node" in line.labels:
            changed["node"] = self.node(node)
        if "uuid" in line.labels:
            changed["uuid"] = f"{line.labels['uuid']}-{node:04d}"
        if "world_size" in line.labels:
            changed["world_size"] = str(GPUS * self.per_run)
        return changed

    def rate(self, line: Line, node: int) -> float:
        """The growth of a series per second."""
        if line.type not in ("counter", "histogram"):
            return 0.0
        if line.name == "whyidle_device_seconds_total":
            return self.share(line.labels["cause"], node) if "run" in line.labels else 0.0
        if line.name == GROUP_WAITS.name or line.name == GROUP_SUMS[0].name:
            return self.group_waits(line, node)
        if line.name == GROUP_SUMS[1].name:
            return GPUS * GROUP_BYTES[line.labels["group"]]
        if line.name == "whyidle_run_device_seconds_total":
            return GPUS * self.share(line.labels["cause"], node)
        if line.name.startswith("whyidle_step_seconds"):
            return self.steps(line)
        if line.name == "whyidle_late_seconds_total":
            first = node % self.per_run == 0 and line.labels["rank"] == "0"
            return LATE.get(line.labels["family"], 0.0) if first else 0.0
        return self.counter(line, node)

    def share(self, cause: str, node: int) -> float:
        shares = {**SHARES, **FAULTS[self.fault(node)]}
        shares["compute"] = 1.0 - sum(shares.values())
        return shares.get(cause, 0.0) if cause in CAUSES else 0.0

    def group_waits(self, line: Line, node: int) -> float:
        """All waits in transfers are in the group across the nodes, and all other waits within the nodes."""
        part = line.labels.get("part", "network")
        here = (line.labels["group"] == "dp") == (part == "network")
        return (1 if "part" in line.labels else GPUS) * self.share(part, node) if here else 0.0

    def steps(self, line: Line) -> float:
        if line.name.endswith("_sum"):
            return 1.0
        done = 1.0
        if line.name.endswith("_bucket"):
            bound = float(line.labels["le"])
            done = max((share for upper, share in STEP_SHARES if bound >= upper), default=0.0)
        return done / STEP_SECONDS

    def counter(self, line: Line, node: int) -> float:
        size = chance(line.name, sorted(line.labels.items()), node % KINDS)
        if any(word in line.name for word in SILENT) and chance(line.name, node) > 0.02:
            return 0.0
        if "bytes" in line.name:
            return size * 10e9
        return size * (0.3 if "seconds" in line.name else 50.0)

    def batches(self, nodes: range) -> Iterator[Batch]:
        """The series of some nodes in batches, at most BATCH series per request."""
        labels: list[dict[str, str]] = []
        base: list[float] = []
        rate: list[float] = []
        for node in nodes:
            for line in self.lines:
                labels.append(self.labels(line, node))
                base.append(line.value)
                rate.append(self.rate(line, node))
            if len(labels) >= BATCH:
                yield Batch(labels, base, rate)
                labels, base, rate = [], [], []
        if labels:
            yield Batch(labels, base, rate)

    def series(self, nodes: range | None = None) -> Iterator[tuple[dict[str, str], float, float]]:
        """Labels, value at the start, and growth per second of every series of ``nodes``. None means all nodes."""
        for node in nodes if nodes is not None else range(self.nodes):
            for line in self.lines:
                yield self.labels(line, node), line.value, self.rate(line, node)

    def sample(self) -> Fleet:
        """A small fleet with each kind of run that this one has."""
        runs = min(-(-self.nodes // self.per_run), len(FAULTS))
        per_run = min(self.per_run, SAMPLED_NODES)
        return Fleet(self.lines, runs * per_run, per_run)


class Recorded:
    """The series that rules record for a fleet, derived from those that they recorded for its sample."""

    def __init__(self, fleet: Fleet, found: Iterable[tuple[dict[str, str], float]]):
        self.fleet, self.sample, self.found = fleet, fleet.sample(), [*found]
        self.node_of = {self.sample.node(node): node for node in range(self.sample.nodes)}
        self.node_of |= {self.sample.instance(node): node for node in range(self.sample.nodes)}
        self.run_of = {self.sample.run(node): node for node in range(0, self.sample.nodes, self.sample.per_run)}
        self.of_nodes: dict[tuple[int, bool], list[Line]] = defaultdict(list)
        self.of_runs: dict[int, list[Line]] = defaultdict(list)
        self.of_all: list[Line] = []
        for labels, value in self.found:
            self._sort(dict(labels), value)

    def _sort(self, labels: dict[str, str], value: float) -> None:
        node, first = self._owner(labels)
        rank, uuid = labels.get("rank"), labels.get("uuid")
        if rank:
            labels["rank"] = str(int(rank) % GPUS)
        if uuid:
            labels["uuid"] = uuid.removesuffix(f"-{node:04d}")
        line = Line(labels.pop("__name__"), "gauge", labels, value)
        if node is None:
            self.of_all.append(line)
        elif first is None:
            self.of_runs[self.sample.fault(node)].append(line)
        else:
            self.of_nodes[self.sample.fault(node), first].append(line)

    def _owner(self, labels: dict[str, str]) -> tuple[int | None, bool | None]:
        """The node that a series belongs to, and whether it is the first node of its run.

        For a series of a whole run, a node of the run and None. For any other series, None and None.
        """
        node = self.node_of.get(labels.get("node") or labels.get("instance", ""))
        run = self.run_of.get(labels.get("run", ""))
        if node is None and run is not None and labels.get("rank"):
            node = run + int(labels["rank"]) // GPUS
        if node is not None:
            return node, node % self.sample.per_run == 0
        return run, None

    def series(self) -> Iterator[tuple[dict[str, str], float]]:
        """Labels and value of every recorded series of the fleet."""
        for line in self.of_all:
            yield {"__name__": line.name, **line.labels}, line.value
        for node in range(self.fleet.nodes):
            fault, first = self.fleet.fault(node), node % self.fleet.per_run == 0
            for line in (*(self.of_runs[fault] if first else ()), *self.of_nodes[fault, first]):
                yield self.fleet.labels(line, node), line.value
