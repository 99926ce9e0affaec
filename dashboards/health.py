"""The dashboard Health: whether whyidle itself works: agents, collectors, ledgers, hooks, clocks, scrapes and rules.

All agents and ranks together have thousands of series about themselves. So a panel shows only the worst at the end of
the time range. Panels over time use recorded series, or metrics of which an agent has few series.
"""

from __future__ import annotations

from ..agent.metrics import METRIC
from ..alerts.recording.names import INSTANCE_NODE
from . import variables as v
from .vocabulary import (
    Column,
    Dashboard,
    Panel,
    dashboard,
    line,
    now,
    query,
    section,
    stat,
    steps,
    table,
    to_node,
    to_run,
    trend,
)

BY_INSTANCE = f"{v.CLUSTER_LABEL}, instance"
NODE = f"group_left (node) topk by ({BY_INSTANCE}) (1, max by ({BY_INSTANCE}, node) ({INSTANCE_NODE}{{{v.CLUSTER}}}))"
"""Joins the node's name to an agent's series. It takes one name, since ranks may give the node another name."""
LOOKS = 60
"""Points over time in panels on all agents. With more, thirty days of a thousand agents would be slow."""
LATELY = v.SETTINGS.window
"""The window of rates at the end of the time range. One that grows with the range would read an hour of all agents."""
OWN_RULES = 'rule_group=~".*;whyidle-.*"'
"""Matcher for whyidle's rule groups. Prometheus names a group by its file and its name."""
FAILED = 'state="failed"'
COUNTS = ("10", "20", "50")
NODE_COLUMN = Column("node", "Node", width=140, link=to_node())


def build() -> Dashboard:
    return dashboard(
        "whyidle-health",
        "whyidle / Health",
        """Whether whyidle itself works on all nodes: agents and their collectors, ledgers and hooks, clocks, and what
        scrapes and rules cost Prometheus. Look here when a panel elsewhere is empty.""",
        variables=[v.data_source(), v.cluster(), v.choice("worst", "Worst", COUNTS, "20")],
        sections=[
            section(
                "Are the numbers reliable?",
                line(4, *_in_one_look()),
                line(8, _collectors(), _failures()),
                line(8, _unread(), _ledgers(), _hooks()),
                line(8, _clocks(), _unmeasured()),
            ),
            section(
                "What does it cost?",
                line(8, _agents(), _memory()),
                line(8, _rules(), _versions()),
            ),
        ],
        refresh="1m",
    )


def _series(metric: str, matchers: str = "") -> str:
    """The selector of a declared metric of all agents."""
    return f"{METRIC[metric].name}{{{', '.join(filter(None, (v.CLUSTER, matchers)))}}}"


def _rate(metric: str) -> str:
    return f"rate({_series(metric)}[{LATELY}])"


def _grown(metric: str, by: str, most: int | str = "$worst") -> str:
    """The counters that grew most in the last minutes of the time range, by labels and node.

    A query over the whole range would be too large: a thousand agents have about a hundred thousand such counters, and
    nearly all of them stand still.
    """
    grown = f"sum by ({BY_INSTANCE}, {by}) (increase({_series(metric)}[{LATELY}]) > 0.5)"
    return f"topk({most}, {grown} * on ({BY_INSTANCE}) {NODE})"


def _in_one_look() -> list[Panel]:
    unattributed = f'cluster_family:whyidle_share:ratio5m{{{v.CLUSTER}, family="unattributed"}}'
    return [
        stat(
            "Agents",
            "Agents that Prometheus scrapes.",
            now(f"count({_series('whyidle_build_info')})"),
            unit="short",
            nothing="none",
        ),
        stat(
            "Agents that stopped answering",
            "Agents that answered within the last hour and do not answer now. The node or its agent is down.",
            now(
                f"count(group by ({v.BY_NODE}) (last_over_time({INSTANCE_NODE}{{{v.CLUSTER}}}[1h])) "
                f"unless on ({v.BY_NODE}) {INSTANCE_NODE}{{{v.CLUSTER}}}) or vector(0)"
            ),
            unit="short",
            thresholds=steps(1),
        ),
        stat(
            "Collectors that fail",
            "Collectors of all agents that have something to read on their node and do not answer. Until they "
            "do, their series are absent.",
            now(f"count({_series('whyidle_collector_up')} == 0) or vector(0)"),
            unit="short",
            thresholds=steps(1),
        ),
        stat(
            "Hooks that failed",
            "Hooks of all ranks that failed. What a failed hook would have seen counts as host or unattributed.",
            now(f"count({_series('whyidle_hook_state', FAILED)}) or vector(0)"),
            unit="short",
            thresholds=steps(1),
        ),
        stat(
            "Unexplained time",
            "Share of all ranks' device time that no cause explains, in the cluster where it is highest.",
            query(f"max({unattributed}) or vector(0)"),
            unit="percentunit",
            thresholds=steps(0.02, 0.1),
            graph=True,
        ),
        stat(
            "Clocks that are wrong",
            "Nodes whose clock is not synchronised, according to the kernel. Their times cannot be compared.",
            now(f"count({_series('whyidle_clock_synchronised')} == 0) or vector(0)"),
            unit="short",
            thresholds=steps(1),
        ),
    ]


