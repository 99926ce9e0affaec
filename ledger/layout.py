"""Where everything stands in a ledger: one table, from which the writer and the reader take their offsets.

A ledger is a file of fixed size: little-endian, 8-byte aligned, signed 64-bit words and a few fixed strings.
The *head* (everything but the ring of steps) fits in one page, so that a scrape reads little.
"""

from __future__ import annotations

from .causes import CAUSES, CHECKPOINT_KINDS, COLLECTIVE_OPS, FAMILIES, HOOKS, STEP_BUCKETS_SECONDS

MAGIC = b"WHYIDLE\0"
VERSION = 2
SUFFIX = ".ledger"

_WORD = 8
RING_STEPS = 512
"""How many of the last steps the ring keeps; step n stands at (n - 1) % RING_STEPS."""

# name -> bytes. UTF-8, NUL-padded.
STRINGS: dict[str, int] = {"run": 128, "owner": 64, "node": 64, "device": 32, "uuid": 64}

GROUPS = 8
"""Process groups that a ledger tells apart."""
GROUP_LABELS: tuple[str, ...] = tuple(f"group{slot}" for slot in range(GROUPS))
"""The strings that name the group of each slot, such as `world` or `dp`; empty where a slot is not used."""
STRINGS |= dict.fromkeys(GROUP_LABELS, 32)

# name -> number of words
WORDS: dict[str, int] = {
    "size": 1,  # of the whole file, bytes
    "sequence": 1,  # the seqlock: odd while the writer is inside an update
    "rank": 1,
    "world_size": 1,
    "local_rank": 1,
    "device_index": 1,  # -1 on a rank without an accelerator
    "attempt": 1,
    "pid": 1,  # in the writer's own pid namespace
    "pid_start_ticks": 1,  # field 22 of /proc/<pid>/stat
    "created_unix_ns": 1,
    "start_ns": 1,  # CLOCK_MONOTONIC when the process started: the accounting begins here
    "ended": 1,  # 1 after a clean close
    "phase": 1,  # the open phase: index into PHASES
    "phase_since_ns": 1,  # CLOCK_MONOTONIC when it was entered
    "accounted_ns": 1,  # CLOCK_MONOTONIC up to which the causes account; 0: up to phase_since_ns. (CUDA lags behind)
    "window_ns": 1,  # CLOCK_MONOTONIC when the first step began; 0 before
    "cause_ns": len(CAUSES),
    "pending_ns": 1,  # waits in collectives that await their split into network and straggler
    "waited_ns": 1,  # all waits in collectives, split, unsplit or pending
    "window_cause_ns": len(CAUSES),  # cause_ns as it stood at window_ns
    "window_waited_ns": 1,
    "late_ns": len(FAMILIES),  # by what this rank was late, while others waited for it
    "late_steps": 1,  # steps in which it was the last to arrive
    "steps": 1,
    "base_step": 1,  # steps that earlier attempts had finished when this one's first step began
    "recompute_until": 1,  # steps up to this number repeat an earlier attempt's
    "checkpoint_step": 1,  # base_step + steps at the last finished save; -1 before
    "samples": 1,
    "batches": 1,
    "eval_batches": 1,
    "backwards": 1,
    "collectives": 1,  # waits entered
    "collective_calls": len(COLLECTIVE_OPS),
    "collective_bytes": len(COLLECTIVE_OPS),
    "checkpoints": len(CHECKPOINT_KINDS),
    "checkpoint_bytes": len(CHECKPOINT_KINDS),
    "step_buckets": len(STEP_BUCKETS_SECONDS) + 1,
    "step_ns": 1,  # sum of all step times
    "hook_states": len(HOOKS),
    "faults": 1,  # exceptions of our own that a hook swallowed
    "unmeasured": 1,  # device-clock boundaries that could not be recorded
    "waited_for_ns": len(FAMILIES),  # waits of the causes straggler and pipeline, by what made the others late
    "slot_network_ns": GROUPS,  # waits in each group's collectives, by their split
    "slot_straggler_ns": GROUPS,
    "slot_pipeline_ns": GROUPS,
    "slot_unsplit_ns": GROUPS,
    "slot_calls": GROUPS,
    "bubble_ns": 1,  # waits of the cause pipeline that the schedule itself costs, at least
}

STEP_WORDS = ("step", "end_ns", "wall_ns", "waited_ns", *CAUSES)
"""The words of one ring entry: `waited_ns` and the causes as they stood at its end (a copy costs the writer less than a
difference), so that a step is the difference of two entries. Its waits are Δ`waited_ns`: a split arrives later."""


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

HEAD_BYTES = 4096
assert _USED <= HEAD_BYTES
RING_AT = HEAD_BYTES // _WORD
LEDGER_BYTES = HEAD_BYTES + RING_STEPS * len(STEP_WORDS) * _WORD
