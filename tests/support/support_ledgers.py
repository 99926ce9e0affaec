"""Real ledgers for tests, written by LedgerWriter and Books in child processes.

A process must not open and close a ledger that it writes itself, and only the lock of another process separates alive
from dead. So each rank is a child that builds its ledger as instructed and then waits, ends or is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from support_background import Work
from support_background import put as put_background
from support_writers import Forked, serve, server

from whyidle.ledger.causes import CAUSE, COLLECTIVE_OP, FAMILY, HOOK_STATES, HOOKS, PHASE
from whyidle.ledger.clock import own_clock
from whyidle.ledger.layout import CHECKSUM_AT, GROUP_LABELS, SEQUENCE, WORD_AT, checksum
from whyidle.ledger.links import LINK_LABELS, LINKS
from whyidle.ledger.mounts import MOUNT_LABELS, SIDES
from whyidle.ledger.writer import LedgerWriter
from whyidle.torch_hooks.books import Books
from whyidle.torch_hooks.identity import process_start

T = TypeVar("T")
DEADLINE_SECONDS = 240.0
WAITS = ("network", "straggler", "pipeline", "collective")
SECOND = 1_000_000_000


@dataclass
class Spec:
    """The contents of one rank's ledger. Times in seconds. The steps end now, or ``idle`` seconds ago.

    All times may be before the machine's start: a ledger may contain negative times.
    """

    rank: int = 0
    run: str = "r1"
    owner: str = "lab"
    world_size: int = 2
    attempt: int = 0
    node: str = "n1"
    device: str = "cpu"
    uuid: str = ""  # default: GPU-<rank>
    created: int = 0  # unix ns; 0: now
    ahead: float = 0.0  # offset of the writer's clock from this process's clock
    boot: str = ""  # of which start of a machine that clock is; default: this one's, but in another time namespace
    startup: float = 3.0
    steps: int = 0
    step: dict[str, float] = field(default_factory=dict)  # cause -> seconds of each step; waits by their split
    late: dict[str, float] = field(default_factory=dict)  # family -> seconds in total
    waited_for: dict[str, float] = field(default_factory=dict)  # family -> seconds in total
    late_steps: int = 0
    bubble: float = 0.0
    groups: list[tuple[str, dict[str, float], int]] = field(default_factory=list)  # label, seconds by part, calls
    pending: float = 0.0
    phase: str = "host"
    idle: float = 0.0  # how long ago the phase was entered
    collectives: int | None = None  # default: the steps
    hooks: dict[str, str] = field(default_factory=dict)
    slots: list[dict[str, int]] = field(default_factory=list)  # of each slot in turn: key, size, calls, pairwise, …
    words: dict[str, int] = field(default_factory=dict)  # set unchanged, last; `name+1`: the second one
    op_bytes: dict[str, int] = field(default_factory=dict)
    handed: list[tuple[str, int, int, dict[str, int]]] = field(default_factory=list)  # label, key, size, bytes by op
    mounts: list[dict[str, Any]] = field(default_factory=list)  # of each: text, words without `mount_`, beside_bytes, …
    links: list[dict[str, Any]] = field(default_factory=list)  # of each: link, words without `link_`, bytes by slots
    backgrounds: list[Work] = field(default_factory=list)
    growing: bool = False  # the numbers of mounts and links are added again each second
    workers: int = -1  # of the loader
    line: str = ""  # at which the loop waits for its device
    failed: bool = False  # an exception ends the rank
    strings: dict[str, str] = field(default_factory=dict)  # other strings, such as `framework`


def write(directory: str, spec: Spec, at_ns: int | None = None) -> LedgerWriter:
    """Writes the ledger of ``spec`` as of a time (CLOCK_MONOTONIC) and leaves it open. For child processes."""
    ahead = int(spec.ahead * SECOND)
    now = (time.monotonic_ns() if at_ns is None else at_ns) + ahead - int(spec.idle * SECOND)
    ns = {cause: int(seconds * SECOND) for cause, seconds in spec.step.items()}
    wall = sum(ns.values())
    window = now - spec.steps * wall - int(spec.pending * SECOND)
    start = window - int(spec.startup * SECOND)
    ledger = LedgerWriter(
        directory,
        {
            "run": spec.run,
            "owner": spec.owner,
            "node": spec.node,
            "device": spec.device,
            "uuid": spec.uuid or f"GPU-{spec.rank}",
        },
        {
            "rank": spec.rank,
            "world_size": spec.world_size,
            "local_rank": spec.rank,
            "device_index": -1,
            "attempt": spec.attempt,
            "pid": os.getpid(),
            "pid_start_ticks": process_start()[0],
            "created_unix_ns": spec.created or time.time_ns(),
            "start_ns": start,
            "checkpoint_step": -1,
            "loader_workers": spec.workers,
        },
    )
    words, books = ledger.words, Books(ledger.words)
    words[SEQUENCE] += 1
    if spec.boot:
        ledger.set_string("boot", spec.boot)
    else:
        _set(words, "clock_offsets_ns", own_clock().monotonic_offset_ns + ahead)
    ledger.set_string("line", spec.line)
    for name, text in spec.strings.items():
        ledger.set_string(name, text)
    _set(words, "created_ns", time.monotonic_ns() + ahead)
    books.charge(PHASE["startup"], int(spec.startup * SECOND))
    if spec.steps:
        books.open_window(window)
    for number in range(1, spec.steps + 1):
        for cause, spent in ns.items():
            words[WORD_AT["cause_ns"][0] + CAUSE[cause]] += spent
            words[WORD_AT["waited_ns"][0]] += spent if cause in WAITS else 0
        books.close_step(window + number * wall)
    _set(words, "phase", PHASE[spec.phase])
    _set(words, "phase_since_ns", now)
    _set(words, "accounted_ns", now)
    _set(words, "pending_ns", int(spec.pending * SECOND))
    _set(words, "collectives", spec.steps if spec.collectives is None else spec.collectives)
    for family, seconds in spec.late.items():
        _set(words, "late_ns", int(seconds * SECOND), FAMILY[family])
    for family, seconds in spec.waited_for.items():
        _set(words, "waited_for_ns", int(seconds * SECOND), FAMILY[family])
    _set(words, "late_steps", spec.late_steps)
    _set(words, "bubble_ns", int(spec.bubble * SECOND))
    for slot, (label, parts, calls) in enumerate(spec.groups):
        ledger.set_string(GROUP_LABELS[slot], label)
        _set(words, "slot_calls", calls, slot)
        for part, seconds in parts.items():
            _set(words, f"slot_{part}_ns", int(seconds * SECOND), slot)
    for op, size in spec.op_bytes.items():
        _set(words, "collective_bytes", size, COLLECTIVE_OP[op])
        _set(words, "collective_calls", 1, COLLECTIVE_OP[op])
    for hook, state in spec.hooks.items():
        _set(words, "hook_states", HOOK_STATES.index(state), HOOKS.index(hook))
    for slot, group in enumerate(spec.slots):
        for name, value in group.items():
            _set(words, f"slot_{name}", value, slot)
    for slot, (label, key, size, sizes) in enumerate(spec.handed, 1):
        ledger.set_string(GROUP_LABELS[slot], label)
        _set(words, "slot_key", key, slot)
        _set(words, "slot_size", size, slot)
        _set(words, "slot_pairwise", label.endswith(" p2p"), slot)
        for op, number in sizes.items():
            _set(words, "slot_op_bytes", number, slot * len(COLLECTIVE_OP) + COLLECTIVE_OP[op])
            words[WORD_AT["collective_bytes"][0] + COLLECTIVE_OP[op]] += number
    for labels, texts in (
        (MOUNT_LABELS, (one["text"] for one in spec.mounts)),
        (LINK_LABELS, (one["link"] for one in spec.links)),
    ):
        for label, text in zip(labels, texts, strict=False):
            ledger.set_string(label, text)
    _add_to_mounts_and_links(words, spec)
    for index, work in enumerate(spec.backgrounds):
        put_background(ledger, index, work)
    for name, value in spec.words.items():
        word, _, index = name.partition("+")
        _set(words, word, value, int(index or 0))
    words[SEQUENCE] += 1
    ledger.file.flush()
    return ledger


STATES = ("counted", "limit", "limit_by", "up", "speed")
"""The words of mounts and links that do not grow."""


def _add_to_mounts_and_links(words: memoryview, spec: Spec) -> None:
    for kind, places in (("mount", spec.mounts), ("link", spec.links)):
        for index, place in enumerate(places):
            for name, value in place.items():
                for at, each in _in_ledger(kind, index, name, value):
                    words[at] = each + (0 if name in STATES else words[at])


def _in_ledger(kind: str, index: int, name: str, value: Any) -> Iterator[tuple[int, int]]:
    """The places and values of the words of one entry. By number of readers, or by slot, it has a list."""
    if name == "slots":
        first = WORD_AT["slot_link_bytes"][0] + index
        yield from ((first + slot * LINKS, each) for slot, each in enumerate(value))
    elif name.startswith("beside_"):
        first = WORD_AT[f"mount_{name}"][0] + index * SIDES
        yield from ((first + side, each) for side, each in enumerate(value))
    elif name not in ("text", "link"):
        yield WORD_AT[f"{kind}_{name}"][0] + index, value


def sealed(raw: bytes | bytearray) -> bytes:
    """A ledger with the right checksum, for tests that change one."""
    return bytes(raw[:CHECKSUM_AT]) + checksum(raw).to_bytes(8, "little") + bytes(raw[CHECKSUM_AT + 8 :])


def _set(words: memoryview, name: str, value: int, index: int = 0) -> None:
    words[WORD_AT[name][0] + index] = value


def _forked(directory: str | Path, specs: Sequence[Spec], then: str) -> Forked:
    words = (os.path.abspath(directory), json.dumps([vars(spec) for spec in specs]), then)
    return Forked(server(Path(__file__)), words)


class Child:
    """A rank: a process that wrote its ledger and keeps it open until it is told otherwise.

    ``script`` runs in a new process, and also what ``launcher`` starts.
    """

    def __init__(
        self, directory: str | Path, spec: Spec, script: str | Path | None = None, launcher: Sequence[str] = ()
    ):
        self.process: subprocess.Popen[str] | Forked
        if script or launcher:
            self.process = subprocess.Popen(
                [*launcher, sys.executable, script or __file__, directory, json.dumps([vars(spec)]), "hold"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        else:
            self.process = _forked(directory, [spec], "hold")
        assert self.process.stdout is not None
        self.path = self.process.stdout.readline().strip()
        assert self.path, "the child wrote no ledger"

    def end(self) -> None:
        """Lets it close its ledger and exit."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(DEADLINE_SECONDS)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(DEADLINE_SECONDS)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.kill()
        for stream in (self.process.stdin, self.process.stdout):
            if stream:
                stream.close()


