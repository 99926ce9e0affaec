"""The ranks that a node hosts: what its counters are to prove or refute."""

from __future__ import annotations

from ...ledger.causes import PHASES
from .. import variables as v
from ..colours import FAINT, FAMILY_COLOUR, GREEN, ORANGE, PHASE_COLOUR
from ..vocabulary import (
    GOOD,
    Column,
    Panel,
    Section,
    encode,
    falling,
    line,
    now,
    query,
    rank_shares,
    section,
    share,
    stat,
    steps,
    table,
    timeline,
    to_run,
    trend,
    words,
)
from .selection import HERE, grows, level, rate, series

RANK = "owner, run, rank"
NAMED = "{{owner}}/{{run}} rank {{rank}}"
COMPUTING = rank_shares(v.NODE, RANK, 'family="compute"')
EVIDENCE = {
    family: words({0: ("no", FAINT), 1: ("agrees", FAMILY_COLOUR[family])}) for family in ("network", "storage", "cpu")
}


def sections() -> list[Section]:
    return [
        section(
            "The ranks on this node, and whose side its counters take",
            line(4, *_in_one_look()),
            line(8, _shares()),
            line(9, *(_signals(family) for family in ("network", "storage", "cpu"))),
            line(7, _ranks(), _phases()),
            line(7, _computing(), _late()),
        ),
        section(
            "What its ranks did",
            line(7, _steps(), _fed(), _calls()),
            line(7, _waits(), _saved(), _open()),
            line(7, _idle_compute(), _pending()),
            collapsed=True,
        ),
    ]


def _in_one_look() -> list[Panel]:
    return [
        stat(
            "Live ranks",
            "Ranks that live on this node. Fewer than GPUs: some GPUs have nobody, or a job without whyidle.",
            now(f"sum(node:whyidle_ranks:count{{{v.NODE}}})"),
            unit="short",
            width=3,
        ),
        stat(
            "Computing",
            "Share of its ranks' time that went into compute.",
            query(f'sum(node_family:whyidle_share:ratio$window{{{v.NODE}, family="compute"}})'),
            unit="percentunit",
            width=4,
            thresholds=GOOD,
            graph=True,
        ),
        *map(_agrees, EVIDENCE),
        stat(
            "Collectors that answer",
            "Of those that have something to read on this node. Others cost their own series alone.",
            now(f"avg({series('whyidle_collector_up')})"),
            unit="percentunit",
            width=4,
            thresholds=falling(0.99, 1),
        ),
        stat(
            "GPUs with a fault",
            "XID events in the time range, of all GPUs, and GPUs that are lost. Anything but 0 is worth a look.",
            now(f"sum(increase({series('whyidle_gpu_faults_total')}[$__range])) + sum({series('whyidle_gpu_lost')})"),
            unit="short",
            width=4,
            thresholds=steps(1),
            decimals=0,
            nothing="no GPU",
        ),
    ]


def _agrees(family: str) -> Panel:
    return stat(
        "CPU counters" if family == "cpu" else f"{family.capitalize()} counters",
        f"Whether any counter of the node agrees that {family} is the limit, within the last five minutes: see the "
        "signals below. A verdict that none of them shares stays unconfirmed.",
        now(f"max(node:whyidle_{family}_evidence:max5m{{{v.NODE}}}) or 0 * max(node:whyidle_ranks:count{{{v.NODE}}})"),
        unit="none",
        width=3,
        mappings=EVIDENCE[family],
        background=True,
        nothing="no ranks",
    )


def _shares() -> Panel:
    return share(
        "Where the time of its ranks went",
        "Device-seconds of all ranks on the node, by family; the whole is 100 %. Compare with the run: a node that "
        "differs from the others is the place to look.",
        query(f"sum by (family) (node_family:whyidle_share:ratio$window{{{v.NODE}}})", "{{family}}"),
    )


def _signals(family: str) -> Panel:
    signals = f"max by (signal) (node:whyidle_{family}_evidence:max5m{{{v.NODE}}})"
    return timeline(
        f"Signals of {family}",
        f"The counters of the node that showed {family} as the limit in the time range, and when they did. Others that "
        "can are silent, or the node lacks the device.",
        query(signals, "{{signal}}"),
        mappings=EVIDENCE[family],
        width=8,
        nothing=f"No counter showed {family} as the limit",
    )


