"""The ranks that a node hosts: what they lose, and which of its counters agree."""

from __future__ import annotations

from ...ledger.causes import PHASES
from .. import given
from .. import variables as v
from ..colours import FAINT, FAMILY_COLOUR, PHASE_COLOUR, RED
from ..selection import HERE, ROWS, highest, listed, rate, series, total
from ..vocabulary import (
    GOOD,
    Column,
    Panel,
    Section,
    encode,
    line,
    now,
    over_range,
    query,
    rank_idle,
    rank_shares,
    share,
    stat,
    steps,
    table,
    timeline,
    to_run,
    trend,
    words,
    worst,
)
from ..vocabulary import section as _section
from .faults import faults

RANK = "owner, run, rank"
NAMED = "{{owner}}/{{run}} rank {{rank}}"
COMPUTING = rank_shares(v.NODE, RANK, 'family="compute"')
EVIDENCE = {"network": "Network", "storage": "Storage", "cpu": "CPU"}
"""The families that counters of a node can confirm or refute."""
DRAWN = 16
"""The most ranks in a panel. A node usually has no more GPUs."""
LATE = 0.005
"""A rank is shown if more GPUs than this wait for it on average. Less is noise of the clock."""


def section() -> Section:
    return _section(
        "The ranks on this node",
        line(4, _live(), _computing_now(), _waited_for(), _confirmed(), _faults()),
        line(9, _shares(), _signals()),
        line(8, _ranks(), _phases()),
        line(9, _computing(), _late()),
        line(6, given.panel(HERE, HERE)),
        line(6, _identity()),
        line(6, _placement()),
    )


def _live() -> Panel:
    return stat(
        "Live ranks",
        "Ranks that live on this node. If there are fewer ranks than GPUs, some GPUs are empty or run a job "
        "without whyidle.",
        now(f"sum(node:whyidle_ranks:count{{{v.NODE}}})"),
        unit="short",
        width=3,
        nothing="none",
    )


def _computing_now() -> Panel:
    return stat(
        "Computing",
        "Share of its ranks' time that went into compute, in windows of five minutes.",
        query(f'sum(node_family:whyidle_share:ratio5m{{{v.NODE}, family="compute"}})'),
        unit="percentunit",
        width=5,
        thresholds=GOOD,
        decimals=0,
        graph=True,
    )


def _waited_for() -> Panel:
    return stat(
        "GPUs that wait for this node",
        "How many GPUs, of this node or others, wait for a late rank of this node, on average.",
        query(f"sum(rate({series('whyidle_late_seconds_total')}[$window]))"),
        unit="short",
        width=5,
        decimals=1,
        thresholds=steps(0.5, 4),
        graph=True,
        nothing="none",
    )


def _confirmed() -> Panel:
    """0 means no. Every family has a number, which is mapped to a word and a colour."""
    ranks = f"max(node:whyidle_ranks:count{{{v.NODE}}})"
    told = {index: ("yes", FAMILY_COLOUR[family]) for index, family in enumerate(EVIDENCE, 1)}
    return stat(
        "Do its counters agree?",
        "Whether any counter of the node agrees that network, storage or CPU is the limit, within the last five "
        "minutes: see the signals below. A verdict stays unconfirmed if no signal agrees with it.",
        *(
            now(f"max(node:whyidle_{family}_evidence:max5m{{{v.NODE}}}) * {index} or 0 * {ranks}", title)
            for index, (family, title) in enumerate(EVIDENCE.items(), 1)
        ),
        unit="none",
        width=7,
        mappings=words({0: ("no", FAINT)} | told),
        background=True,
        show="value_and_name",
        nothing="no ranks",
    )


def _faults() -> Panel:
    return stat(
        "Faults",
        "Kinds of faults in the time range, by device: GPUs, links, file systems and memory. The last row of this page "
        "lists them.",
        now(f"count({faults()}) or vector(0)"),
        unit="short",
        width=4,
        thresholds=steps(1),
        decimals=0,
    )


def _shares() -> Panel:
    return share(
        "Where the time of its ranks goes",
        "Device-seconds of all ranks on the node, by family. They add up to 100 %. Compare with the run: a node that "
        "differs from the others is the place to look. Each point is the mean of five minutes.",
        query(f"sum by (family) (node_family:whyidle_share:ratio5m{{{v.NODE}}})", "{{family}}"),
        width=12,
    )


def _signals() -> Panel:
    told = {index: (f"{family} is the limit", FAMILY_COLOUR[family]) for index, family in enumerate(EVIDENCE, 1)}
    return timeline(
        "What its counters say",
        "The counters that showed network, storage or CPU as the limit in the time range, and when they did. It "
        "shows the ten counters of each family that did so for longest.",
        *(
            query(f"{index} * ({_longest(family)})", f"{family}: {{{{signal}}}}")
            for index, family in enumerate(EVIDENCE, 1)
        ),
        mappings=words(told),
        width=12,
        nothing="No counter showed network, storage or CPU as the limit",
    )


def _longest(family: str) -> str:
    evidence = f"max by (signal) (node:whyidle_{family}_evidence:max5m{{{v.NODE}}})"
    return worst(evidence, over_range(evidence, "count"), "signal", "10")


_STATES = words({0: "exited", 1: "live", 2: ("killed", RED), 3: ("failed", RED)})


