"""What the jobs share: a clock, work on the CPU, and what each place gave by that clock. It does not use whyidle.

`done` writes ``$WHERE_DIR/truth-RANK.json``: how long the loop took, what it lost (name -> seconds), and for each place
the time during which somebody was blocked there, the bytes that came meanwhile, and the calls.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
FOLDER = Path(os.environ["WHERE_DIR"])

torch.set_num_threads(1)
torch.manual_seed(1)
now = time.perf_counter
lost: defaultdict[str, float] = defaultdict(float)
"""Name -> seconds."""
spans: defaultdict[str, list[tuple[float, float, float, float]]] = defaultdict(list)
"""Place -> (begin, end, bytes, calls) of each time that somebody was blocked there."""
_matrix = torch.randn(160, 160, generator=torch.Generator().manual_seed(1))


@contextmanager
def clock(name: str) -> Iterator[None]:
    since = now()
    try:
        yield
    finally:
        lost[name] += now() - since


def work(seconds: float) -> None:
    """Computes until this thread has used this CPU time."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        torch.mm(_matrix, _matrix)


def timed(loader: Iterable[Any]) -> Iterator[Any]:
    since = now()
    for batch in loader:
        lost["data"] += now() - since
        yield batch
        since = now()
    lost["data"] += now() - since


def model(width: int = 64) -> nn.Module:
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))


def done(begun: float, loss: torch.Tensor, **facts: Any) -> None:
    places = {place: _of_place(sorted(found)) for place, found in spans.items()}
    truth = {"rank": RANK, "wall": now() - begun, "lost": lost, "loss": float(loss.detach()).hex(), "places": places}
    whole = FOLDER / f"truth-{RANK}.new"
    whole.write_text(json.dumps(truth | facts))
    whole.rename(FOLDER / f"truth-{RANK}.json")


def _of_place(found: list[tuple[float, float, float, float]]) -> dict[str, float]:
    blocked, until = 0.0, 0.0
    for begin, end, _, _ in found:
        blocked += max(0.0, end - max(begin, until))
        until = max(until, end)
    return {"seconds": blocked, "bytes": sum(span[2] for span in found), "calls": sum(span[3] for span in found)}