@contextlib.contextmanager
def children(
    directory: str | Path, *specs: Spec, script: str | Path | None = None, launcher: Sequence[str] = ()
) -> Iterator[list[Child]]:
    """Live ranks, which end with the block."""
    started: list[Child] = []
    try:
        for spec in specs:
            started.append(Child(directory, spec, script, launcher))
        yield started
    finally:
        for child in started:
            child.stop()


def ended(directory: str | Path, *specs: Spec) -> list[str]:
    """The paths of ledgers of ended ranks, written by one child."""
    writer = _forked(directory, specs, "end")
    writer.stdin.close()
    with writer.stdout as stdout:
        paths = stdout.read().split()
    assert writer.wait(DEADLINE_SECONDS) == 0, "the process that writes ledgers failed: its error is on stderr"
    return paths


def until(look: Callable[[], T], seconds: float = DEADLINE_SECONDS) -> T:
    """Polls until the result of ``look`` is true, and returns it."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := look():
            return found
        time.sleep(0.02)
    raise AssertionError("waited in vain")


def _main(directory: str, raw: str, then: str) -> None:
    specs = [Spec(**spec) for spec in json.loads(raw)]
    now = time.monotonic_ns()
    ledgers = [write(directory, spec, now) for spec in specs]
    for ledger in ledgers:
        print(ledger.path, flush=True)
    growing = [(ledger, spec) for ledger, spec in zip(ledgers, specs, strict=True) if spec.growing]
    if then == "hold":
        while growing and not select.select([sys.stdin], [], [], 1.0)[0]:
            for ledger, spec in growing:
                ledger.words[SEQUENCE] += 1
                _add_to_mounts_and_links(ledger.words, spec)
                ledger.words[SEQUENCE] += 1
                ledger.file.flush()
        sys.stdin.read()
    for ledger, spec in zip(ledgers, specs, strict=True):
        ledger.close(spec.failed)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(int(sys.argv[2]), _main)
    else:
        _main(*sys.argv[1:])
