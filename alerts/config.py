"""The configuration of rules and alerts, in one object: selectors, windows, thresholds. DEFAULT holds the defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..advisor.traffic.adapters import COLLISION_SHARE
from ..agent.metrics import METRIC
from ..verdict.case import LATE_SHARE, VERDICT_SHARE
from ..verdict.enough import Limits
from ..verdict.hang import HANG_SECONDS
from ..verdict.shortage import EXPLAINED, QUEUED_SHARE, STOLEN_SHARE
from .kinds import Amount, Duration, Label, Multiple, Selector, Severity, Share, Url, UrlOrNone, Wait, Word
from .promql import milliseconds, seconds
from .thresholds import Thresholds

HISTOGRAM_SUFFIXES = ("_bucket", "_sum", "_count")


@dataclass(frozen=True)
class Override:
    """The overrides for the alerts of one name. An empty field changes nothing."""

    severity: Severity = ""
    """critical, warning or info."""
    for_: Wait = ""
    """For how long the condition must hold before the alert fires."""
    labels: Mapping[Label, Word] = field(default_factory=dict)
    """Labels to add."""
    enabled: bool = True
    """false leaves the alert out."""


@dataclass(frozen=True)
class Config:
    """The settings. Shares and ratios are from 0 to 1 and times in seconds, unless a name says otherwise."""

    selector: Selector = ""
    """Matchers that are added to every query of an agent's series, such as `job="whyidle"`."""
    cluster_label: Label = "cluster"
    """The label that names the cluster of a series. Series may lack it, as with one Prometheus per cluster."""
    windows: tuple[Duration, ...] = ("1m", "5m", "1h")
    """The windows over which rates and shares are computed. Alerts and verdicts use window and long_window."""
    interval: Duration = "1m"
    """How often the seconds of runs are recorded: live ranks and the increases since the last evaluation, and from them
    all windows, verdicts and bills. Windows must be multiples of it. At most 2m: Prometheus drops a series after 5m
    without a sample, and one evaluation may be missed."""
    details_interval: Duration = "4m"
    """How often rules are evaluated that read many series: evidence of node counters, and contradictions of a verdict.
    At most 4m: Prometheus drops a series after 5m without a sample."""
    ranks_interval: Duration = "6m"
    """How often the seconds of single ranks are recorded. Only panels that show ranks and `whyidle whatif` use them. An
    hour should be a multiple of it."""
    counters_interval: Duration = "2m"
    """How often rules on steps and bandwidth are evaluated."""
    window: Duration = "5m"
    """The window of evidence from node counters, and of most alerts."""
    long_window: Duration = "1h"
    """The window for things that come in bursts, and for events such as XIDs."""
    runbook_url: Url = "https://github.com/whyidle/whyidle/blob/main/docs/runbook.md"
    """The page that explains the alerts. Its anchors are the names of the alerts in lower case."""
    dashboard_url: UrlOrNone = ""
    """The address of Grafana, such as https://grafana.example.org. If empty, links to dashboards begin with /d/."""
    dashboard_prefix: Word = "whyidle / "
    """The beginning of the title of each dashboard."""
    gpu_hour_price: Amount = 0.0
    """The price of one GPU for one hour. If 0, alerts and dashboards show no costs."""
    currency: Word = "$"
    """The currency of the price. It is written before the number."""
    labels: Mapping[Label, Word] = field(default_factory=dict)
    """Labels that are added to all alerts, to route them by, such as {team: ml}."""
    overrides: Mapping[str, Override] = field(default_factory=dict)
    """Changes to single alerts, by name, such as {WhyidleGoodputLow: {enabled: false}}. The keys are enabled, severity,
    for and labels."""

    for_now: Duration = "1m"
    """How long a condition must hold for alerts on faults that do not pass, such as a lost GPU or a link that is
    down."""
    for_soon: Duration = "5m"
    """How long a condition must hold for alerts on faults that may pass, such as a collective that hangs or an agent
    that does not answer."""
    for_slow: Duration = "15m"
    """How long a condition must hold for alerts on what costs time while it lasts, such as idle shares, congestion and
    slow storage."""
    keep_firing: Duration = "10m"
    """For how long an alert that could flap keeps firing after its condition ends."""

    # -- the verdict
    verdict_share: Share = VERDICT_SHARE
    """The share of the ranks' time from which on a family other than compute is the verdict. The same as in `whyidle
    report`."""
    least_steps: Amount = float(Limits().steps)
    """A run with fewer steps per rank in its life has no verdict and no alert on what it loses. The same as in `whyidle
    report`."""
    least_seconds: Amount = Limits().seconds
    """The same for its seconds within the window, after its first step."""
    late_share: Share = LATE_SHARE
    """A rank is named as late if other ranks waited for it for this share of the ranks' time. The same as in `whyidle
    report`."""

    open_seconds: Amount = HANG_SECONDS
    """A phase that has been open for longer than this is counted before it ends. In a wait that is open for longer, a
    rank is missing."""
    confirmed_share: Share = 0.5
    """The degree from which on a verdict is confirmed. The degree is the part of the verdict's time that was lost on
    nodes where a signal agrees. A signal counts less if it often agrees on that node while nothing is lost."""
    contradicted_share: Share = 0.5
    """A contradiction is shown if it holds on nodes where at least this part of the verdict's time was lost."""

    collision_share: Share = COLLISION_SHARE
    """Traffic between GPUs and storage traffic collide if each takes this share of an adapter's speed in the same
    minutes and the same direction. The same as in `whyidle traffic`."""

    # -- evidence: the value from which on a counter of a node agrees with a verdict
    baseline_hours: Multiple = 6.0
    """Hours over which the baseline of a signal is averaged: how often the signal agrees on a node while the node's
    ranks lose nothing to its family."""
    bandwidth_reference: Duration = "1d"
    """The time range in which a run's best bus bandwidth in transfers is looked up, to compare the current one with
    it."""
    line_rate_share: Share = 0.8
    """The share of its line rate from which on a port counts as the limit."""
    nvlink_share: Share = 0.6
    """The same for the NVLinks of a GPU. Less, because on H100 NCCL's rings send 370 GB/s over links of 478 GB/s, and
    all-reduces with NVLink SHARP 309 (NVIDIA/nccl-tests#212, NVIDIA/nccl#2140)."""
    tcp_retransmit_share: Share = 0.001
    """TCP segments that were sent again, as a share of all sent. At 0.001 one connection with 1,460-byte segments and a
    round trip of 0.1 ms carries at most about 4.5 Gbit/s: segment / round trip × 1.22 / √share (Mathis et al., The
    macroscopic behavior of the TCP congestion avoidance algorithm, 1997)."""
    transmit_wait_ticks_per_second: Amount = 1_000_000.0
    """Ticks for which a port waited for credits. The length of a tick depends on the adapter. If it is some
    nanoseconds, this many are about a hundredth of the time."""
    pause_share: Share = 0.01
    """The share of time in which pause frames or PCIe held up a port."""
    pause_frames_per_second: Amount = 10.0
    """Pause frames, for adapters that count frames and not time."""
    discards_per_second: Amount = 1.0
    """Packets that a port discarded, sent again or received out of order."""
    stalls_per_second: Amount = 0.01
    """Events that each stall a whole connection: timeouts, and links that go down. 0.01 is three in five minutes."""
    congestion_marks_per_second: Amount = 10.0
    """Packets that are marked because they met congestion, or notifications of congestion."""
    io_stalled_share: Share = 0.1
    """The share of time in which some tasks stalled on I/O (PSI), or that operations on a network file system took."""
    blocked_worker_share: Share = 0.25
    """The share of samples that found the main thread of a rank or a worker in an uninterruptible wait."""
    major_faults_per_second: Amount = 100.0
    """Page faults of a rank and its workers that waited for storage."""
    disk_busy_share: Share = 0.8
    """The share of time in which a disk had a request in flight."""
    nfs_latency: Amount = 0.05
    """Mean seconds of an NFS operation, queueing included."""
    lustre_latency: Amount = 0.05
    """Mean seconds of a call to a Lustre file system."""
    cpu_stalled_share: Share = 0.25
    """The share of time in which some tasks waited for a CPU (PSI)."""
    cpu_busy_share: Share = 0.9
    """The share of the CPU time of a node that is in use."""
    runqueue_share: Share = 0.1
    """The share of time in which the main thread of a worker was ready to run and got no CPU, per process."""
    throttled_periods_share: Share = 0.1
    """The share of periods in which a cgroup used up its CPU limit."""
    worker_cpu_share: Share = 0.8
    """If each data worker uses at least this many CPU seconds per second, the workers themselves are the limit."""
    stolen_share: Share = STOLEN_SHARE
    """How much the hypervisor took of the CPU time that was asked for on the CPUs of a run's ranks, as a share.
    The same as in `whyidle report`."""
    queued_share: Share = QUEUED_SHARE
    """The share of time in which the training thread of a rank was ready to run and got no CPU. The same as in `whyidle
    report`."""
    shaped_packets_per_second: Amount = 10.0
    """Packets that a queueing discipline held back or dropped to keep a rate (tc's overlimits)."""
    backlog_bytes: Amount = 65_536.0
    """Mean number of bytes that wait in the queueing discipline of an interface."""
    fuse_requests: Amount = 0.5
    """Mean number of requests that a FUSE file system has not answered yet."""
    open_network_files: Amount = 0.5
    """Mean number of files that a rank has open on network file systems while it reads."""

    # -- contradictions: the value from which on a counter contradicts a verdict
    idle_share: Share = 0.01
    """A link, a disk or a wait that takes less than this share of the time counts as idle."""
    idle_bytes_per_second: Amount = 100_000.0
    """Below this, what ranks read and write, or what interfaces receive, does not count as data from storage."""
    idle_cpus_share: Share = 0.5
    """A node has enough CPUs if at least this share of their time is idle."""
    gpu_busy_margin: Share = 0.1
    """By how much the busy share of a GPU and the idle share that its ranks report may sum to more than 1."""

    # -- shortages of CPU time: when one is named as the reason for a verdict
    explained_share: Share = EXPLAINED
    """A shortage of CPU time is named as the reason for a verdict if it can have caused at least this part of the
    verdict's time. The same as in `whyidle report`."""

    alerts: Thresholds = field(default_factory=Thresholds)
    """The thresholds of alerts."""

    def __post_init__(self) -> None:
        if not {self.window, self.long_window} <= set(self.windows):
            raise ValueError("window and long_window must be among windows")
        if seconds(self.long_window) < seconds(self.window):
            raise ValueError(f"long_window is {self.long_window}, and must not be shorter than window, {self.window}")
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
        """The selector of a metric of the agent. Raises KeyError for a metric that is not declared."""
        declared(metric)
        chosen = ", ".join(part for part in (matchers, self.selector) if part)
        return f"{metric}{{{chosen}}}" if chosen else metric

    def rate(self, metric: str, window: str, matchers: str = "") -> str:
        """The rate of a counter of the agent."""
        return f"rate({self.series(metric, matchers)}[{window}])"

    def increase(self, metric: str, window: str, matchers: str = "") -> str:
        """The increase of a counter of the agent."""
        return f"increase({self.series(metric, matchers)}[{window}])"

    @property
    def details_kept(self) -> str:
        """For how long to look back for what is recorded each details_interval. An instant query looks back 5m only."""
        return kept(self.details_interval)

    def within(self, window: str) -> str:
        """The range that holds the evaluations within a window, to look back at recorded series.

        It is shorter than the window by half an evaluation interval. Evaluations lie exactly on the edges of a window:
        Prometheus 2 includes both ends of a range, Prometheus 3 only one.
        """
        return milliseconds(1000 * seconds(window) - 500 * seconds(self.interval))

    def beyond(self, window: str) -> str:
        """The range that also holds the evaluation before a window: the last seconds of a run are recorded after it."""
        return milliseconds(1000 * seconds(window) + 500 * seconds(self.interval))

    def by(self, *labels: str) -> str:
        """A grouping that keeps clusters apart: `by (cluster, run)`."""
        return f"by ({', '.join((self.cluster_label, *labels))})"

    def on(self, *labels: str) -> str:
        """A matching within a cluster: `on (cluster, run)`."""
        return f"on ({', '.join((self.cluster_label, *labels))})"


def kept(interval: str) -> str:
    """For how long to look back for what is recorded each ``interval``, so that one evaluation may be missed."""
    return f"{2 * seconds(interval) + 60}s"


def declared(metric: str) -> None:
    """Raises KeyError unless the agent exports this metric."""
    if metric in METRIC:
        return
    for suffix in HISTOGRAM_SUFFIXES:
        base = metric.removesuffix(suffix)
        if base != metric and METRIC[base].type == "histogram":
            return
    raise KeyError(f"no metric {metric} is declared in agent/metrics")


DEFAULT = Config()
