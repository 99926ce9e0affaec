"""The process that measures: `python -m whyidle.advisor.bench.storage.job`, with a task on its stdin.

The task is JSON: ``{"directories": […], "plan": {…}}``. The results go to stdout, one JSON object per line, with the
index of the directory in ``path``: ``{"path", "part", "done", "note"}`` during a part, then at its end ``{"path",
"part", "measures", "notes"}`` or ``{"path", "part", "error"}``. Each part runs in a separate process that is forked
from this one. So torch is imported only once, and with whyidle's hooks each part has a separate ledger, in the run
:func:`run_name`.
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
"""Part -> the function that measures it, in an empty directory."""

WITHOUT_TORCH = frozenset({"metadata", "tools"})

_SAY_EVERY_SECONDS = 0.1


def run_name(path: int, part: str) -> str:
    """The name of the run in the ledger of a part. ``path``: the index of the directory."""
    return f"bench-storage-{path}-{part}"


def main() -> int:
    task = json.load(sys.stdin)
    plan = Plan(**{**task["plan"], "parts": tuple(task["plan"]["parts"])})
    # Imported before the fork, once for all parts. Only the children compute, because threads do not survive a fork.
    if set(plan.parts) - WITHOUT_TORCH:
        import_module("torch")
    if "checkpoint" in plan.parts:
        import_module("torch.distributed.checkpoint")
    warnings.filterwarnings("ignore", category=UserWarning)  # DCP warns that there is no process group
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
    """Measures one part, in the forked process. Returns its exit status, which is 0 also if the part reported an
    error."""
    os.environ["WHYIDLE_RUN"] = run_name(path, part)
    place = os.path.join(directory, part)
    try:
        if part not in WITHOUT_TORCH:
            import torch

            # One thread, so that storage is measured and not how threads share the CPUs.
            torch.set_num_threads(1)
        os.mkdir(place)
        found = MEASURES[part](place, plan, _teller(path, part))
        shutil.rmtree(place)
        measures = [measure.entry() for measure in found if isinstance(measure, Measure)]
        notes = [sentence for sentence in found if isinstance(sentence, str)]
        _say(path=path, part=part, measures=measures, notes=notes)
    except BrokenPipeError:  # the command that started us is gone and cannot clean up
        shutil.rmtree(directory, ignore_errors=True)
        os._exit(1)
    except Exception as error:
        shutil.rmtree(place, ignore_errors=True)
        if not isinstance(error, (BenchError, OSError)):
            traceback.print_exc()
        _say(path=path, part=part, error=_sentence(error))
    return 0


def _sentence(error: Exception) -> str:
    """What went wrong. The error of a data worker has the worker's traceback, and its last line is the message."""
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
