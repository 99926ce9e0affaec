"""One rank of all cases: `train.py RANK SIZE FOLDER [case ...]`. Writes the results on the device and on the CPU."""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path

SUPPORT = Path(__file__).parents[2]
sys.path.insert(0, str(SUPPORT))

import simdevice  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from simdevice.scripts import cases  # noqa: E402

TRANSFER_MS = 4.0


def main(rank: int, size: int, folder: Path, wanted: list[str]) -> None:
    torch.set_num_threads(1)
    simdevice.load()
    dist.init_process_group("cpu:gloo,sim:sim", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    simdevice.set_collective_time(TRANSFER_MS)
    for case in cases.OF_FOUR if size == 4 else cases.OF_TWO:
        if wanted and case.__name__ not in wanted:
            continue
        answer: dict[str, object] = {}
        try:
            torch.accelerator.synchronize()
            simdevice.clear_schedule()
            answer["sim"] = case("sim")
            torch.accelerator.synchronize()
            answer["schedule"] = simdevice.schedule()
            answer["home"] = torch.accelerator.current_stream().stream_id
            answer["cpu"] = case("cpu")
        except Exception:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)  # the other ranks' collectives, and this one's, would wait for each other
        (folder / f"{case.__name__}.{rank}.json").write_text(json.dumps(answer))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])
