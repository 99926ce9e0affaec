"""The process that measures: `python -m whyidle.advisor.bench.storage.job`, with a task on its stdin.

The task is JSON: ``{"directories": […], "plan": {…}}``. What it has to say goes to stdout, a JSON object a line, with
the number of the directory in ``path``: ``{"path", "part", "done", "note"}`` while it measures, then for each part
``{"path", "part", "measures", "notes"}`` or ``{"path", "part", "error"}``. Each part runs in a process of its own that
is forked from this one: so torch is imported once, and each part has a ledger of its own, in the run
:func:`run_name`, where whyidle's hooks are on.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

from . import checkpoint, dataset, metadata, shards, tools
from .plan import BenchError, Found, Measure, Plan, Tell

MEASURES: dict[str, Callable[[str, Plan, Tell], Found]] = {
    "load": dataset.measure_load,
    "samples": dataset.measure_samples,
    "replay": dataset.measure_replay,
    "shards": shards.measure,
    "metadata": metadata.measure,
    "checkpoint": checkpoint.measure,
    "tools": tools.measure,
}
"""Part -> what measures it, in a directory of its own."""

WITHOUT_TORCH = frozenset({"metadata", "tools"})

_SAY_EVERY_SECONDS = 0.1


def run_name(path: int, part: str) -> str:
    """Of the ledger that a part leaves."""
    return f"bench-storage-{path}-{part}"


def main() -> int:
    task = json.load(sys.stdin)
    plan = Plan(**{**task["plan"], "parts": tuple(task["plan"]["parts"])})
    # Before the fork, once for all parts. Only the children compute: threads do not survive a fork.
    if set(plan.parts) - WITHOUT_TORCH:
        import_module("torch")
    if "checkpoint" in plan.parts:
        import_module("torch.distributed.checkpoint")
    warnings.filterwarnings("ignore", category=UserWarning)  # that DCP saves without a process group
    for path, directory in enumerate(task["directories"]):
        for part in plan.parts:
            child = os.fork()
            if not child:
                return _measure(path, part, directory, plan)
            _, status = os.waitpid(child, 0)
            if status:
                code = os.waitstatus_to_exitcode(status)
                how = f"was killed by signal {-code}" if code < 0 else f"ended with status {code}"
                _say(path=path, part=part, error=f"the process that measures it {how}")
    return 0


def _measure(path: int, part: str, directory: str, plan: Plan) -> int:
    """In the forked process. Returns its exit status: 0 also where the part failed, and said so."""
    os.environ["WHYIDLE_RUN"] = run_name(path, part)
    place = os.path.join(directory, part)
    try:
        if part not in WITHOUT_TORCH:
            import torch

            # Storage is measured, and not how well many threads share the CPUs.
            torch.set_num_threads(1)
        os.mkdir(place)
        found = MEASURES[part](place, plan, _teller(path, part))
        shutil.rmtree(place)
        measures = [measure.entry() for measure in found if isinstance(measure, Measure)]
        notes = [sentence for sentence in found if isinstance(sentence, str)]
        _say(path=path, part=part, measures=measures, notes=notes)
    except BrokenPipeError:  # who started us is gone, and cannot clean up
        shutil.rmtree(directory, ignore_errors=True)
        os._exit(1)
    except Exception as error:
        shutil.rmtree(place, ignore_errors=True)
        if not isinstance(error, (BenchError, OSError)):
            traceback.print_exc()
        _say(path=path, part=part, error=_sentence(error))
    return 0


def _sentence(error: Exception) -> str:
    """What went wrong. A worker's error comes with the worker's traceback; its last line is the error."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    last = (str(error).strip().splitlines() or [""])[-1]
    return last or type(error).__name__


def _teller(path: int, part: str) -> Tell:
    said = [0.0]

    def tell(done: float, note: str) -> None:
        now = time.monotonic()
        if now >= said[0] + _SAY_EVERY_SECONDS:
            said[0] = now
            _say(path=path, part=part, done=done, note=note)

    return tell


def _say(**words: Any) -> None:
    print(json.dumps(words), flush=True)


if __name__ == "__main__":
    sys.exit(main())