def _collectors() -> Panel:
    by = f"{BY_INSTANCE}, collector"
    age = f"topk($worst, max by ({by}) ({_series('whyidle_collector_age_seconds')}))"
    return table(
        "Collectors with the oldest results",
        "Age of each collector's last result, how long it took, and whether the collector is up. A collector "
        "whose result is older than a scrape interval hangs or fails. NVML and NFS do this most often.",
        now(f"{age} * on ({BY_INSTANCE}) {NODE}"),
        now(f"max by ({by}) ({_series('whyidle_collector_duration_seconds')}) and on ({by}) {age}"),
        now(f"max by ({by}) ({_series('whyidle_collector_up')}) and on ({by}) {age}"),
        columns=[
            NODE_COLUMN,
            Column("collector", "Collector"),
            Column("A", "Age", "s", thresholds=steps(60, 300), cell="color-background"),
            Column("B", "Last took", "s"),
            Column("C", "Up", "bool", width=60),
        ],
        sort="Age",
        width=12,
    )


def _failures() -> Panel:
    return table(
        "Collector runs without a result",
        "Runs in the last 5 minutes of the time range, by reason: the collector took longer than its deadline, still "
        "hung from an earlier run, had no time left, or failed.",
        now(_grown("whyidle_collector_failures_total", "collector, reason")),
        columns=[
            NODE_COLUMN,
            Column("collector", "Collector"),
            Column("reason", "Reason"),
            Column("Value", "Rounds", "short", decimals=0, width=90),
        ],
        sort="Rounds",
        width=12,
        nothing="Every collector answered",
    )


def _unread() -> Panel:
    return table(
        "Values that could not be read",
        "Values in the last 5 minutes of the time range, by collector, file and reason. The series of a value is "
        "absent until it can be read again.",
        now(_grown("whyidle_read_errors_total", "collector, file, reason")),
        columns=[
            NODE_COLUMN,
            Column("collector", "Collector", width=90),
            Column("file", "File"),
            Column("reason", "Reason", width=100),
            Column("Value", "Times", "short", decimals=0, width=80),
        ],
        sort="Times",
        width=10,
        nothing="Everything could be read",
    )


def _ledgers() -> Panel:
    return table(
        "Ledgers that could not be used",
        "Ledgers in the last 5 minutes of the time range, by reason: the file is not a ledger, has a newer version, or "
        "is damaged. The ranks of these files are missing from all figures.",
        now(_grown("whyidle_ledger_errors_total", "reason")),
        columns=[NODE_COLUMN, Column("reason", "Reason"), Column("Value", "Times", "short", decimals=0, width=80)],
        sort="Times",
        width=7,
        nothing="Every ledger was read",
    )


def _hooks() -> Panel:
    states = f"count by ({v.BY_RUN}, hook) ({_series('whyidle_hook_state', FAILED)})"
    faults = f"sum by ({v.BY_RUN}) (increase({_series('whyidle_hook_faults_total')}[{LATELY}])) > 0.5"
    return table(
        "Hooks that failed, and errors that they caught",
        "The number of ranks of each run on which a hook failed, and the errors in whyidle itself in the last 5 "
        "minutes of the time range. The log of the rank says why.",
        now(f"topk($worst, {states})"),
        now(f"topk($worst, {faults})"),
        columns=[
            Column("owner", "Owner"),
            Column("run", "Run", link=to_run()),
            Column("hook", "Hook"),
            Column("A", "Ranks", "short", width=80),
            Column("B", "Faults", "short", decimals=0, width=80),
        ],
        width=7,
        nothing="Every hook works",
    )


def _clocks() -> Panel:
    told = {
        "whyidle_clock_maximum_error_seconds": "Off by at most",
        "whyidle_clock_estimated_error_seconds": "Estimated",
        "whyidle_clock_offset_seconds": "Still to correct",
        "whyidle_clock_synchronised": "Synchronised",
    }
    first = f"topk($worst, max by ({BY_INSTANCE}) ({_series('whyidle_clock_maximum_error_seconds')}))"
    time = _series("whyidle_clock_time_seconds")
    return table(
        "Clocks with the largest error",
        "The largest error of each node's clock, as its time daemon estimates it; the part that the kernel still "
        "has to correct; and the difference from the clock of Prometheus, which includes the duration of the scrape.",
        now(f"{first} * on ({BY_INSTANCE}) {NODE}"),
        *(now(f"max by ({BY_INSTANCE}) ({_series(metric)}) and on ({BY_INSTANCE}) {first}") for metric in [*told][1:]),
        now(f"max by ({BY_INSTANCE}) ({time} - timestamp({time})) and on ({BY_INSTANCE}) {first}"),
        columns=[
            NODE_COLUMN,
            *(
                Column(letter, title, "bool" if title == "Synchronised" else "s")
                for letter, title in zip("ABCD", told.values(), strict=True)
            ),
            Column("E", "Against Prometheus", "s", width=150),
        ],
        sort="Off by at most",
        width=14,
        nothing="No agent tells its clock",
    )


