"""One row for each cause and each phase. All other places take what they know of a cause or a phase from its row.

The order of both tables is part of the ledger's format: only append, and raise :data:`layout.VERSION`.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Place = Literal["before", "data", "work", "waits", "outside"]
"""Where in a step a cause is, for what-if: between steps, in the wait for the batch, in compute, in waits for other
ranks, or in no step."""
Resource = Literal["storage", "cpu", "host", "compute", "transfer", ""]
"""What makes this time shorter if it is faster. Empty: nothing that what-if knows."""


class Cause(NamedTuple):
    """Where a second of a device went."""

    name: str
    family: str
    place: Place
    faster: Resource
    shade: float
    """How bright it is in pictures, in relation to the colour of its family: see `shaded` in dashboards/contrast.py."""
    gpu_busy: bool
    """Whether the activity counters of a GPU count this time as busy. NCCL's kernels spin."""
    words: str
    """What a rank did in this time, after a number of seconds."""
    headline: str
    """The reason in a headline. It follows the name of a rank, or stands alone for the whole run."""
    measured: str
    """How it is measured, for the table of docs/causes.md, in Markdown."""
    anchor: str
    """The section of docs/causes.md that says more."""


CAUSE_ROWS: tuple[Cause, ...] = (
    Cause(
        *("compute", "compute", "work", "compute", 1.0, True),
        "computing",
        "compute takes longer than on the others",
        "from a batch's delivery to the end of the optimizer's step, without the time of other phases",
        "the-window",
    ),
    Cause(
        *("recompute", "lost", "work", "compute", 1.0, True),
        "repeating steps that an earlier attempt had finished",
        "steps are repeated that an earlier attempt had finished",
        "the same, while steps repeat what an earlier attempt of the run had finished",
        "the-window",
    ),
    Cause(
        *("data_read", "storage", "data", "storage", 1.0, False),
        "waiting for a worker that was blocked",
        "data workers are blocked",
        "the wait for a batch, minus the next three causes: its worker was blocked",
        "splitting-a-wait-for-data",
    ),
    Cause(
        *("data_cpu", "cpu", "data", "cpu", 1.0, False),
        "waiting for a worker that was on a CPU",
        "data workers are busy on the CPU",
        "… CPU time of the worker that has to deliver the batch (of its whole process, so helper threads count)",
        "splitting-a-wait-for-data",
    ),
    Cause(
        *("data_queue", "cpu", "data", "cpu", 0.6, False),
        "waiting for a worker that got no CPU",
        "data workers get no CPU",
        "… time that the worker was runnable without a CPU (schedstat): too few cores, or a cgroup quota",
        "splitting-a-wait-for-data",
    ),
    Cause(
        *("data_handoff", "host", "data", "", 1.25, False),
        "waiting for a batch that was ready but had not arrived",
        "batches are slow to reach the loop",
        "… CPU time of the training thread (and of the pinning thread) while it waits. If the batch was made before "
        "the wait: all of it but the CPU time and the queue of the worker, which makes the next one",
        "splitting-a-wait-for-data",
    ),
    Cause(
        *("network", "network", "waits", "transfer", 1.0, True),
        "in transfers that every rank had entered",
        "the transfers themselves take long",
        "the minimum of the waits in one collective over the ranks of its group: the transfer itself",
        "splitting-a-wait-in-a-collective",
    ),
    Cause(
        *("straggler", "straggler", "waits", "", 1.0, True),
        "waiting in collectives for a late rank",
        "ranks wait for a late rank",
        "… what this rank waited beyond that minimum: some rank had not entered",
        "splitting-a-wait-in-a-collective",
    ),
    Cause(
        *("collective", "communication", "waits", "", 1.0, True),
        "waiting in collectives that could not be split",
        "waits in collectives could not be split",
        "waits in collectives that could not be split, and a wait that is still open. It is never `network`, because "
        "this is not known",
        "splitting-a-wait-in-a-collective",
    ),
    Cause(
        *("collective_queue", "cpu", "waits", "cpu", 0.35, False),
        "waiting in collectives while communication threads got no CPU",
        "the ranks' communication threads get no CPU",
        "on a CPU rank, waits in collectives while the rank's own communication threads are runnable and get no CPU",
        "splitting-a-wait-in-a-collective",
    ),
    Cause(
        *("pipeline", "pipeline", "waits", "", 1.0, True),
        "waiting for another pipeline stage",
        "pipeline stages wait for one another",
        "waits for a send or receive of another pipeline stage: the bubble of the schedule, a slow stage, or a slow "
        "link that delays other stages",
        "splitting-a-wait-in-a-collective",
    ),
    Cause(
        *("checkpoint_write", "storage", "before", "storage", 0.6, False),
        "blocked in a save",
        "saves block the loop",
        "the loop is blocked in a save, also in one that a framework makes, or in an fsync",
        "",
    ),
    Cause(
        *("checkpoint_cpu", "cpu", "before", "cpu", 1.3, False),
        "serialising or copying in a save",
        "saves serialise or copy on the CPU",
        "the training thread is on a CPU, or queues for one, in a save, or a thread computes that it has started there",
        "",
    ),
    Cause(
        *("checkpoint_read", "storage", "before", "storage", 1.3, False),
        "restoring",
        "restores block the loop",
        "the loop restores a checkpoint",
        "",
    ),
    Cause(
        *("host", "host", "before", "host", 1.0, False),
        "in the loop's own Python",
        "the loop runs its own Python between phases",
        "from the end of the optimizer's step to the next request for a batch",
        "",
    ),
    Cause(
        *("host_gc", "host", "before", "host", 1.5, False),
        "in garbage collection",
        "garbage collection pauses the loop",
        "garbage collections, except those of the youngest generation",
        "",
    ),
    Cause(
        *("host_compile", "host", "before", "host", 0.6, False),
        "compiling",
        "compilation stops the loop",
        "compilations by Dynamo",
        "",
    ),
    Cause(
        *("host_blocked", "host", "work", "host", 0.35, False),
        "blocked in the loop's own code",
        "the loop's own code is blocked outside any known phase",
        "the loop's own code is blocked, neither on a CPU nor queueing for one, in no phase that a hook sees: a "
        "hand-written loader, a slow logger",
        "",
    ),
    Cause(
        *("startup", "host", "before", "", 1.75, False),
        "starting up",
        "a rank is starting up",
        "from the start of the process to the first step: the first request for a batch, or the first backward pass",
        "the-window",
    ),
    Cause(
        *("unattributed", "unattributed", "work", "", 1.0, False),
        "that nothing explains",
        "nothing that was measured explains it",
        "time that no other cause explains: on an accelerator, boundaries that could not be measured",
        "",
    ),
    Cause(
        *("data_start", "host", "before", "host", 0.8, False),
        "starting and ending data workers",
        "the loop waits for data workers to start",
        "the loop starts data workers, waits until they have exited, or waits for the first batch of a worker that has "
        "not taken its first request yet",
        "splitting-a-wait-for-data",
    ),
    Cause(
        *("evaluation", "compute", "work", "compute", 1.3, True),
        "evaluating",
        "evaluations take longer than on the others",
        "the device runs the trained model for what nobody learns from: validation, tests, samples to look at",
        "",
    ),
    Cause(
        *("rollout", "compute", "work", "compute", 0.6, True),
        "in rollouts",
        "rollouts take longer than on the others",
        "the device makes what is then learned from: generation, environments, reward models",
        "",
    ),
    Cause(
        *("logging", "host", "before", "host", 1.11, False),
        "in loggers, trackers and callbacks",
        "loggers or callbacks block the loop",
        "the loop is in a logger, a tracker or a callback",
        "logging",
    ),
    Cause(
        *("shutdown", "host", "outside", "", 0.47, False),
        "ending",
        "a rank is ending",
        "after the last step of the process: a final test, an upload, the end of a logger",
        "the-window",
    ),
    Cause(
        *("between", "host", "outside", "", 1.37, False),
        "between two trainings",
        "a rank is between two trainings",
        "between two trainings in one process",
        "the-window",
    ),
    Cause(
        *("interactive", "host", "outside", "", 0.2, False),
        "waiting for the user of a notebook",
        "a notebook waits for its user",
        "a notebook waits for its user between two cells; in Prometheus, bills have it in the family `interactive`",
        "the-window",
    ),
    Cause(
        *("suspended", "lost", "work", "", 0.6, False),
        "stopped, frozen or paused",
        "the process was not allowed to run: somebody stopped, froze or paused it",
        "nothing of the process was run: stopped by a signal, frozen, or paused with its container or VM",
        "suspensions",
    ),
    Cause(
        *("compute_queue", "cpu", "work", "cpu", 0.8, False),
        "in the loop's own code without a CPU",
        "the training threads get no CPU",
        "on a CPU rank, the training thread is runnable without a CPU (schedstat) in the loop's own code, outside of "
        "waits: other threads use its CPUs, or a quota ends its time",
        "cpu-time-that-a-rank-does-not-get",
    ),
    Cause(
        *("host_allocator", "host", "before", "host", 0.1, False),
        "giving cached device memory back",
        "torch.cuda.empty_cache() stops the loop",
        "the device is idle in `torch.cuda.empty_cache()`, which waits for it and then gives cached memory back",
        "several-devices-in-one-process",
    ),
)


