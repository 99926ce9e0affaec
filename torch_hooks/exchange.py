"""The MIN exchange: splits a wait in collectives into the transfer and the wait for a late rank.

In one collective the last rank to arrive waits least, and its wait is the transfer. So of a step's wait

    network = the minimum over all ranks,   straggler = own wait - that minimum.

The minimum comes from a small asynchronous MIN all-reduce over a gloo group of our own, once in a block of steps,
issued and polled at step boundaries and never waited for. The same vector carries the minimum of each family's own
time: the late rank's excess over those minima is what made it late.

The group is built beside torch.distributed's own bookkeeping, from a second connection to its store: names, order and
number of the user's groups stay as they are. It is built in a thread, once every rank has said that it is attached.
"""

from __future__ import annotations

import datetime
import os
import sys
import threading
import time
from array import array
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from ..ledger.causes import FAMILY, LATE_FAMILIES
from ..ledger.layout import WORD_AT
from .books import StepWaits
from .notices import debug, say

if TYPE_CHECKING:
    from .machine import PhaseMachine
    from .session import Session

BLOCK_STEPS = (8, 16, 32, 64, 128, 256)
"""How many steps a block may have. The first blocks have the least."""
BLOCK_NS = 500_000_000
"""A block is so long that it takes about this time: each exchange wakes threads, which on busy cores is felt."""
HANDSHAKE_SECONDS = 60.0
MAX_BACKLOG_STEPS = 2048
"""When this many steps await their split, some rank no longer takes part."""
LONGEST_EXCHANGE_SECONDS = 120.0
"""... and when an exchange takes longer than this, while steps go on."""

_FULL_MESH_RANKS = 64
_RANK_BITS = 20
_HEADER = 5  # rank, -rank, first step, -first step: prove that it is of every rank, and of the same steps; -step time
_PER_STEP = 3 + len(LATE_FAMILIES)  # wait with rank, -wait, -mixed, own time per family
_IN_FLIGHT = 2
_LATE_AT = WORD_AT["late_ns"][0]
_LATE_STEPS_AT = WORD_AT["late_steps"][0]

_handshakes = 0
"""Of this process: names the store keys, so that a second process group meets no keys of the first."""


class Split(NamedTuple):
    """What one step's wait turned out to be; ns."""

    network: int
    straggler: int
    unsplit: int
    late: tuple[int, ...]
    """By what this rank made the others wait, per LATE_FAMILIES; empty if it was not the last to arrive."""


class BlockMismatch(Exception):
    """The reduction did not cover the same steps of every rank."""


Steps = list[tuple[StepWaits, bool]]
"""The steps of a block, each with whether it is mixed: a collective ran on some ranks only."""


def words_of(steps: int) -> int:
    """Length of the vector that exchanges so many steps."""
    return _HEADER + steps * _PER_STEP