def _unmeasured() -> Panel:
    pending = f"sum by ({v.BY_RUN}) ({_series('whyidle_device_pending_seconds')})"
    return table(
        "Waits not split yet, and intervals not measured",
        "GPU-seconds of waits in collectives that are not split yet, by run; and intervals that the device clock "
        "could not measure in the last 5 minutes, whose time is unattributed. Both are at the end of the time range.",
        now(f"topk($worst, {pending})"),
        now(f"topk($worst, sum by ({v.BY_RUN}) (increase({_series('whyidle_unmeasured_total')}[{LATELY}])))"),
        columns=[
            Column("owner", "Owner"),
            Column("run", "Run", link=to_run()),
            Column("A", "Not split yet", "s"),
            Column("B", "Not measured", "short", decimals=0),
        ],
        sort="Not split yet",
        width=10,
        nothing="No run",
    )


def _agents() -> Panel:
    cpu = f"topk($worst, max by ({BY_INSTANCE}) ({_rate('process_cpu_seconds_total')}))"
    scraped = f"and on ({BY_INSTANCE}) {_series('whyidle_build_info')}"
    return table(
        "Agents that cost most",
        "CPU use of an agent as a share of one CPU, its resident memory, and the duration and size of its "
        "scrapes. An agent that costs much more than the others reads something slow: see its collectors.",
        now(f"{cpu} * on ({BY_INSTANCE}) {NODE}"),
        now(f"max by ({BY_INSTANCE}) ({_series('process_resident_memory_bytes')}) and on ({BY_INSTANCE}) {cpu}"),
        now(f"max by ({BY_INSTANCE}) (scrape_duration_seconds{{{v.CLUSTER}}} {scraped}) and on ({BY_INSTANCE}) {cpu}"),
        now(f"max by ({BY_INSTANCE}) (scrape_samples_scraped{{{v.CLUSTER}}} {scraped}) and on ({BY_INSTANCE}) {cpu}"),
        columns=[
            NODE_COLUMN,
            Column("A", "CPU", "percentunit", decimals=1),
            Column("B", "Memory", "bytes"),
            Column("C", "Scrape takes", "s"),
            Column("D", "Series", "short", decimals=0),
        ],
        sort="CPU",
        width=14,
    )


def _memory() -> Panel:
    resident = _series("process_resident_memory_bytes")
    agents = f"({resident} and on ({BY_INSTANCE}) {_series('whyidle_build_info')})"
    panel = trend(
        "Memory of the agents",
        "The largest and the median resident memory of an agent. Growth over days is a leak: please report it.",
        query(f"max({agents})", "most"),
        query(f"quantile(0.5, {agents})", "median"),
        unit="bytes",
        width=10,
    )
    panel.maxDataPoints = LOOKS
    return panel


def _rules() -> Panel:
    groups = f"{{{v.CLUSTER}, {OWN_RULES}}}"
    last, every = "prometheus_rule_group_last_duration_seconds", "prometheus_rule_group_interval_seconds"
    missed, failed = "prometheus_rule_group_iterations_missed_total", "prometheus_rule_evaluation_failures_total"
    first = f"topk($worst, max by (rule_group) ({last}{groups}))"
    return table(
        "Rules of whyidle in Prometheus",
        "How long the last evaluation of each group took, its interval, and evaluations that were missed or "
        "failed. A group that takes as long as its interval is too slow and leaves gaps.",
        now(first),
        now(f"max by (rule_group) ({every}{groups}) and on (rule_group) {first}"),
        *(
            now(f"sum by (rule_group) (increase({count}{groups}[{LATELY}])) and on (rule_group) {first}")
            for count in (missed, failed)
        ),
        columns=[
            Column("rule_group", "Group"),
            Column("A", "Last took", "s", width=100),
            Column("B", "Every", "s", width=80),
            Column("C", "Missed", "short", thresholds=steps(1), cell="color-background", decimals=0, width=80),
            Column("D", "Failed", "short", thresholds=steps(1), cell="color-background", decimals=0, width=80),
        ],
        sort="Last took",
        width=14,
        nothing="Prometheus does not scrape itself",
    )


def _versions() -> Panel:
    return table(
        "Versions of the agent",
        "How many agents run each version. Two versions mean that an upgrade is in progress or stopped.",
        now(f"topk($worst, count by (version) ({_series('whyidle_build_info')}))"),
        columns=[Column("version", "Version"), Column("Value", "Agents", "short", width=90)],
        sort="Agents",
        width=10,
    )