def _ranks() -> Panel:
    alive, killed, failed = (
        f"max by ({RANK}) ({series(f'whyidle_rank_{state}')})" for state in ("up", "killed", "failed")
    )
    columns = {
        "A": f"max by ({RANK}) ({COMPUTING})",
        "B": total(RANK, rate("whyidle_late_seconds_total")),
        "C": f"max by ({RANK}) ({series('whyidle_collective_missing_seconds')})",
        "D": f"{alive} + 2 * {killed} + 3 * {failed}\nor {alive}",
    }
    return table(
        "Ranks",
        "What each rank of the node does, at the end of the time range. Only the ranks that compute least are "
        "shown. Keeps waiting: "
        "how many GPUs wait for it, on average. Missing: for how long others have waited in a collective that it has "
        "not entered.",
        now(f"bottomk({ROWS}, {columns['A']})"),
        *(listed(columns[letter]) for letter in "BCD"),
        columns=[
            Column("owner", "Owner"),
            Column("run", "Run", link=to_run()),
            Column("rank", "Rank", width=60),
            Column("A", "Computing", "percentunit", thresholds=GOOD, cell="gauge", most=1, decimals=0, width=130),
            Column("B", "Keeps waiting", "count:GPUs", 110, steps(0.1, 1), cell="color-background", decimals=2),
            Column("C", "Missing", "s", thresholds=steps(5, 60), cell="color-background", width=80),
            Column("D", "State", mappings=_STATES, cell="color-text", width=70),
        ],
        sort="Computing",
        rising=True,
        width=12,
        nothing="No rank of this node has a ledger",
    )


def _idle() -> str:
    """The time in the time range in which each rank did not compute. 0 for ranks that always computed."""
    known = over_range(series("whyidle_rank_info"), "max")
    return f"({rank_idle(v.NODE, RANK)} or 0 * max by ({RANK}) ({known}))"


def _phases() -> Panel:
    told = {index: (phase, PHASE_COLOUR[phase]) for index, phase in enumerate(PHASES)}
    return timeline(
        "What each rank is doing",
        "The phase of each rank at each moment, for the ranks that computed least. If one rank stays in a phase "
        "for long while the others wait in collectives, they wait for this phase.",
        query(
            worst(encode("whyidle_phase_open_seconds", HERE, "phase", PHASES, RANK), _idle(), RANK, str(DRAWN)), NAMED
        ),
        mappings=words(told),
        width=12,
        nothing="No rank of this node has a ledger",
    )


def _computing() -> Panel:
    return trend(
        "Computing, by rank",
        "Share of each rank's time that went into compute, for the ranks that computed least. If one line is "
        "below the others, only this rank has a problem. If all lines drop together, the node or the run has "
        "the problem.",
        query(worst(f"max by ({RANK}) ({COMPUTING})", _idle(), RANK, str(DRAWN)), NAMED),
        unit="percentunit",
        most=1,
        nothing="No time of a rank of this node was recorded",
    )


def _late() -> Panel:
    late = f"sum by ({RANK}, family) (rate({series('whyidle_late_seconds_total')}[$window]))"
    return trend(
        "Made others wait, by rank and what made it late",
        "GPUs that waited in a collective for a rank of this node, on average, by the family that made it late. Only "
        "the eight highest values are shown. A value above 1 means that several GPUs wait.",
        query(f"{highest(late, f'{RANK}, family', 8)} > {LATE}", NAMED + " {{family}}"),
        unit="count:GPUs",
        by_family=True,
        nothing="No rank of this node made others wait",
    )


def _placement() -> Panel:
    labels = "device, device_node, cpu_node, place"
    return table(
        "NUMA nodes of the ranks and their devices",
        "Where the main thread of each rank ran in the window, beside the NUMA node of its GPU and of its adapter. "
        "Far: at another socket, so that copies cross the link between the sockets.",
        listed(f"max by ({RANK}, {labels}) ({rate('whyidle_rank_numa_samples_total')} > 0)"),
        columns=[
            Column("owner", "Owner"),
            Column("run", "Run", link=to_run()),
            Column("rank", "Rank", width=60),
            Column("device", "Device", width=80),
            Column("device_node", "NUMA node of the device", width=180),
            Column("cpu_node", "NUMA node of the CPU", width=180),
            Column("place", "Place", width=80),
        ],
        nothing="The node has one NUMA node, or the nodes of its devices are not known",
    )


def _identity() -> Panel:
    labels = "local_rank, world_size, attempt, device, pid"
    pod, job = "namespace, pod, workload", "job_id, user, account, partition"
    return table(
        "Who the ranks are",
        "The newest attempt of each rank, its GPU and process, and the pod or the Slurm job that it belongs to. "
        "The PID is the one in the PID namespace of the rank.",
        listed(f"max by ({RANK}, {labels}) ({series('whyidle_rank_info')})"),
        listed(f"max by ({RANK}, {pod}) ({series('whyidle_rank_pod_info')})"),
        listed(f"max by ({RANK}, {job}) ({series('whyidle_rank_slurm_info')})"),
        columns=[
            Column("owner", "Owner"),
            Column("run", "Run", link=to_run()),
            Column("rank", "Rank", width=60),
            Column("local_rank", "Local rank", width=90),
            Column("world_size", "World size", width=90),
            Column("attempt", "Attempt", width=70),
            Column("device", "Device", width=80),
            Column("pid", "PID", width=80),
            Column("namespace", "Namespace"),
            Column("pod", "Pod"),
            Column("workload", "Workload"),
            Column("job_id", "Slurm job", width=90),
            Column("user", "User"),
            Column("account", "Account"),
            Column("partition", "Partition"),
        ],
        nothing="No rank of this node has a ledger",
    )
