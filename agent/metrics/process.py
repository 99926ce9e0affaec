"""The metrics of the collector `process`."""

from __future__ import annotations

from .metric import Metric
from .ranks import RANK

_ROLE = (*RANK, "role")
_STAT, _IO, _SCHEDSTAT = "<pid>/stat", "<pid>/io", "<pid>/schedstat"

CPU = Metric(
    "whyidle_process_cpu_seconds_total",
    "counter",
    "seconds",
    (*_ROLE, "mode"),
    "CPU time of a rank's process (role main) and of its descendants (role worker), those that ended included. If "
    "the value of a main process grows by a second each second, it keeps one CPU busy.",
    _STAT,
)
RUNQUEUE = Metric(
    "whyidle_process_runqueue_seconds_total",
    "counter",
    "seconds",
    _ROLE,
    "Time for which main threads were ready to run and had no CPU, summed over the processes of a role. It grows where "
    "there are more threads than CPUs, or where the cgroup is throttled.",
    _SCHEDSTAT,
    per=1_000_000_000,
)
BLOCKED = Metric(
    "whyidle_process_blocked_seconds_total",
    "counter",
    "seconds",
    _ROLE,
    "Time for which main threads neither ran nor were ready to run: wall time minus CPU and run queue, summed over "
    "the processes of a role. They waited for storage, network, a GPU, a lock, or for work.",
    _SCHEDSTAT,
    per=1_000_000_000,
)
BLOCK_IO = Metric(
    "whyidle_process_block_io_seconds_total",
    "counter",
    "seconds",
    _ROLE,
    "Time for which main threads waited for a block device. Only where kernel.task_delayacct=1 was set before the "
    "processes started; absent elsewhere and while it is 0.",
    _STAT,
)
STATE_SAMPLES = Metric(
    "whyidle_process_state_samples_total",
    "counter",
    "samples",
    _ROLE,
    "How often the state of a main thread was sampled: once per process and scrape.",
    _STAT,
)
UNINTERRUPTIBLE = Metric(
    "whyidle_process_uninterruptible_samples_total",
    "counter",
    "samples",
    _ROLE,
    "How often a main thread was found in state D, uninterruptible: it usually waits for storage. Divide by "
    "whyidle_process_state_samples_total to estimate the share of time.",
    _STAT,
)
SYSCALL_READ = Metric(
    "whyidle_process_syscall_read_bytes_total",
    "counter",
    "bytes",
    RANK,
    "Bytes that a rank and its descendants got from read calls, from any source: page cache, storage, FUSE, "
    "pipes. Reads through mmap do not count.",
    f"{_IO}: rchar",
)
SYSCALL_WRITE = Metric(
    "whyidle_process_syscall_write_bytes_total",
    "counter",
    "bytes",
    RANK,
    "Bytes that a rank and its descendants passed to write calls, to any target: page cache, storage, FUSE, pipes.",
    f"{_IO}: wchar",
)
STORAGE_READ = Metric(
    "whyidle_process_storage_read_bytes_total",
    "counter",
    "bytes",
    RANK,
    "Bytes that were fetched from storage for a rank and its descendants, page faults of mmap included. Reads "
    "from FUSE and most object stores are not counted.",
    f"{_IO}: read_bytes",
)
STORAGE_WRITE = Metric(
    "whyidle_process_storage_write_bytes_total",
    "counter",
    "bytes",
    RANK,
    "Bytes of page cache that a rank and its descendants made dirty, so that they will be written to storage.",
    f"{_IO}: write_bytes",
)
MAJOR_FAULTS = Metric(
    "whyidle_process_major_faults_total",
    "counter",
    "faults",
    RANK,
    "Page faults of a rank and its descendants that had to wait for storage. They grow where data is read through mmap "
    "or memory is swapped.",
    _STAT,
)
RESIDENT = Metric(
    "whyidle_process_resident_bytes",
    "gauge",
    "bytes",
    _ROLE,
    "Resident memory, summed over the processes of a role. Pages that forked workers share count once for each worker.",
    _STAT,
)
THREADS = Metric(
    "whyidle_process_threads",
    "gauge",
    "threads",
    _ROLE,
    "Threads, summed over the processes of a role. If there are many more than CPUs, they wait for one another.",
    _STAT,
)
WORKERS = Metric(
    "whyidle_process_workers",
    "gauge",
    "processes",
    RANK,
    "Descendants of a rank's process: data loader workers and what they started. At most 256 are counted.",
    "<pid>/task/<tid>/children",
)

IO = (SYSCALL_READ, SYSCALL_WRITE, STORAGE_READ, STORAGE_WRITE)
"""In the order of :class:`parsers.pidio.PidIo`."""
METRICS: tuple[Metric, ...] = (
    CPU,
    RUNQUEUE,
    BLOCKED,
    BLOCK_IO,
    STATE_SAMPLES,
    UNINTERRUPTIBLE,
    *IO,
    MAJOR_FAULTS,
    RESIDENT,
    THREADS,
    WORKERS,
)
