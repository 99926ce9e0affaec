"""The demo's training job as TraceML or torch.profiler watch it: `accuracy_peer_job.py TOOL FOLDER ARGUMENT…`.

TraceML gets the lines that its documentation asks for in a loop of one's own: `init`, and `trace_step` around what is
between the delivery of a batch and the end of the optimizer's step. torch.profiler records the whole training.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cli" / "demo"))

import job  # pyright: ignore[reportMissingImports] - the demo's, which is a script
import torch
from torch.profiler import ProfilerActivity, profile


def with_traceml(_: Path) -> None:
    import traceml_ai as traceml  # pyright: ignore[reportMissingImports] - in an environment of its own

    traceml.init(mode="auto")
    step, models = contextlib.ExitStack(), []
    batches_of, wrap, update = job.endless, job.DistributedDataParallel, torch.optim.AdamW.step

    def endless(*arguments: Any) -> Iterator[Any]:
        for batch in batches_of(*arguments):
            step.enter_context(traceml.trace_step(models[0]))
            yield batch

    def distributed(*arguments: Any, **options: Any) -> Any:
        models.append(wrap(*arguments, **options))
        return models[0]

    def updated(*arguments: Any, **options: Any) -> Any:
        found = update(*arguments, **options)
        step.close()
        return found

    job.endless, job.DistributedDataParallel = endless, distributed
    torch.optim.AdamW.step = updated
    job.main()


def with_profiler(folder: Path) -> None:
    train = job.train

    def profiled(*arguments: Any) -> None:
        with profile(activities=[ProfilerActivity.CPU]) as recorded:
            train(*arguments)
        spans = [(one.time_range.start, one.time_range.end) for one in recorded.events() or [] if on_device(one)]
        folder.joinpath(f"idle-{os.environ['RANK']}.json").write_text(json.dumps(idle(spans)))

    job.train = profiled
    job.main()


def on_device(event: Any) -> bool:
    """Whether the device does this: on a CPU rank each operator and each collective, but no annotation."""
    return not event.is_user_annotation and not event.name.startswith(("enumerate(", "Optimizer.", "ProfilerStep"))


def idle(spans: list[tuple[float, float]]) -> tuple[float, float]:
    """Idle time and the whole time, by the definition of HTA: the whole is from the start of the first operation to the
    end of the last, and the idle time is what no operation covers."""
    at, covered = min(start for start, _ in spans), 0.0
    begun = at
    for start, end in sorted(spans):
        covered += max(0.0, end - max(start, at))
        at = max(at, end)
    return at - begun - covered, at - begun


if __name__ == "__main__":
    tool, place = sys.argv[1], Path(sys.argv[2])
    del sys.argv[1:3]
    {"traceml": with_traceml, "profiler": with_profiler}[tool](place)
