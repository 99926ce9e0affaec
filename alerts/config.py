"""All that rules and alerts are made with: selectors, windows, thresholds. One object, DEFAULT unless told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..agent.metrics import METRIC
from ..verdict.accounts import HANG_SECONDS
from ..verdict.verdict import LATE_SHARE, VERDICT_SHARE
from .kinds import Amount, Duration, Label, Multiple, Selector, Severity, Share, Url, UrlOrNone, Wait, Word
from .promql import seconds
from .thresholds import Thresholds

HISTOGRAM_SUFFIXES = ("_bucket", "_sum", "_count")


@dataclass(frozen=True)
class Override:
    """What is other than usual for the alerts of one name. Empty: as usual."""

    severity: Severity = ""
    """critical, warning or info."""
    for_: Wait = ""
    """For how long it must be so before the alert fires."""
    labels: Mapping[Label, Word] = field(default_factory=dict)
    """Further labels."""
    enabled: bool = True
    """false leaves the alert out."""


@dataclass(frozen=True)
class Config:
    """Shares and ratios are from 0 to 1, times in seconds, unless a name says otherwise."""

    selector: Selector = ""
    """Matchers that every series of the agent must meet, such as `job="whyidle"`."""
    cluster_label: Label = "cluster"
    """The label that tells clusters apart; empty everywhere where nobody sets it, as for one Prometheus per cluster."""
    windows: tuple[Duration, ...] = ("1m", "5m", "1h")
    """What rates and shares are taken over. Alerts and verdicts use window and long_window."""
    interval: Duration = "1m"
    """How often the books of runs are read: who is there, what was added, and from that all windows, verdicts and
    bills. Windows are multiples of it. At most two minutes: after five, Prometheus takes a series for gone, and one
    evaluation may be missed."""
    details_interval: Duration = "4m"
    """How often what only pages and the texts of alerts show is looked at: the books of single ranks, and what
    contradicts a verdict. At most four minutes: after five, Prometheus takes a series for gone."""
    counters_interval: Duration = "2m"
    """How often node counters, steps and bandwidth are looked at."""
    window: Duration = "5m"
    """The window of evidence from node counters, and of most alerts."""
    long_window: Duration = "1h"
    """The window of what comes in bursts, and of events such as XIDs."""
    runbook_url: Url = "https://github.com/whyidle/whyidle/blob/main/docs/runbook.md"
    """The page that explains the alerts; its sections are the names of the alerts in lower case."""
    dashboard_url: UrlOrNone = ""
    """Where Grafana is, such as https://grafana.example.org. Empty: links to dashboards begin with /d/."""
    dashboard_prefix: Word = "whyidle / "
    """What the titles of the dashboards begin with."""
    gpu_hour_price: Amount = 0.0
    """What an hour of a GPU costs. With 0 no alert and no dashboard speaks of money."""
    currency: Word = "$"
    """What it costs that in. It stands before the number."""
    labels: Mapping[Label, Word] = field(default_factory=dict)
    """Labels of all alerts, to route them by, such as {team: ml}."""
    overrides: Mapping[str, Override] = field(default_factory=dict)
    """By the name of an alert, what is other than usual: {WhyidleGoodputLow: {enabled: false}}, or severity, for and
    labels."""

    for_now: Duration = "1m"
    """What is wrong already when it shows: a GPU that is lost, a link that is down."""
    for_soon: Duration = "5m"
    """What is wrong unless it passes: a collective that hangs, an agent that does not answer."""
    for_slow: Duration = "15m"
    """What costs time while it lasts: idle shares, congestion, slow storage."""
    keep_firing: Duration = "10m"
    """For how long an alert goes on that would flap otherwise."""

    # -- the verdict
    verdict_share: Share = VERDICT_SHARE
    """A family other than compute is the verdict from this share of the ranks' time on. As `whyidle report` has it."""
    late_share: Share = LATE_SHARE
    """A rank is named as late if others waited for it this share of the ranks' time. As `whyidle report` has it."""

    open_seconds: Amount = HANG_SECONDS
    """A phase that has been open for longer counts before its end, and a wait that long has a missing rank."""
    confirmed_share: Share = 0.5
    """From which degree on a verdict is called confirmed. The degree is the part of the verdict's time that was lost on
    nodes on which a signal speaks; a signal counts the less, the more often it speaks there when nothing is lost."""
    contradicted_share: Share = 0.5
    """A contradiction is named if it holds where at least this part of the verdict's time was lost."""

    # -- evidence: from where on a node's counter agrees with a verdict
    baseline_hours: Multiple = 6.0
    """Over how many hours it is learned how often each signal of a node speaks while its ranks lose nothing to its
    family."""
    bandwidth_reference: Duration = "1d"
    """Over how long a run's best bus bandwidth in transfers is looked for, to compare that of now with it."""
    line_rate_share: Share = 0.8
    """A port is the limit when it carries this share of its line rate."""
    tcp_retransmit_share: Share = 0.001
    """Segments sent again, of all sent. One connection of 1,460-byte segments and 0.1 ms there and back then carries at
    most some 4.5 Gbit/s: segment / time × 1.22 / √share (Mathis et al., The macroscopic behavior of the TCP congestion
    avoidance algorithm, 1997)."""
    transmit_wait_ticks_per_second: Amount = 1_000_000.0
    """A port waited for credits. How long a tick is depends on the adapter: of some nanoseconds each, this many are
    about a hundredth of the time."""
    pause_share: Share = 0.01
    """Time in which pause frames, or PCIe, held up a port."""
    pause_frames_per_second: Amount = 10.0
    """The same for adapters that count frames and no time."""
    discards_per_second: Amount = 1.0
    """Packets that a port discarded, sent again or received out of order."""
    stalls_per_second: Amount = 0.01
    """What stalls a whole connection each time: timeouts, and links that go down. Three in five minutes are enough."""
    congestion_marks_per_second: Amount = 10.0
    """Packets marked as having met congestion, or notifications of it."""
    io_stalled_share: Share = 0.1
    """Time in which some tasks stalled on I/O (PSI), or that operations of a file system on the network took."""
    blocked_worker_share: Share = 0.25
    """Samples that found a rank's main thread or worker in an uninterruptible wait."""
    major_faults_per_second: Amount = 100.0
    """Page faults of a rank and its workers that waited for storage."""
    disk_busy_share: Share = 0.8
    """Time in which a disk had a request in flight."""
    nfs_latency: Amount = 0.05
    """Mean time of an NFS operation, its queueing included."""
    lustre_latency: Amount = 0.05
    """Mean time of a call to a Lustre file system."""
    cpu_stalled_share: Share = 0.25
    """Time in which some tasks stalled for want of a CPU (PSI)."""
    cpu_busy_share: Share = 0.9
    """CPU time in use, of all CPUs of the node."""
    runqueue_share: Share = 0.1
    """Time for which a main thread of a rank or of a worker was ready to run and got no CPU, per process."""
    throttled_periods_share: Share = 0.1
    """Periods of a cgroup's CPU limit in which it was used up."""
    worker_cpu_share: Share = 0.8
    """CPU time per data worker and second: from here on the workers are the limit themselves."""
    shaped_packets_per_second: Amount = 10.0
    """Packets that a queueing discipline held back or dropped to keep a rate (tc's overlimits)."""
    backlog_bytes: Amount = 65_536.0
    """Mean bytes that wait in the queueing discipline of an interface."""
    fuse_requests: Amount = 0.5
    """Mean number of requests that a FUSE file system owes an answer to."""
    open_network_files: Amount = 0.5
    """Mean number of files that a rank has open on file systems of the network while it reads."""

    # -- contradictions: from where on a counter says the opposite of a verdict
    idle_share: Share = 0.01
    """A link, a disk or a wait that takes less of the time is idle."""
    idle_bytes_per_second: Amount = 100_000.0
    """Ranks that read and write less, and interfaces that receive less, get no data from storage."""
    idle_cpus_share: Share = 0.5
    """A node on which this share of the CPU time is idle has CPUs enough."""
    gpu_busy_margin: Share = 0.1
    """A GPU's busy share and the share that its ranks say it was idle may sum to 1 and so much more."""

    alerts: Thresholds = field(default_factory=Thresholds)
    """From where on alerts fire."""

    def __post_init__(self) -> None:
        if not {self.window, self.long_window} <= set(self.windows):
            raise ValueError("window and long_window must be among windows")
        if seconds(self.interval) > 120:
            raise ValueError(f"interval is {self.interval}, and must be 2m at most: Prometheus forgets after 5m")
        if seconds(self.details_interval) > 240:
            raise ValueError(
                f"details_interval is {self.details_interval}, and must be 4m at most: Prometheus forgets after 5m"
            )
        uneven = [window for window in self.windows if seconds(window) % seconds(self.interval)]
        if uneven:
            raise ValueError(f"{', '.join(uneven)} must be a multiple of interval, {self.interval}")

    def series(self, metric: str, matchers: str = "") -> str:
        """The selector of a metric of the agent's. Raises KeyError for a metric that nobody declares."""
        declared(metric)
        chosen = ", ".join(part for part in (matchers, self.selector) if part)
        return f"{metric}{{{chosen}}}" if chosen else metric

    def rate(self, metric: str, window: str, matchers: str = "") -> str:
        """The rate of a counter of the agent's."""
        return f"rate({self.series(metric, matchers)}[{window}])"

    def increase(self, metric: str, window: str, matchers: str = "") -> str:
        """By how much a counter of the agent's has grown."""
        return f"increase({self.series(metric, matchers)}[{window}])"

    def by(self, *labels: str) -> str:
        """A grouping that keeps clusters apart: `by (cluster, run)`."""
        return f"by ({', '.join((self.cluster_label, *labels))})"

    def on(self, *labels: str) -> str:
        """A matching within a cluster: `on (cluster, run)`."""
        return f"on ({', '.join((self.cluster_label, *labels))})"


def declared(metric: str) -> None:
    """Raises KeyError unless the agent exports such a series."""
    if metric in METRIC:
        return
    for suffix in HISTOGRAM_SUFFIXES:
        base = metric.removesuffix(suffix)
        if base != metric and METRIC[base].type == "histogram":
            return
    raise KeyError(f"no metric {metric} is declared in agent/metrics")


DEFAULT = Config()
