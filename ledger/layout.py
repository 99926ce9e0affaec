"""The layout of a ledger: one table, from which the writer and the reader take their offsets.

A ledger is a file of fixed size: little-endian, 8-byte aligned, signed 64-bit words and a few strings of fixed length.
The *head* (everything except the rings of steps and calls, and the snapshots) is small, so that a scrape reads little.
"""

from __future__ import annotations

from typing import NamedTuple
from zlib import crc32

from .background import BACKGROUND_LABELS, BACKGROUND_WORDS
from .below import BELOW_LABELS, BELOW_WORDS
from .causes import (
    CAUSES,
    CHECKPOINT_KINDS,
    COLLECTIVE_OPS,
    FAMILIES,
    HOOKS,
    LATE_FAMILIES,
    ROLLOUT_PARTS,
    STEP_BUCKETS_SECONDS,
    WORK_CAUSES,
)
from .doing import DOING
from .failures import FAILURE_BYTES
from .given import GIVEN_STRINGS, GIVEN_WORDS
from .gpus import GPU_ERROR_BYTES, GPU_WORDS
from .links import LINK_LABELS, LINK_WORDS, LINKS
from .modes import MODES
from .mounts import MOUNT_LABELS, MOUNT_WORDS
from .programs import FRAMEWORK_BYTES, OPTIONS_BYTES
from .snapshots import MOST, SNAPSHOT_WORDS

MAGIC = b"WHYIDLE\0"
VERSION = 28
SUFFIX = ".ledger"

_WORD = 8
RING_STEPS = 512
"""How many of the last steps the ring keeps. Step n is at index (n - 1) % RING_STEPS."""
RING_CALLS = 4096
"""How many of the last waits the ring of calls keeps. A report splits from it the waits that were never exchanged."""

CLEAN, FAILED, INTERRUPTED = 1, 2, 3
"""Values of `ended`: the process has exited, or it has failed: an uncaught exception or a bad status has ended it."""

BEGINNINGS: tuple[str, ...] = ("", "continued", "returned", "branched")
"""Values of `beginning`, by index. An attempt has continued from the newest checkpoint, or somebody chose an older one:
it has returned there by the same command, or by a changed one, and is then a branch. Empty: it has restored nothing."""
CONTINUED, RETURNED, BRANCHED = 1, 2, 3
STEPS_BY: tuple[str, ...] = ("", "updates", "backward passes")
"""Values of `steps_by`, by index: what steps are counted by. Empty: the steps of optimizers, or what the user says.
Without them: changes of parameters and gradients that were seen, or each backward pass."""
SAVES_KEPT = 32
EVALUATIONS_KEPT = 8
"""How many of the last saves a ledger has, so that a later attempt knows which of them it restores."""

SLOTS = 8
"""Groups of ranks that a ledger tells apart. Slot 0: the world; 1 to 6: other groups; 7: groups of unknown ranks."""
UNKNOWN_SLOT = SLOTS - 1
GROUP_LABELS: tuple[str, ...] = tuple(f"group{slot}" for slot in range(SLOTS))
"""The strings that name the group of each slot, such as `world` or `dp`. The string of an unused slot is empty."""
CULPRITS = 6
"""How many late ranks a ledger names per group: those for which this rank waited longest."""

