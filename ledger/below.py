"""What looks at the training thread say of the functions that it is in: the words for it in a ledger.

All tuples: only append, and raise :data:`layout.VERSION`.
"""

from __future__ import annotations

TESTING = "testing"
BELOW: tuple[str, ...] = ("data", "logging", "saving", "acting", TESTING)
"""What a loop does in functions of known names: it makes or awaits a batch, it is in a logger or a callback, it saves
in a way that no hook knows, it collects experience from environments, or it evaluates in them."""
OPTIMIZER = "torch.optim"
"""The library of a place at which an optimizer of torch launched operations."""
COPY = "torch.Tensor.to"
"""That of a place at which the host itself copied or converted a tensor."""
STATES: tuple[str, ...] = ("blocked", "host", "work")
"""How a look counts: the thread of a CPU rank was blocked; the phase was `host`; it was on a CPU in other phases, or
the device was idle in them."""
BLOCKERS: tuple[str, ...] = (
    "files",
    "a pipe",
    "a socket",
    "a queue or a lock",
    "a sleep",
    "a subprocess",
    "other calls",
)
"""What it was blocked on."""

BELOW_WORDS: dict[str, int] = {
    **{f"{kind}_looks": len(STATES) for kind in BELOW},  # looks that found the loop's own code below such functions
    **{f"{kind}_looked_ns": len(STATES) for kind in BELOW},  # for how long these stand
    **{f"{kind}_blocked_on": len(BLOCKERS) for kind in BELOW},  # the blocked ones
    # Looks that found a CPU rank on a CPU in its work phases, or a device idle in them; below any function.
    "work_looks": 1,
    "work_looked_ns": 1,  # for how long they stand
}
BELOW_LABELS: tuple[str, ...] = tuple(f"{kind}_below" for kind in BELOW)
"""Strings: the function in which most of these looks found it, as `FILE:LINE FUNCTION`."""