def _ranks() -> Panel:
    late = f"sum by ({RANK}) ({rate('whyidle_late_seconds_total')})"
    return table(
        "Ranks",
        "What each rank of the node does, at the end of the time range. Keeps waiting: how many other GPUs wait for "
        "it, on average. Missing: for how long others have waited in a collective that it has not entered.",
        now(f"max by ({RANK}) ({COMPUTING})"),
        now(late),
        now(f"max by ({RANK}) ({series('whyidle_collective_missing_seconds')})"),
        now(f"max by ({RANK}) ({series('whyidle_process_workers')})"),
        now(f"max by ({RANK}) ({series('whyidle_rank_up')})"),
        columns=[
            Column("owner", "Owner"),
            Column("run", "Run", link=to_run()),
            Column("rank", "Rank", width=60),
            Column("A", "Computing", "percentunit", thresholds=GOOD, cell="gauge", most=1, decimals=0, width=130),
            Column("B", "Keeps waiting", "count:GPUs", 110, steps(0.1, 1), cell="color-text", decimals=2),
            Column("C", "Missing", "s", thresholds=steps(5, 60), cell="color-text", width=80),
            Column("D", "Workers", "short", width=75),
            Column("E", "Alive", "bool", width=60),
        ],
        sort="Computing",
        rising=True,
        width=12,
    )


def _phases() -> Panel:
    told = {index: (phase, PHASE_COLOUR[phase]) for index, phase in enumerate(PHASES)}
    return timeline(
        "What each rank is doing",
        "The phase that each rank was in at each moment. One that stands for long while the others wait in "
        "collectives is what they wait for.",
        query(encode("whyidle_phase_open_seconds", HERE, "phase", PHASES, RANK), NAMED),
        mappings=words(told),
        width=12,
    )


def _computing() -> Panel:
    return trend(
        "Computing, by rank",
        "Share of each rank's time that went into compute. One line below the others is a rank of its own trouble; all "
        "of them down together is the node's, or the run's.",
        query(f"max by ({RANK}) ({COMPUTING})", NAMED),
        unit="percentunit",
        most=1,
    )


def _late() -> Panel:
    late = f"rate({series('whyidle_late_seconds_total')}[$window])"
    return trend(
        "Made others wait, by rank and what made it late",
        "GPU-seconds per second for which other ranks waited in a collective for this one, by the family that made it "
        "late. It can exceed 1 where many wait.",
        query(f"sum by ({RANK}, family) ({late}) > 0.005", NAMED + " {{family}}"),
        unit="count:GPUs",
        by_family=True,
        nothing="No rank of this node made others wait",
    )


def _steps() -> Panel:
    return trend(
        "Steps",
        "Optimizer steps per second. Ranks of a run step together.",
        grows("whyidle_steps_total", RANK, NAMED),
        unit="ops",
        width=8,
    )


def _fed() -> Panel:
    return trend(
        "Batches and samples",
        "What reached the loop per second. Samples are counted where their number could be seen.",
        grows("whyidle_batches_total", RANK, NAMED + " batches"),
        grows("whyidle_samples_total", RANK, NAMED + " samples"),
        unit="ops",
        width=8,
    )


def _calls() -> Panel:
    return trend(
        "Collectives: bytes handed over",
        "Bytes per second by operation, all ranks of the node. Compare with what the ports carry: a ring all-reduce "
        "over n ranks sends 2 (n - 1) / n of them.",
        grows("whyidle_collective_bytes_total", "op", "{{op}}"),
        unit="Bps",
        width=8,
    )


def _waits() -> Panel:
    return trend(
        "Collectives: calls and waits",
        "Calls by operation and waits of any, per second. Many small calls pay for latency, not for bandwidth.",
        grows("whyidle_collective_calls_total", "op", "{{op}}"),
        grows("whyidle_collectives_total", "instance", "waits"),
        unit="ops",
        width=8,
    )


def _saved() -> Panel:
    return trend(
        "Checkpoints",
        "Bytes per second that the ranks saved or loaded, and how many checkpoints. Next to the storage counters "
        "below, it says whether a save is slow or merely large.",
        grows("whyidle_checkpoint_bytes_total", "kind", "{{kind}}"),
        unit="Bps",
        width=8,
    )


def _open() -> Panel:
    return trend(
        "Time in the present phase",
        "For how long each rank has been in its phase. A line that keeps climbing is a hang, or a very long save.",
        query(f"max by (owner, run, rank, phase) ({series('whyidle_phase_open_seconds')})", NAMED + " {{phase}}"),
        unit="s",
        width=8,
        thresholds=((None, GREEN), (60, ORANGE)),
        dashed=True,
    )


def _idle_compute() -> Panel:
    return trend(
        "Compute in which no kernel ran",
        "Part of each rank's compute in which its GPU was idle: launch gaps, synchronisations, Python between kernels. "
        "From samples of the GPU's activity, about a minute late.",
        grows("whyidle_compute_idle_seconds_total", RANK, NAMED),
        unit="percentunit",
    )


def _pending() -> Panel:
    return trend(
        "Waits not split yet, and intervals not measured",
        "Waits in collectives whose split into network, straggler and pipeline is still due, in seconds; and how many "
        "intervals per second the device clock could not measure, whose time is unattributed.",
        level("whyidle_device_pending_seconds", RANK, NAMED + " pending"),
        grows("whyidle_unmeasured_total", RANK, NAMED + " unmeasured"),
        unit="short",
    )