# name -> bytes. UTF-8, NUL-padded.
STRINGS: dict[str, int] = {
    "run": 128,
    "owner": 64,
    "node": 64,
    "device": 32,
    "uuid": 64,
    "boot": 40,
    "line": 64,  # of the training's own code, as file:line: see line_looks
    # `FILE:LINE FUNCTION LIBRARY`, of the training's own code; LIBRARY is what it calls there, or `-`
    "host_line": 128,  # see host_looks
    "blocked_line": 128,  # see blocked_looks
    "outside_line": 128,  # see outside_looks
    "inside_line": 128,  # see inside_looks
    "launching_line": 128,  # see launching_looks
    **dict.fromkeys(BELOW_LABELS, 64),  # see below.py
    "stuck_line": 96,  # `FILE:LINE FUNCTION` of the training thread while a phase lasts long; otherwise empty
    "stuck_call": 64,  # the function of a library that it has called there; empty: none, or one of torch
    "stuck_threads": 320,  # what it may wait for there: see threads.py
    "lock_thread": 64,  # the thread that was seen most often when the training thread waited for Python's lock
    **dict.fromkeys(GROUP_LABELS, 32),
    **dict.fromkeys(MOUNT_LABELS, 112),  # see mounts.py
    **dict.fromkeys(LINK_LABELS, 80),  # see links.py
    **dict.fromkeys(BACKGROUND_LABELS, 48),  # see background.py
    "gpu_error": GPU_ERROR_BYTES,  # why the runtime refuses the GPUs, in its own words: see gpus.py
    "failure": FAILURE_BYTES,  # the exception that ended the rank: see failures.py; empty: none, or not known
    "framework": FRAMEWORK_BYTES,  # that runs the loop: see programs.py; empty: none that is known
    **GIVEN_STRINGS,  # see given.py
    "options": OPTIONS_BYTES,  # the names of the program's options that advice may mention, with spaces between them
}

