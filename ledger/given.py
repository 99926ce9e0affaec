"""What a rank was given and what it uses: CPUs, memory, threads. Its words and strings in the ledger."""

from __future__ import annotations

MEMORY_OF: tuple[str, ...] = ("", "node", "group", "above")
"""Values of `memory_of`, by index: whose memory it is. That is the node, the rank's control group or a group above it:
the one that is nearest to its limit. Empty: not known."""

GIVEN_WORDS: dict[str, int] = {
    # The working set: without file cache, which the kernel takes back when memory is short.
    "memory_used_bytes": 1,
    "memory_limit_bytes": 1,
    "memory_peak_bytes": 1,  # the largest `memory_used_bytes` that was seen of this group, or node
    "memory_at_ns": 1,  # CLOCK_MONOTONIC when these were read; 0: never
    "memory_of": 1,  # index into MEMORY_OF
}
