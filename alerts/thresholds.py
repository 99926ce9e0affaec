"""The thresholds of alerts. Shares and ratios are from 0 to 1 and times in seconds, unless a name says otherwise."""

from __future__ import annotations

from dataclasses import dataclass

from ..verdict.case import VERDICT_SHARE
from .kinds import Amount, Duration, Multiple, Pattern, Share


@dataclass(frozen=True)
class Thresholds:
    """The thresholds of all alerts, by topic."""

    interval: Duration = "1m"
    """How often alerts are evaluated that are critical or about runs."""
    patient_interval: Duration = "4m"
    """How often the other alerts are evaluated. They read every counter of thousands of GPUs and ports, and most of
    them wait 15 minutes before they fire."""

    # -- where the time of a run goes
    storage_share: Share = VERDICT_SHARE
    """The share of a run's time that is lost to storage. Waits for ranks that storage made late are included."""
    network_share: Share = 0.2
    """The share of a run's time that is lost to transfers. Higher than for other families: with many GPUs, some exposed
    communication is normal."""
    cpu_share: Share = VERDICT_SHARE
    """The share of a run's time that is lost to data workers that computed or got no CPU."""
    host_share: Share = VERDICT_SHARE
    """The share of a run's time that is lost to the Python code of the loop, garbage collection and compilation."""
    straggler_share: Share = VERDICT_SHARE
    """The share of a run's time that is lost to waits for ranks that computed for longer than the others."""
    pipeline_share: Share = 0.2
    """The share of a run's time that is lost to waits for other pipeline stages. Higher than for most families: the
    schedule of a pipeline has a bubble."""
    communication_share: Share = 0.2
    """The share of a run's time that is lost to waits in collectives that could not be split. As high as for the
    network, since a part of these waits may be transfers."""
    main_share: Share = 0.5
    """A family gets an alert only if it takes at least this share of what the run's worst family takes. The text of an
    alert names mounts and links by the same share of the worst mount and the busiest link."""
    unattributed_share: Share = 0.01
    """The share of a run's time that has no known cause."""
    recompute_share: Share = 0.05
    """The share of a run's time in the last hour that went to steps that an earlier attempt had already done."""
    goodput: Share = 0.5
    """A run alerts if its goodput of the last hour is lower than this, even if no single family takes much."""
    idle_compute_share: Share = 0.05
    """A live run is idle if it computes for less than this share of the window."""
    starting_share: Share = 0.05
    """A run is starting if start-up takes more than this share of the window."""
    notebook_seconds: Amount = 60.0
    """A run of one process counts as a notebook, which a person uses, if it has been in its own Python for longer than
    this. Less than open_seconds has no effect."""
    late_rank_share: Share = 0.05
    """The share of a run's time for which its ranks waited for one late rank."""

    # -- collectives and steps
    hang_seconds: Amount = 300.0
    """Seconds of a wait in a collective. The default is half of torch's default timeout for NCCL, which ends the
    job."""
    compute_hang_seconds: Amount = 900.0
    """Seconds of compute without a batch, a collective or a step."""

    startup_for: Duration = "30m"
    """How long a run may take until its first step."""

    # -- checkpoints
    checkpoint_slowdown: Multiple = 2.0
    """Seconds per checkpoint in the last hour, as a multiple of the run's earlier mean."""
    checkpoint_seconds: Amount = 10.0
    """Seconds by which a checkpoint must also have got slower, so that noise on short checkpoints is not an alert."""
    step_slowdown: Multiple = 1.5
    """The median step of the last hour, as a multiple of the earlier median."""
    step_reference: Duration = "1d"
    """The time range of the earlier median step."""
    checkpoint_reference: Duration = "1d"
    """The time range of the earlier mean of checkpoints."""

    # -- the agent
    agent_job: Pattern = ".*whyidle.*"
    """Regular expression for the scrape jobs of the agents. It is used on series that Prometheus itself makes, such as
    `up`."""
    read_errors_per_second: Amount = 0.05
    """Values that cannot be read, beyond the rate of a day ago. One value at every scrape of 15 s is 0.067."""

    # -- GPUs
    gpu_throttled_share: Share = 0.1
    """The share of time in which heat or the power supply holds clocks down. A GPU at its power cap does not count."""
    service_window: Duration = "1d"
    """For how long after its last XID a GPU that needs a technician keeps alerting. No counter shows that a technician
    has come."""
    nvlink_errors: Amount = 10.0
    """Flits or data with a wrong checksum, and links that had to recover, in the slow window."""

    gpu_celsius: Amount = 87.0
    """Temperature of the chip. Most GPUs lower their clocks from some degrees above this on."""
    gpu_memory_celsius: Amount = 95.0
    """Temperature of the GPU memory."""

    # -- allocation
    allocated_busy_share: Share = 0.01
    """A GPU that a pod or a process holds is idle if it is busy for less than this share of the time."""
    allocated_for: Duration = "1h"
    """For how long an allocated GPU must be idle."""
    crash_loop_starts: Amount = 3.0
    """Starts of a run within an hour. More is an alert."""

    # -- network
    past: tuple[Duration, ...] = ("5m", "1h", "1d", "1w")
    """How long ago to look when a rate or a limit is compared with its own past. Single moments, because a maximum over
    the whole time would read millions of samples at each evaluation."""
    remember_seconds: Amount = 604_800.0
    """For how long whyidle remembers that a link, device or file system worked: a week. One that never worked is not an
    alert, and one that was removed on purpose stops alerting after this time."""
    boot_seconds: Amount = 900.0
    """For how long after the boot of a node its links may come up."""
    link_errors_per_second: Amount = 0.1
    """Errors on a link, or bad packets at an interface."""
    link_flaps: Amount = 2.0
    """How often a link went down or through error recovery within an hour. More is an alert."""
    congestion_share: Share = 0.01
    """The share of packets that were marked because they met congestion, or that caused a notification."""
    discards_per_second: Amount = 1.0
    """Packets that a port discards instead of sending them."""
    transmit_wait_factor: Multiple = 10.0
    """Ticks without credit per byte sent, as a multiple of the median of all ports of the cluster that send."""
    transmit_wait_bytes_per_second: Amount = 1_000_000.0
    """A port that sends less is not judged by its waits, and is not part of that median."""
    pause_share: Share = 0.05
    """The share of time in which pause frames held up sending."""
    pause_frames_per_second: Amount = 1000.0
    """Pause frames, for adapters that count frames and not time."""
    tcp_retransmit_share: Share = 0.01
    """TCP segments that were sent again, as a share of all sent."""
    tcp_segments_per_second: Amount = 100.0
    """A node that sends fewer segments is not judged by its retransmissions."""

    # -- storage
    nfs_seconds: Amount = 0.1
    """Mean time of a read or write, queueing in this client included."""
    nfs_requests_per_second: Amount = 1.0
    """A mount with fewer requests is not judged by its latency."""
    free_space_share: Share = 0.05
    """The share of free space below which a file system that ranks write to alerts."""
    filling_share: Share = 0.3
    """If a larger share of the space is free, it is not forecast when the file system will be full."""
    fill_hours: Amount = 4.0
    """A file system alerts if it will be full within this number of hours at the pace of the last hour."""
    shared_fstypes: Pattern = "nfs.*|lustre|beegfs|ceph|gpfs|glusterfs|wekafs|fuse.*|9p|cifs|smb3"
    """Regular expression for the types of file systems that nodes share. Such a file system gets one alert for all
    nodes."""

    # -- placement
    other_process_share: Share = 0.05
    """The share of a GPU that a process uses which belongs to no rank. The alert on a late rank then names it."""
    frequency_share: Share = 0.9
    """The share of their frequency to which CPUs are limited. The alert on time lost to the loop then names them."""
    far_share: Share = 0.9
    """The share of samples that found a rank at another socket than its GPU or its adapter."""

    # -- clocks
    clock_skew: Amount = 1.0
    """Seconds by which a node's clock may differ from that of Prometheus."""