class Phase(NamedTuple):
    """What the loop of a rank is doing."""

    name: str
    cause: str
    """The cause that its time counts under, unless a finer split is known when the phase ends."""
    user: bool
    """Whether ``whyidle.phase(...)`` accepts it."""
    own_code: bool
    """Whether the loop's own code runs in it, so that the line is worth a look."""
    keeps: str
    """The family that keeps a rank in this phase from entering a collective."""
    patience: float
    """For how many seconds a rank may stay in it before it counts as hung, if nothing is known about its process."""
    does: str
    """What a rank in it does, after its name."""
    colour: tuple[str, float] | None
    """Family and shade, if they are not those of its cause. An open wait for data has no cause yet."""


PHASE_ROWS: tuple[Phase, ...] = (
    Phase("startup", "startup", False, False, "straggler", 600.0, "has not begun its first step", None),
    Phase("compute", "compute", True, True, "straggler", 60.0, "is in compute", None),
    Phase("eval", "evaluation", True, True, "straggler", 600.0, "evaluates", None),
    Phase("host", "host", True, True, "host", 60.0, "runs its own code between two steps", None),
    Phase("data", "data_handoff", True, False, "unattributed", 120.0, "waits for a batch", ("storage", 1.0)),
    Phase("data_start", "data_start", False, False, "host", 60.0, "starts its data workers", None),
    Phase("collective", "collective", False, False, "straggler", 60.0, "waits in a collective", None),
    Phase("checkpoint", "checkpoint_write", True, False, "storage", 600.0, "is in a save", None),
    Phase("restore", "checkpoint_read", True, False, "storage", 600.0, "restores a checkpoint", None),
    Phase("gc", "host_gc", False, False, "host", 60.0, "collects garbage", ("straggler", 1.0)),
    Phase("compile", "host_compile", False, False, "host", 600.0, "compiles", ("unattributed", 1.0)),
    Phase("rollout", "rollout", True, True, "straggler", 60.0, "runs a rollout", None),
    Phase("logging", "logging", True, True, "host", 60.0, "is in a logger or a callback", None),
    Phase("shutdown", "shutdown", False, True, "host", 600.0, "is ending", None),
    Phase("between", "between", False, True, "host", 600.0, "is between two trainings", None),
    Phase("interactive", "interactive", False, False, "host", 600.0, "waits for the user of its notebook", None),
    Phase("allocator", "host_allocator", False, False, "host", 60.0, "gives cached device memory back", None),
)
