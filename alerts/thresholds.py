"""From where on an alert fires. Shares and ratios are from 0 to 1, times in seconds, unless a name says otherwise."""

from __future__ import annotations

from dataclasses import dataclass

from ..verdict.verdict import VERDICT_SHARE
from .kinds import Amount, Duration, Multiple, Pattern, Share


@dataclass(frozen=True)
class Thresholds:
    """The thresholds of all alerts, by topic."""

    interval: Duration = "1m"
    """How often alerts are evaluated that are critical, or about runs."""
    patient_interval: Duration = "4m"
    """How often the others are, which look at every counter of thousands of GPUs and ports and mostly wait a quarter of
    an hour before they fire."""

    # -- where the time of a run goes
    storage_share: Share = VERDICT_SHARE
    """A run's time that its ranks lost to storage, waits for ranks that were late by storage included."""
    network_share: Share = 0.2
    """... to transfers. Higher than the others: some exposed communication is the price of many GPUs."""
    cpu_share: Share = VERDICT_SHARE
    """... to data workers that computed or got no CPU."""
    host_share: Share = VERDICT_SHARE
    """... to the loop's own Python, garbage collection and compilation."""
    straggler_share: Share = VERDICT_SHARE
    """... to waits for ranks that computed for longer than the others."""
    pipeline_share: Share = 0.2
    """... to waits for other pipeline stages. Higher than most: a schedule has a bubble that nobody can avoid."""
    communication_share: Share = 0.2
    """... to waits in collectives that could not be split. As high as for the network, which a part of them may be."""
    main_share: Share = 0.5
    """A family is worth an alert only if it has this share of what the run's worst family takes: first things first."""
    unattributed_share: Share = 0.01
    """A run's time that nothing explains."""
    recompute_share: Share = 0.05
    """A run's time of the last hour that went to steps which an earlier attempt had already done."""
    goodput: Share = 0.5
    """A run whose goodput of the last hour is lower loses most of its time, to however many families."""
    idle_compute_share: Share = 0.05
    """A live run that computes for less than this share of the trailing window is idle, whatever its long mean is."""
    starting_share: Share = 0.05
    """A run that spends more than this share of the trailing window on start-up is starting."""
    notebook_seconds: Amount = 60.0
    """A single process that has been in its own Python for longer is taken for a notebook, in which somebody thinks."""
    late_rank_share: Share = 0.05
    """A run's time that its ranks waited for one of them."""

    # -- collectives and steps
    hang_seconds: Amount = 300.0
    """A wait in a collective. Half of torch's default timeout for NCCL, after which the job is torn down."""
    compute_hang_seconds: Amount = 900.0
    """A single stretch of compute without a batch, a collective or a step."""

    startup_for: Duration = "30m"
    """How long a run may take to its first step."""

    # -- checkpoints
    checkpoint_slowdown: Multiple = 2.0
    """Seconds per checkpoint in the last hour, as a multiple of the run's mean before."""
    checkpoint_seconds: Amount = 10.0
    """Seconds per checkpoint by which it must have got slower too, so that noise on short ones is no alert."""
    step_slowdown: Multiple = 1.5
    """The median step of the last hour, as a multiple of what it was before."""
    step_reference: Duration = "1d"
    """What the median step before is taken over."""
    checkpoint_reference: Duration = "1d"
    """What the mean before is taken over."""

    # -- the agent
    agent_job: Pattern = ".*whyidle.*"
    """Regular expression of the scrape jobs of the agents, for what only Prometheus itself can know of them."""
    read_errors_per_second: Amount = 0.05
    """Values that cannot be read, beyond those of the day before. One value at every scrape of 15 s is 0.067."""

    # -- GPUs
    gpu_throttled_share: Share = 0.1
    """Time with clocks held down by heat or by the power supply. A GPU at its power cap is none of these."""
    service_window: Duration = "1d"
    """For how long a GPU that needs a technician is said to after its last XID: no counter tells that one came."""
    nvlink_errors: Amount = 10.0
    """Flits or data with a wrong checksum, and links that had to recover, in the slow window."""

    gpu_celsius: Amount = 87.0
    """Of the chip. Most begin to lower their clocks some degrees above."""
    gpu_memory_celsius: Amount = 95.0
    """Of its memory."""

    # -- what somebody has
    allocated_busy_share: Share = 0.01
    """A GPU that a pod or a process has and that is busy for less does nothing."""
    allocated_for: Duration = "1h"
    """For how long it must do nothing."""
    crash_loop_starts: Amount = 3.0
    """Starts of a run within an hour; more is an alert."""

    # -- network
    past: tuple[Duration, ...] = ("5m", "1h", "1d", "1w")
    """How long ago to look when a rate or a limit is compared with its own past. Instants rather than a maximum over
    the time, which would read millions of samples at each evaluation."""
    remember_seconds: Amount = 604_800.0
    """For how long it is remembered that a link, device or file system was sound, a week: what never was is no alert,
    and what was taken out on purpose stops alerting then."""
    boot_seconds: Amount = 900.0
    """For how long after a node's boot its links may come up."""
    link_errors_per_second: Amount = 0.1
    """Errors on a link, or bad packets at an interface."""
    link_flaps: Amount = 2.0
    """Times within an hour that a link went down or through error recovery; more is an alert."""
    congestion_share: Share = 0.01
    """Packets that were marked, or notified, as having met congestion."""
    discards_per_second: Amount = 1.0
    """Packets that a port should send and throws away."""
    transmit_wait_factor: Multiple = 10.0
    """Ticks without credit per byte sent, as a multiple of the middle port of the cluster that sends."""
    transmit_wait_bytes_per_second: Amount = 1_000_000.0
    """A port that sends less is not judged by its waits, nor are others compared with it."""
    pause_share: Share = 0.05
    """Time in which pause frames held up the sending."""
    pause_frames_per_second: Amount = 1000.0
    """The same where the adapter counts no time."""
    tcp_retransmit_share: Share = 0.01
    """Segments sent again, of all sent."""
    tcp_segments_per_second: Amount = 100.0
    """Fewer are not enough to judge retransmissions by."""

    # -- storage
    nfs_seconds: Amount = 0.1
    """Mean time of a read or write, its queueing in this client included."""
    nfs_requests_per_second: Amount = 1.0
    """Fewer are not enough to judge the latency by."""
    free_space_share: Share = 0.05
    """Free space where ranks write."""
    filling_share: Share = 0.3
    """How full is not worth a forecast: with more free space than this share nothing is said."""
    fill_hours: Amount = 4.0
    """A file system that will be full sooner, at the last hour's pace."""
    shared_fstypes: Pattern = "nfs.*|lustre|beegfs|ceph|gpfs|glusterfs|wekafs|fuse.*|9p|cifs|smb3"
    """Regular expression of file systems that many nodes share: one alert for all of them."""

    # -- clocks
    clock_skew: Amount = 1.0
    """A node's clock against Prometheus's."""
