"""Compares what the device does in one process with what it should do: `checks.py [name ...]` prints {name: error or
null}.

It runs in a separate process, because torch cannot unload the device.
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path

SUPPORT = Path(__file__).parents[2]
sys.path.insert(0, str(SUPPORT))

import simdevice  # noqa: E402
import torch  # noqa: E402
from simdevice.scripts import of_device, of_torch  # noqa: E402


def main(wanted: list[str]) -> None:
    torch.set_num_threads(1)
    simdevice.load()
    results = {}
    for name, check in [*vars(of_device).items(), *vars(of_torch).items()]:
        if not name.startswith("check_") or (wanted and name not in wanted):
            continue
        torch.accelerator.synchronize()
        simdevice.set_queue_limit(1024)
        simdevice.release_gil_when_full(False)
        simdevice.clear_schedule()
        simdevice.reset_counters()
        try:
            check()
            results[name] = None
        except Exception:
            results[name] = traceback.format_exc()
    print(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1:])
