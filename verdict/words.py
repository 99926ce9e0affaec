"""The words for causes, and for what makes a rank late, in headlines and evidence."""

from __future__ import annotations

from . import shortage, workers

WORDS: dict[str, str] = {
    "compute": "computing",
    "recompute": "repeating steps that an earlier attempt had finished",
    "data_read": "waiting for a worker that was blocked",
    "data_cpu": "waiting for a worker that was on a CPU",
    "data_queue": "waiting for a worker that got no CPU",
    "data_handoff": "waiting for a batch that was ready but had not arrived",
    "network": "in transfers that every rank had entered",
    "straggler": "waiting in collectives for a late rank",
    "collective": "waiting in collectives that could not be split",
    "collective_queue": "waiting in collectives while communication threads got no CPU",
    "pipeline": "waiting for another pipeline stage",
    "checkpoint_write": "blocked in a save",
    "checkpoint_cpu": "serialising or copying in a save",
    "checkpoint_read": "restoring",
    "host": "in the loop's own Python",
    "host_gc": "in garbage collection",
    "host_compile": "compiling",
    "host_blocked": "blocked in the loop's own code",
    "startup": "starting up",
    "unattributed": "that nothing explains",
    "data_start": "starting and ending data workers",
}
"""Cause -> what a rank did in that time."""


SAID_OF_CAUSES: dict[str, str] = {
    "compute": "compute takes longer than on the others",
    "recompute": "steps are repeated that an earlier attempt had finished",
    "data_read": workers.BLOCKED,
    "data_cpu": "data workers are busy on the CPU",
    "data_queue": "data workers get no CPU",
    "data_handoff": "batches are slow to reach the loop",
    "network": shortage.TRANSFERS,
    "straggler": "ranks wait for a late rank",
    "collective": "waits in collectives could not be split",
    "collective_queue": "the ranks' communication threads get no CPU",
    "pipeline": "pipeline stages wait for one another",
    "checkpoint_write": "saves block the loop",
    "checkpoint_cpu": "saves serialise or copy on the CPU",
    "checkpoint_read": "restores block the loop",
    "host": "the loop runs its own Python between phases",
    "host_gc": "garbage collection pauses the loop",
    "host_compile": "compilation stops the loop",
    "host_blocked": shortage.BLOCKED,
    "startup": "a rank is starting up",
    "unattributed": "nothing that was measured explains it",
    "data_start": "the loop waits for data workers to start",
}
"""Cause -> the reason in a headline. It follows the name of a rank, or stands alone for the whole run."""


WORK: dict[str, dict[str, str]] = {
    "storage": {"checkpoint_write": "its checkpoints", "checkpoint_read": "restoring"},
    "cpu": {"checkpoint_cpu": "its checkpoints"},
    "straggler": {
        "evaluation": "its evaluation",
        "rollout": "its rollouts",
        "not_learned": "its generation or evaluation",
    },
}
"""Family that made a rank late -> {part of its own time: what to call it}.

The name is used instead of the family's if the part is at least MOST of the rank's excess over the others in that
family, and of the average wait of another rank for it.
"""


UNSEEN = ", but nobody looked whether the GPU had work in compute"


LATE_AFTERWARDS = "the others waited for it after their last steps"


LAUNCHES = "the GPU runs out of work while the loop computes: the host launches too late"


SAID_OF_WORK: dict[str, str] = {
    "its evaluation": "it evaluates while others wait",
    "its rollouts": "its rollouts take longer than on the others",
    "its generation or evaluation": (
        "its generation or evaluation (compute without gradients) takes longer than on the others"
    ),
}
"""Name in WORK of a part of compute -> the reason in a headline."""