def pack_block(buffer: array[int], rank: int, steps: Steps) -> None:
    """Writes a block, to the start of the buffer, as what a MIN over ranks is taken of."""
    mean_wall = sum(waits.wall for waits, _ in steps) // len(steps)
    first = steps[0][0].number
    words = [rank, -rank, first, -first, -mean_wall]
    for waits, mixed in steps:
        words.append((waits.wait // 1000) << _RANK_BITS | rank)
        words.append(-(waits.wait // 1000))
        words.append(-int(mixed))
        words.extend(waits.own)
    buffer[: len(words)] = array("q", words)


def split_block(result: array[int], rank: int, world_size: int, steps: Steps) -> list[Split]:
    """Reads a reduced block. Raises BlockMismatch when the ranks were not in step."""
    first = steps[0][0].number
    if (result[0], result[1], result[2], result[3]) != (0, 1 - world_size, first, -first):
        raise BlockMismatch(f"step {first} of rank {rank}: {result[:_HEADER].tolist()}")
    splits = []
    for index, (waits, _) in enumerate(steps):
        at = _HEADER + index * _PER_STEP
        least, most, mixed = result[at], -result[at + 1], result[at + 2]
        if mixed:
            splits.append(Split(0, 0, waits.wait, ()))
            continue
        network = min(waits.wait, (least >> _RANK_BITS) * 1000)
        late: tuple[int, ...] = ()
        if least & ((1 << _RANK_BITS) - 1) == rank:
            late = lateness((most - (least >> _RANK_BITS)) * 1000, waits.own, result[at + 3 : at + _PER_STEP])
        splits.append(Split(network, waits.wait - network, 0, late))
    return splits


def block_length(step_ns: int) -> int:
    """How many steps the block after the next has, by the step time of the slowest rank: the same on all of them."""
    wanted = BLOCK_NS // max(step_ns, 1)
    return next((length for length in BLOCK_STEPS if length >= wanted), BLOCK_STEPS[-1])


def lateness(late_ns: int, own: tuple[int, ...], least: array[int]) -> tuple[int, ...]:
    """By what a rank was ``late_ns`` late: its excess over the least of any rank, per LATE_FAMILIES.

    Excesses may add up to more than the lateness (each minimum may be of another rank): they are then shares of it.
    What they do not explain is `unattributed`.
    """
    excess = [max(0, mine - minimum) for mine, minimum in zip(own, least, strict=True)]
    total = sum(excess)
    if total > late_ns:
        excess = [one * late_ns // total for one in excess]
    excess[-1] += late_ns - sum(excess)
    return tuple(excess)


class _Buffer(NamedTuple):
    words: array[int]
    tensors: dict[int, Any]
    """Length of a block -> the tensor over the words that it takes."""


class _Block(NamedTuple):
    steps: Steps
    buffer: _Buffer
    work: Any
    issued: float


class Exchange:
    """Holds back the waits of steps until it can say what they were. Called on the training thread only.

    State ``waiting`` until every rank has attached, then ``ready``, and ``failed`` for good once a rank does not take
    part: from then on waits are counted as `collective`, those held back too.
    """

    def __init__(self, session: Session, machine: PhaseMachine, rank: int, world_size: int):
        self._session = session
        self._machine = machine
        self._rank = rank
        self._world_size = world_size
        self._backlog: deque[tuple[StepWaits, bool]] = deque()
        self._inflight: deque[_Block] = deque()
        self._spare: list[_Buffer] = []
        self._mixed: deque[bool] = deque()
        """Of the steps that have ended on the host, and on the device not yet."""
        self._lengths = deque([BLOCK_STEPS[0]] * _IN_FLIGHT)
        """Of the next blocks; each told by a block that every rank has settled before it issues the one in question."""
        self._group: Any = None
        self._failure = ""
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begins the handshake in a thread of its own. Steps are held back from now on."""
        global _handshakes
        server = _server(sys.modules["torch.distributed"])
        if server is None:
            self._session.state("exchange", "absent")
            return
        _handshakes += 1
        key = f"{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}.{_handshakes}"
        self._machine.books.on_step = self._hold
        self._machine.books.start_splitting()
        self._thread = threading.Thread(
            target=self._shake_hands, args=(server, key), name="whyidle-handshake", daemon=True
        )
        self._thread.start()

    def _hold(self, waits: StepWaits) -> None:
        self._backlog.append((waits, self._mixed.popleft() if self._mixed else True))

    def note(self, mixed: bool) -> None:
        """A step ends on the host; ``mixed``: one of its collectives ran on some ranks only."""
        self._mixed.append(mixed)

    def take_back(self) -> None:
        """The step that was noted last did not end after all."""
        self._mixed.pop()

    # -- the handshake: its own thread, its own connection

    def _shake_hands(self, server: tuple[str, int], key: str) -> None:
        try:
            import torch
            from torch import distributed

            # The training's own connection to the store serves one request at a time: ours must never stand before
            # one of its.
            timeout = datetime.timedelta(seconds=HANDSHAKE_SECONDS)
            client = distributed.TCPStore(*server, is_master=False, wait_for_workers=False, timeout=timeout)
            store = distributed.PrefixStore(f"whyidle/{key}", client)
            if store.add("attached", 1) == self._world_size:
                store.set("go", "1")
            deadline = time.monotonic() + HANDSHAKE_SECONDS
            pause = 0.01
            while not store.check(["go"]):
                # Polled, not waited for: a thread inside the store would crash the interpreter at its end.
                if time.monotonic() > deadline:
                    self._failure = "not every rank is attached"
                    return
                if self._stop.wait(pause):
                    return
                pause = min(1.0, pause * 1.5)
            group = _build_group(distributed, store, self._rank, self._world_size)
            for _ in range(_IN_FLIGHT):
                words = array("q", bytes(8 * words_of(BLOCK_STEPS[-1])))
                whole = torch.frombuffer(words, dtype=torch.int64)
                self._spare.append(_Buffer(words, {length: whole[: words_of(length)] for length in BLOCK_STEPS}))
            _never_destroy(group)
            self._group = group
        except Exception as error:  # the fence around the training
            self._failure = str(error) or type(error).__name__

    # -- the training thread

    def poll(self) -> None:
        """At a step boundary: issues full blocks and settles finished ones. Waits for nothing."""
        try:
            if self._group is None:
                if self._failure:
                    self._fail(self._failure)
                elif len(self._backlog) > MAX_BACKLOG_STEPS:
                    self._fail("a rank stopped taking part")
                return
            if not self._lengths or len(self._backlog) >= self._lengths[0]:
                self._advance()
        except Exception as error:  # the fence around the training
            self._fail(str(error) or type(error).__name__)

    def _advance(self) -> None:
        while self._inflight and self._inflight[0].work.is_completed():
            self._settle(self._inflight.popleft())
        while self._lengths and len(self._backlog) >= self._lengths[0]:
            self._issue(self._lengths.popleft())
        if len(self._backlog) > MAX_BACKLOG_STEPS or (
            self._inflight and time.monotonic() - self._inflight[0].issued > LONGEST_EXCHANGE_SECONDS
        ):
            self._fail("a rank stopped taking part")

    def _issue(self, length: int) -> None:
        from torch import distributed

        steps = [self._backlog.popleft() for _ in range(length)]
        buffer = self._spare.pop()
        pack_block(buffer.words, self._rank, steps)
        options = distributed.AllreduceOptions()
        options.reduceOp = distributed.ReduceOp.MIN  # pyright: ignore[reportAttributeAccessIssue] - torch's stub errs
        options.timeout = datetime.timedelta(days=1)  # a rank may write a checkpoint for longer than the default
        work = self._group.allreduce([buffer.tensors[length]], options)
        self._inflight.append(_Block(steps, buffer, work, time.monotonic()))
        self._session.state("exchange", "active")

    def _settle(self, block: _Block) -> None:
        words = block.buffer.words
        splits = split_block(words, self._rank, self._world_size, block.steps)
        self._lengths.append(block_length(-words[4]))
        self._spare.append(block.buffer)
        self._machine.update(self._enter_splits, splits)

    def _enter_splits(self, splits: list[Split]) -> None:
        books, words = self._machine.books, self._machine.words
        for split in splits:
            books.settle(split.network, split.straggler, split.unsplit)
            if split.late:
                words[_LATE_STEPS_AT] += 1
                for family, late in zip(LATE_FAMILIES, split.late, strict=True):
                    words[_LATE_AT + FAMILY[family]] += late

    def _fail(self, why: str) -> None:
        if debug():
            say(f"waits in collectives are not split into network and straggler: {why}")
        self._session.state("exchange", "absent" if "attached" in why else "failed")
        self._machine.update(self._machine.books.stop_splitting)
        self._backlog.clear()
        self.close()
        self._session.exchange = None

    def close(self) -> None:
        """Settles what has come back, ends the handshake if it still runs; what is in flight stays unsplit."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=2.0)
        try:
            while self._inflight and self._inflight[0].work.is_completed():
                self._settle(self._inflight.popleft())
        except Exception:
            pass


_kept: list[Any] = []


def _never_destroy(group: Any) -> None:
    """Keeps a group beyond the interpreter's end: its destructor waits for operations that a dead peer never joins."""
    import ctypes

    _kept.append(group)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


def _server(distributed: Any) -> tuple[str, int] | None:
    """Host and port of the process group's store; None if it has no server to connect to."""
    store = distributed.distributed_c10d._get_default_store()
    while isinstance(store, distributed.PrefixStore):
        store = store.underlying_store
    return (store.host, store.port) if isinstance(store, distributed.TCPStore) else None


def _build_group(distributed: Any, store: Any, rank: int, world_size: int) -> Any:
    gloo = distributed.ProcessGroupGloo
    if world_size <= _FULL_MESH_RANKS:
        return gloo(store, rank, world_size)
    # Thousands of ranks cannot each hold a connection to every other: connect where the algorithm asks for it.
    options = gloo._Options()
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    try:
        device = (
            gloo.create_device(interface=interface, lazy_init=True)
            if interface
            else gloo.create_default_device(lazy_init=True)
        )
    except TypeError:  # torch 2.4 knows no lazy_init
        return gloo(store, rank, world_size)
    options._devices = [device]
    return gloo(store, rank, world_size, options)
