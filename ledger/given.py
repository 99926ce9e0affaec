"""What a rank was given and what it uses: CPUs, memory, threads. Its words and strings in the ledger."""

from __future__ import annotations

MEMORY_OF: tuple[str, ...] = ("", "node", "group", "above")
"""Values of `memory_of`, by index: whose memory it is. That is the node, the rank's control group or a group above it:
the one that is nearest to its limit. Empty: not known."""

TRAIL = 12
"""How many values of `memory_used_bytes` the rank keeps of its whole life, at about equal distances."""

QUOTA_ABOVE, QUOTA_INSIDE = 1, 2
"""The quota is that of a group above the rank's own one. It is that of a group below the rank's container, or below the
outermost group that is visible."""

GIVEN_STRINGS: dict[str, int] = {
    "cpu_list": 64,  # the CPUs that the training thread may use, as `0-3,8` or `0-62:1/2`; of a long one its end
    "worker_cpu_list": 64,  # those that its data workers may use together
    "launcher": 16,  # what has set the limits, as far as its environment tells: one of LAUNCHERS
}
CONTAINERS: tuple[str, ...] = ("kubernetes", "docker")
LAUNCHERS: tuple[str, ...] = ("slurm", *CONTAINERS)
GIVEN_WORDS: dict[str, int] = {
    # The working set: without file cache, which the kernel takes back when memory is short.
    "memory_used_bytes": 1,
    "memory_limit_bytes": 1,
    "memory_peak_bytes": 1,  # the largest `memory_used_bytes` that was seen of this group, or node
    "memory_at_ns": 1,  # CLOCK_MONOTONIC when these were read; 0: never
    "memory_of": 1,  # index into MEMORY_OF
    "memory_trail_bytes": TRAIL,  # `memory_used_bytes` from the rank's start, of the group or node of `memory_of`
    "memory_trail_ns": TRAIL,  # when these were read, since start_ns; 0: not used
    "memory_group_id": 1,  # the inode of the rank's own control group, which all containers see
    # How many processes of that group the kernel had killed because memory ran out, + 1; 0: not known.
    "oom_kills": 1,
    "oom_kills_before": 1,  # the same at the first look
    "refault_bytes": 1,  # file cache of that group that was dropped and had to be read again, since window_ns
    "shm_bytes": 1,  # the size of /dev/shm
    "shm_used_bytes": 1,
    "cpus_node": 1,  # of the node; 0: nothing is known of CPUs
    "cpus_at_start": 1,  # those that the training thread was allowed when whyidle was loaded
    "cpus_of_group": 1,  # those that its control group allows; 0: not known
    "cpus_allowed": 1,  # those that it is allowed now
    "cpus_changed_ns": 1,  # CLOCK_MONOTONIC when that was last seen to change; 0: never
    "worker_cpus": 1,  # how many its data workers are allowed together; 0: there is no worker
    "worker_threads": 1,  # the most threads of a data worker
    # The least CPU quota of its control group and those above it.
    "cpu_quota_milli": 1,  # thousandths of a CPU; 0: none
    "cpu_quota_of": 1,  # whose quota it is: QUOTA_ABOVE and QUOTA_INSIDE, added
    "cpu_quota_id": 1,  # the same for all ranks of a node that share the quota
    "cpu_periods": 1,  # since window_ns
    "cpu_throttled_periods": 1,
    "cpu_throttled_ns": 1,
    "given_ns": 1,  # the time for which the next two were counted; it begins shortly after window_ns
    "used_cpu_ns": 1,  # CPU time of the rank, its data workers, and what else it has started that is not a rank
    "worker_cpu_ns": 1,  # part of it: without the rank's own process
    "launcher_cpus": 1,  # the CPUs that the launcher says it has given to the rank; 0: it does not say
    "threads_intra": 1,  # of torch, in the first step; 0: not known
    "threads_inter": 1,
    "threads_omp": 1,  # OMP_NUM_THREADS; 0: not set
}