# name -> number of words
WORDS: dict[str, int] = {
    "size": 1,  # of the whole file, bytes
    "sequence": 1,  # the seqlock of the memory: odd during an update, and so never odd in the file
    "rank": 1,
    "world_size": 1,
    "local_rank": 1,
    "local_world_size": 1,  # ranks on this node; 0: not known
    "device_index": 1,  # -1 on a rank without an accelerator
    "attempt": 1,
    "pid": 1,  # in the writer's own pid namespace
    "pid_start_ticks": 1,  # field 22 of /proc/<pid>/stat
    "created_unix_ns": 1,
    "created_ns": 1,  # CLOCK_MONOTONIC at the same moment
    "clock_offsets_ns": 2,  # offsets of the writer's time namespace: CLOCK_MONOTONIC, CLOCK_BOOTTIME
    "start_ns": 1,  # CLOCK_MONOTONIC when the process started; the accounting begins here
    "ended": 1,  # 0 while the process lives and after it was killed; CLEAN, FAILED or INTERRUPTED after it has exited
    "heartbeat_ns": 1,  # CLOCK_MONOTONIC, the last sign of life; written outside the seqlock; 0: none yet
    # CLOCK_MONOTONIC when the optimizer of the last step was deleted, or when the training thread was seen to have
    # ended: the training function has returned. 0: it has not. Written like heartbeat_ns.
    "returned_ns": 1,
    "phase": 1,  # the open phase: index into PHASES
    "phase_since_ns": 1,  # CLOCK_MONOTONIC when it was entered
    "accounted_ns": 1,  # CLOCK_MONOTONIC up to which the causes account (CUDA lags behind); 0: up to phase_since_ns
    "window_ns": 1,  # CLOCK_MONOTONIC when the first step began; 0 before
    "cause_ns": len(CAUSES),
    "slot_waited_ns": SLOTS,  # all waits by group; directly after cause_ns, so that one copy takes both
    "pending_ns": 1,  # waits in collectives that are not split yet
    "waited_ns": 1,  # all waits in collectives: split, unsplit or pending
    "window_cause_ns": len(CAUSES),  # the value of cause_ns at window_ns
    "window_waited_ns": 1,
    "late_ns": len(FAMILIES),  # by how much this rank was late while others waited for it, by what made it late
    "late_steps": 1,  # steps in which it was the last to arrive
    "waited_for_ns": len(FAMILIES),  # waits for late ranks and other stages, by what made those late, as far as known
    "bubble_ns": 1,  # the least that the schedule of a pipeline costs, also where it is waited in a collective
    "slot_key": SLOTS,  # a hash of the set of ranks and of slot_pairwise; 0: the slot is not used
    "slot_size": SLOTS,  # number of ranks in the group
    "slot_pairwise": SLOTS,  # 1: sends and receives, 0: collectives
    "slot_calls": SLOTS,  # waits entered
    "slot_pending_ns": SLOTS,
    "slot_network_ns": SLOTS,
    "slot_straggler_ns": SLOTS,
    "slot_pipeline_ns": SLOTS,
    "slot_latency_ns": SLOTS,  # part of slot_pipeline_ns: what transfers cost beyond the waits for own messages
    "slot_link": SLOTS,  # the link that caused most of slot_latency_ns, as link_word encodes it; 0: none
    "slot_queue_ns": SLOTS,  # time in transfers in which a CPU rank's own threads got no CPU
    "slot_unsplit_ns": SLOTS,
    "slot_settled": SLOTS,  # the last step (of this process) that is settled: its waits are split, or stay unsplit
    "culprit": SLOTS * CULPRITS,  # per slot: ranks for which this rank waited, each as rank + 1; 0: none
    "culprit_ns": SLOTS * CULPRITS,
    "late_own_ns": SLOTS * len(LATE_FAMILIES),  # per slot: how late this rank was there through its own time
    "late_elsewhere_ns": SLOTS * SLOTS,  # per slot: how late it was there through its waits in each other slot
    "open_slot": 1,  # the group of the open wait; -1 if the open phase is not a wait
    # Of the last wait that was entered. In a send or receive: the rank at the other end, + 1; 0: not known. In a
    # collective: which of the groups of these ranks it is in, the same number on all; 0: the world, or not known.
    "open_peer": 1,
    # The position of an accelerator that has stopped making progress, while its host may have gone on. These words are
    # not part of an update: the watcher thread writes them outside the seqlock.
    "device_phase": 1,  # index into PHASES + 1; 0: the same as the host's phase
    "device_since_ns": 1,  # CLOCK_MONOTONIC
    "device_slot": 1,  # the group of the wait that it is in, + 1; 0: it is not in a wait
    "slot_ahead": SLOTS,  # waits that the host has entered and the device has not
    "snapshots": 1,  # how many were ever taken: see snapshots.py
    "calls_written": 1,  # how many waits were ever put into the ring of calls
    "steps": 1,
    "base_step": 1,  # steps that earlier attempts had finished when this attempt's first step began
    "recompute_until": 1,  # steps up to this number repeat those of an earlier attempt
    "checkpoint_step": 1,  # base_step + steps at the last finished save; -1 before
    "samples": 1,
    "shared_units": 1,  # microbatches or samples that whyidle.share gave this rank; 0: it was not called
    "batches": 1,
    "gc_asked": 1,  # collections that the program asked for (gc.collect)
    "gc_asked_ns": 1,  # how long they took
    "gc_frozen": 1,  # whether objects were frozen (gc.freeze) when garbage was last collected
    "marked_data": 1,  # how often the loop was in whyidle.phase("data"), or loaded a batch with torch.load
    "loader_workers": 1,  # worker processes of the data loader that the loop has waited for most; -1: not known
    "batch_pieces": 1,  # tensors and other objects in a batch of a training loader: see `pieces`; 0: not known
    "loader_prefetch": 1,  # how many batches each worker of a training loader makes ahead; 0: not known
    "loader_starts": 2,  # iterators of loaders that do not keep workers: those of training loaders, and all
    "loader_iterables": 1,  # iterators of training loaders over an IterableDataset
    "data_first_ns": 1,  # the first waits for each worker after `__iter__`, without the start of the worker
    "data_awaited_ns": 1,  # long waits for what threads or processes of the program make ahead, without a loader
    # Long waits for batches of a loader while some of its workers had yielded all of their part of an IterableDataset:
    # how long they took, and the same times the number of these workers.
    "data_exhausted_ns": 1,
    "exhausted_worker_ns": 1,
    "data_gone_ns": 1,  # part of unattributed: waits for a worker whose times could not be read, because it was gone
    "data_own_cpu_ns": 1,  # CPU time of the training thread in batches that it makes itself
    # Of the data worker that owes the batch of the open wait. Written like device_phase. 0: no wait is open, or not
    # known.
    "open_worker_pid": 1,  # in the writer's pid namespace
    "open_worker_start_ticks": 1,
    # What data workers read from files while the loop waited for them and they were blocked. worker_read_calls includes
    # how they receive requests, so it is 0 only if nothing is known.
    "worker_read_bytes": 1,
    "worker_read_calls": 1,
    "worker_disk_bytes": 1,  # bytes that a disk had to read for them
    # Looks at what the workers that make a batch are doing, at the start of long waits.
    "worker_looks": len(DOING),
    "together_looks": 1,  # looks that found several workers making batches
    "parallel_looks": 1,  # those in which at least two of them did not wait for a lock of another process
    "skipped_batches": 1,  # batches on which the loop did not compute, in long runs of such batches
    "skipped_ns": 1,  # how long these runs took
    "skips": 1,  # the number of such runs
    # The first data worker that was found dead. Only one of signal and status is not 0.
    "dead_worker_pid": 1,  # 0: none
    "dead_worker_signal": 1,
    "dead_worker_status": 1,  # its exit status
    "eval_batches": 1,
    "eval_data_ns": 1,  # waits for batches of evaluations, by the host's clock
    "eval_idle_ns": 1,  # part of `host` and `host_blocked`: in evaluations, or right after their last batches
    "evaluations": 1,  # steps with an evaluation in them, or before them, since window_ns
    "evaluated_step": EVALUATIONS_KEPT,  # a ring: the steps that were done before the last of them
    "rollouts": 1,  # steps with a rollout
    "rollout_part_ns": len(ROLLOUT_PARTS),  # by the host's clock; they may be blocked, or idle, in it
    "no_grad_ns": 1,  # part of compute: without gradients (generation, a teacher, an evaluation)
    "host_write_ns": 1,  # part of host: stretches in which the loop's own code wrote files
    "host_write_bytes": 1,
    # What the training thread read itself since window_ns, in all phases.
    "thread_read_bytes": 1,  # bytes that it read from files, by calls or by page faults; 0 also if it is not known
    "thread_major_faults": 1,  # its page faults that had to wait for a read: mapped files, or swapped memory
    # For the CPUs that the rank may use, since window_ns. All 0: not known.
    "cpu_asked_ns": 1,  # the time that anybody asked for: the CPUs were busy, or stolen
    "cpu_stolen_ns": 1,  # part of it: the hypervisor gave the CPUs to other machines (steal)
    "cpu_queued_ns": 1,  # how long the training thread was runnable without a CPU, since window_ns, in all phases
    # Looks at an accelerator's home stream since window_ns, at random times. Written like device_phase.
    "looks": 1,
    "empty_looks": 1,  # those in which the stream was empty and the open phase counts as compute
    "empty_host_looks": 1,  # those in which it was empty, or Python's lock was held, and the open phase was `host`
    "looked_ns": 1,  # for how long they stand: each for its period, and those whose look was prevented
    "looked_square": 1,  # the sum of the squares of these times, in ms
    "empty_ns": 1,  # part of looked_ns: of empty_looks
    "empty_by_ns": len(WORK_CAUSES),  # the same, by the cause of the open phase
    "empty_host_ns": 1,  # part of looked_ns: of empty_host_looks
    "busy_looks": 1,  # those in which the stream had work, outside backward passes; the phase was compute
    "line_looks": 1,  # those of them in which the training thread was at its most frequent line
    # What the watcher sees now and then of the training thread, since window_ns. Written like device_phase.
    "stuck_since_ns": 1,  # phase_since_ns of the phase for which stuck_line was written, CLOCK_MONOTONIC
    "host_looks": 1,  # looks in `host`, if it had a CPU (on a CPU rank) or its device no work
    "host_at": 1,  # those of them in the function, or at the line, of host_line
    "host_looked_ns": 1,  # for how long host_looks stand: each for its period, and those whose look was prevented
    "host_at_ns": 1,  # part of it: of host_at
    # Looks that found a CPU rank's own code without a CPU in `host`, `compute` or `eval`; or a device without work in
    # them, and the thread blocked.
    "blocked_looks": 1,
    "blocked_at": 1,  # those of them in the function, or at the line, of blocked_line
    "blocked_looked_ns": 1,  # for how long blocked_looks stand: each for its period, and those whose look was prevented
    "blocked_at_ns": 1,  # part of it: of blocked_at
    "outside_looks": 1,  # part of work_looks: outside torch's modules, functions, backward passes and optimizers
    "outside_at": 1,  # those of them in the function, or at the line, of outside_line
    "outside_looked_ns": 1,  # for how long outside_looks stand: each for its period, and those whose look was prevented
    "outside_at_ns": 1,  # part of it: of outside_at
    "inside_looks": 1,  # part of work_looks: in Python code below torch's modules, which gave Python's lock up late
    "inside_at": 1,  # those of them in the function, or at the line, of inside_line
    "inside_looked_ns": 1,  # for how long inside_looks stand: each for its period, and those whose look was prevented
    "inside_at_ns": 1,  # part of it: of inside_at
    "launching_looks": 1,  # part of work_looks: the device had no work, and code beside the model launched operations
    "launching_at": 1,  # those of them in the function, or at the line, of launching_line
    "launching_looked_ns": 1,  # for how long launching_looks stand
    "launching_at_ns": 1,  # part of it: of launching_at
    "open_looks": 1,  # in the own phase that has been open since stuck_since_ns
    "open_blocked_looks": 1,  # those of them that found the training thread blocked
    "open_cpu_ns": 1,  # of the process, from the first to the last of them
    "base_looks": 1,  # looks in `host`, `compute` or `eval`
    "base_looked_ns": 1,  # for how long they stand
    "base_looked_square": 1,  # the sum of the squares of these times, in ms
    "mode_looks": len(MODES),  # part of base_looks: those that found each of MODES on
    # Looks in which it waited for Python's lock while another Python thread computed: part of base_looks on a CPU rank,
    # and of work_looks on an accelerator.
    "lock_looks": 1,
    **BELOW_WORDS,  # see below.py
    "threads": 1,  # of the process; 0: not known
    "open_files": 1,  # of the process; 0: not known
    "thread_cpu_ns": 1,  # on a CPU rank: the training thread had a CPU in the loop's own phases
    "lock_ns": 1,  # part of host_blocked: another Python thread computed while the training thread awaited the lock
    # Where the loop's files are and which links carry its transfers, since window_ns. Written like device_phase.
    "mount_looks_all": 1,  # looks at whoever reads or writes for the loop while the loop waited for it
    **MOUNT_WORDS,
    **LINK_WORDS,
    "slot_link_bytes": SLOTS * LINKS,  # per slot: what looks in its waits saw each link carry
    "rdma_missing": 1,  # a bit for each of RDMA_MISSING in links.py; 0: nothing is missing, or there is no RDMA port
    "new_groups": 1,  # process groups that the loop has made since window_ns
    "new_group_ns": 1,  # the time that this took
    "backwards": 1,
    "reduced": 1,  # all-reduces of gradients by DistributedDataParallel
    "reduced_again": 1,  # those of gradients that had been added to others which were reduced before: see no_sync()
    "collectives": 1,  # waits entered
    "collective_calls": len(COLLECTIVE_OPS),
    "collective_bytes": len(COLLECTIVE_OPS),
    "aside_calls": len(COLLECTIVE_OPS),  # part of collective_calls: in evaluations, rollouts and loggers
    "aside_bytes": len(COLLECTIVE_OPS),  # part of collective_bytes
    "slot_op_bytes": SLOTS * len(COLLECTIVE_OPS),  # collective_bytes of each slot, by operation
    "checkpoints": len(CHECKPOINT_KINDS),
    "checkpoint_bytes": len(CHECKPOINT_KINDS),
    "saves_behind": 1,  # asynchronous saves
    "step_buckets": len(STEP_BUCKETS_SECONDS) + 1,
    "step_ns": 1,  # sum of all step times
    "hook_states": len(HOOKS),
    "faults": 1,  # exceptions in whyidle's own code that a hook caught
    "unmeasured": 1,  # device-clock boundaries that could not be recorded
    # 1 + other ranks of the run on this node that were alive when an exception ended this one; 0: not known
    "alive_at_end": 1,
    # How this attempt began and ended, and what a later one may go on from.
    "command_hash": 1,  # of the command line and the configuration files that it names; 0: not known
    "requeues": 1,  # how often the scheduler had started the job again
    "exited": 1,  # os._exit has ended the process, with this status + 1; 0: it has not
    "stopped_by": 1,  # the signal that asked the process to end, if the training has a handler for it; 0: none
    "beginning": 1,  # index into BEGINNINGS
    "restored_step": 1,  # of the checkpoint that was restored, + 1; 0: none, or not known which
    "restored_attempt": 1,  # the attempt that had saved it, + 1; 0: not known
    "saves_noted": 1,  # saves ever put into the next three, which are rings
    "saved_step": SAVES_KEPT,
    "saved_path": SAVES_KEPT,  # a hash of the path; 0: not known
    "saved_unix_ns": SAVES_KEPT,  # when the file was last modified; if that is not known, minus the time of the save
    "steps_by": 1,  # what steps are counted by: index into STEPS_BY
    "trainings": 1,  # that have begun one after the other in this process, after the first step; 0: none has yet
    **GPU_WORDS,  # written like device_phase
    **BACKGROUND_WORDS,  # since window_ns; written like device_phase
    **GIVEN_WORDS,  # written like device_phase
    # Only in the file; see file.py.
    "checksum": 1,  # CRC-32 of the head up to here
    "steps_begun": 1,  # the ring may already have the steps up to this one, and lack those that they overwrite
    "calls_begun": 1,
}

