"""What the watcher's thread costs with and without some of its looks: for frames.py and where.py."""

from __future__ import annotations

import os
import statistics
import subprocess
from collections.abc import Callable, Sequence

TOLD = """
[watcher] = [thread for thread in threading.enumerate() if thread.name == "whyidle-watcher"]
cpu = time.clock_gettime_ns((~watcher.native_id << 3) | 6)
print(loss.item().hex(), cpu / 1e9 / (time.monotonic() - begun))
"""
"""The end of a loop that has its last `loss` and knows when it has `begun`."""


def compare(what: str, switch: str, rounds: int, ledgers: str, words: Callable[[], Sequence[str]]) -> None:
    """Runs a loop with and without the looks in turn (A B A B ...), and prints the medians.

    ``switch``: the variable that switches the looks off if it is 0. ``words``: prepares a run and returns its command.
    """
    shares: dict[str, list[float]] = {"1": [], "0": []}
    losses = set()
    for on in ("1", "0") * rounds:
        env = {**os.environ, "WHYIDLE_DIR": ledgers, switch: on}
        loss, share = subprocess.run(words(), env=env, check=True, capture_output=True, text=True).stdout.split()
        losses.add(loss)
        shares[on].append(100 * float(share))
    for on, found in shares.items():
        print(f"{'with' if on == '1' else 'without'} {what}: {statistics.median(found):.3f} % of a core (median)")
    more = statistics.median(shares["1"]) - statistics.median(shares["0"])
    print(f"{what} cost {more:.3f} % of a core; losses {'equal' if len(losses) == 1 else 'DIFFER'}")
