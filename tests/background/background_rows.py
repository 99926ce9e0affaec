"""Work beside a training, and what whyidle has to say about it. Each case has a healthy twin, without the work."""

from __future__ import annotations

from dataclasses import dataclass

WITHIN = 0.03
"""By how much of the run's time a cost may be wrong."""


@dataclass(frozen=True)
class Case:
    name: str
    what: str
    job: tuple[str, ...] = ()
    """Arguments of scripts/steps.py. `{disk}` is a slow disk."""
    injected: tuple[str, ...] = ()
    """Arguments of scripts/injector.py, which works as another process of the node."""
    kinds: tuple[str, ...] = ()
    """What has to be named. Empty: nothing costs anything."""
    parts: tuple[str, ...] = ()
    """The part of a step that takes longer. Empty: any."""
    disk: int = 0
    """Bytes a second of a disk with files for the loop."""
    mbit: int = 0
    """Of the link between two ranks."""
    may_be_small: bool = False
    """The cost may be too small to be named."""


SLOW_DISK, SLOW_LINK = 12 << 20, 200
_COPIES = ("--memory", "256", "--work", "0.002")
_READS = ("--reads", "{disk}", "--work", "0.005")
_EXCHANGES = ("--million", "0.5", "--work", "0.01", "--seconds", "100")

CASES: tuple[Case, ...] = (
    Case(
        "lock",
        "a thread computes in Python, and holds its lock",
        ("--beside", "lock"),
        kinds=("thread",),
        parts=("lock", "host", "queue"),
    ),
    Case(
        "save",
        "asynchronous saves of 3,000 small tensors (`dcp.async_save`, in a thread)",
        ("--beside", "save"),
        kinds=("save",),
        parts=("lock", "host", "queue", ""),
    ),
    Case(
        "save_in_a_process",
        "the same saves, written by another process",
        ("--beside", "save", "--saver", "process"),
        kinds=("save",),
        may_be_small=True,
    ),
    Case(
        "copy_in_a_thread",
        "a thread copies large arrays, without Python's lock; the loop also needs the memory",
        ("--beside", "copy", *_COPIES),
        kinds=("thread",),
        parts=("compute", "queue"),
        may_be_small=True,
    ),
    Case(
        "copy_in_a_neighbour",
        "the same in another process of the node",
        _COPIES,
        ("--copy", "256"),
        kinds=("neighbour",),
        parts=("compute", "queue"),
        may_be_small=True,
    ),
    Case(
        "child",
        "a process that the rank has started computes on both cores",
        ("--beside", "child"),
        kinds=("process",),
        parts=("queue", "compute"),
    ),
    Case(
        "neighbour",
        "another process of the node computes on both cores",
        (),
        ("--spin", "2"),
        kinds=("neighbour",),
        parts=("queue", "compute"),
    ),
    Case(
        "disk",
        "another process writes with fsync to the disk of 12 MB/s from which the loop reads",
        _READS,
        ("--write", "{disk}"),
        kinds=("disk",),
        parts=("storage", "data", "queue"),
        disk=SLOW_DISK,
    ),
    Case(
        "link",
        "another transfer on the link of 200 Mbit/s between two ranks",
        _EXCHANGES,
        ("--send", "{peer}", "--on", "4", "--off", "8"),
        kinds=("link",),
        parts=("waits",),
        mbit=SLOW_LINK,
    ),
    *(
        Case(f"healthy_{number}", what, job, disk=disk, mbit=mbit)
        for number, (what, job, disk, mbit) in enumerate(
            (
                ("nothing works beside the loop", (), 0, 0),
                ("nothing works beside the loop", (), 0, 0),
                ("nothing works beside a loop of short steps", ("--work", "0.002"), 0, 0),
                ("nothing works beside a loop of long steps", ("--work", "0.3"), 0, 0),
                ("a thread that only logs", ("--beside", "logger"), 0, 0),
                ("a thread that only logs", ("--beside", "logger"), 0, 0),
                ("nothing works beside a loop that needs the memory", _COPIES, 0, 0),
                ("nothing works beside a loop that reads", _READS, SLOW_DISK, 0),
                ("nothing works beside two ranks", _EXCHANGES, 0, SLOW_LINK),
                ("nothing works beside two ranks", _EXCHANGES, 0, SLOW_LINK),
            ),
            1,
        )
    ),
)