STEP_WORDS = ("step", "end_ns", "wall_ns", "waited_ns", "first_ns", *CAUSES)
"""The words of one ring entry. `waited_ns`, `first_ns` (that of `data_first_ns`) and the causes are the cumulative
values at the end of the step, because a copy costs the writer less than a difference. The values of a step
are the difference of two entries. Its waits are the difference of `waited_ns`, because they are split only later."""


def _place() -> tuple[dict[str, tuple[int, int]], dict[str, tuple[int, int]], int]:
    at = len(MAGIC) + _WORD  # magic, version
    strings, words = {}, {}
    for name, size in STRINGS.items():
        strings[name] = (at, size)
        at += size
    for name, count in WORDS.items():
        words[name] = (at // _WORD, count)
        at += count * _WORD
    return strings, words, at


STRING_AT, WORD_AT, _USED = _place()
"""``STRING_AT[name] = (byte offset, bytes)``; ``WORD_AT[name] = (word index, words)``."""

SEQUENCE = WORD_AT["sequence"][0]
CHECKSUM_AT = WORD_AT["checksum"][0] * _WORD
"""Byte offset of the checksum. `steps_begun` and `calls_begun` follow it."""

HEAD_BYTES = 16896
assert _USED <= HEAD_BYTES
RING_AT = HEAD_BYTES // _WORD
CALLS_AT = RING_AT + RING_STEPS * len(STEP_WORDS)
"""Word index of the ring of calls. It holds the waits of each step in the order in which they happened; see
`call_words`."""
CALL_WORDS = 3
SNAPSHOTS_AT = CALLS_AT + RING_CALLS * CALL_WORDS
"""Word index of the snapshots."""
LEDGER_BYTES = (SNAPSHOTS_AT + MOST * len(SNAPSHOT_WORDS)) * _WORD

_RANK_BITS = 20

_CALL_STEP_SHIFT, CALL_SLOT_SHIFT = 39, 36
_CALL_US = (1 << CALL_SLOT_SHIFT) - 1
MOST_CALL_NS = _CALL_US * 1000
_CALL_STEP = (1 << 63 - _CALL_STEP_SHIFT) - 1
_TOGETHER_SHIFT = _RANK_BITS + 2
_LEAD_SHIFT = _TOGETHER_SHIFT + 1
_PIECE = 4096


def checksum(head: bytes | bytearray | memoryview) -> int:
    """The checksum that belongs into this head."""
    # In pieces, because zlib releases Python's lock for more than 5 KiB.
    head = memoryview(head)
    found = 0
    for at in range(0, CHECKSUM_AT, _PIECE):
        found = crc32(head[at : min(at + _PIECE, CHECKSUM_AT)], found)
    return found


class Call(NamedTuple):
    """One wait from the ring of calls. Times are ns, rounded down to whole µs."""

    step: int
    """The number of the step, counted in this process from 1."""
    slot: int
    ns: int
    gap_ns: int = 0
    """The time between this wait and the one before it, or the start of the step."""
    peer: int = -1
    """The rank at the other end of a send or receive; -1 in a collective, or if it is not known."""
    sent: bool = False
    lead_ns: int = 0
    """How long before the wait the send or receive was issued."""
    together: bool = False
    """Whether this call and the one before it were a single wait. The call before it then has all of the time."""


def link_word(link: tuple[int, int]) -> int:
    """Encodes the two ranks of a link as one word."""
    first, second = link
    return first + 1 << _RANK_BITS | second


def link_of(word: int) -> tuple[int, int] | None:
    """The two ranks that `link_word` encoded; None for 0."""
    return ((word >> _RANK_BITS) - 1, word & (1 << _RANK_BITS) - 1) if word >> _RANK_BITS else None


def call_words(step: int, slot: int, ns: int, gap_ns: int, other_end: int) -> tuple[int, int, int]:
    """Encodes a wait as three words.

    The first has the low 24 bits of the step, the slot and the wait in µs; the second has the gap in µs; the third is
    that of `other_end`.
    """
    us = ns // 1000
    return call_head(step) | slot << CALL_SLOT_SHIFT | (us if us < _CALL_US else _CALL_US), gap_ns // 1000, other_end


def call_head(step: int) -> int:
    """The part of the first of `call_words` that all waits of a step share."""
    return (step & _CALL_STEP) << _CALL_STEP_SHIFT


def other_end(peer: int, sent: bool = False, lead_ns: int = 0, together: bool = False) -> int:
    """Encodes what is known of the other end of a send or receive as one word; 0 stands for a collective."""
    lead = min(lead_ns // 1000, _CALL_US)
    return lead << _LEAD_SHIFT | together << _TOGETHER_SHIFT | peer + 1 << 1 | sent


def call_of(head: int, gap: int, end: int, last_step: int) -> Call:
    """Decodes three words of the ring of calls. The step is at most ``last_step``."""
    step = last_step - ((last_step - (head >> _CALL_STEP_SHIFT)) & _CALL_STEP)
    slot, ns = head >> CALL_SLOT_SHIFT & SLOTS - 1, (head & _CALL_US) * 1000
    peer = (end >> 1 & (1 << _TOGETHER_SHIFT - 1) - 1) - 1
    lead = (end >> _LEAD_SHIFT & _CALL_US) * 1000
    return Call(step, slot, ns, (gap & _CALL_US) * 1000, peer, bool(end & 1), lead, bool(end >> _TOGETHER_SHIFT & 1))
