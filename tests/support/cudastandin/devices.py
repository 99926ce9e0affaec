"""A training that uses some of two visible devices in one process: `devices.py LOOP FOLDER SECONDS`."""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import torch.distributed as dist
from torch import nn

from cudastandin.plan import Plan
from cudastandin.shapes import WIDTH, blocks

BATCH = 8
Step = Callable[[], object]


def _stepper(model: nn.Module, device: str, *, reads: bool = False) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def step() -> None:
        loss = model(torch.ones(BATCH, WIDTH).to(device)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if reads:
            loss.item()

    return step


def on_the_cpu() -> Step:
    return _stepper(nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4))), "cpu")


def on_the_cpu_by_choice() -> Step:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    return on_the_cpu()


def asks_for_names() -> Step:
    """A device has a context, because somebody has put a tensor there, and the training is on the CPU."""
    torch.ones(1).to("cuda:0")
    return on_the_cpu()


def one_of_two() -> Step:
    return _stepper(blocks(Plan("single")).to("cuda:0"), "cuda:0")


class Spread(nn.Module):
    """The layers of one model, half of them on each device."""

    def __init__(self) -> None:
        super().__init__()
        layers = blocks(Plan("single"))
        self.first, self.second = layers[:2].to("cuda:0"), layers[2:].to("cuda:1")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x).to("cuda:1")
        with torch.cuda.device(1):  # blocks keep the current device busy
            return self.second(x)


def layers_on_two() -> Step:
    return _stepper(Spread(), "cuda:0")


def layers_on_two_with_its_loss() -> Step:
    return _stepper(Spread(), "cuda:0", reads=True)


def both_at_once() -> Step:
    """Two models, each with its loss on its own device, as in a GAN that is spread over two."""
    steps = [_stepper(blocks(Plan("single")).to(device), device) for device in ("cuda:0", "cuda:1")]

    def step() -> None:
        for index, one in enumerate(steps):
            with torch.cuda.device(index):
                one()
        torch.cuda.synchronize(0)

    return step


def data_parallel() -> Step:
    """One process and one thread for each device. The gradients are added up on the first one."""
    model = nn.DataParallel(blocks(Plan("single", forward_ms=0.8)).to("cuda:0"), [0, 1])
    return _stepper(model, "cuda:0")


def ignores_its_local_rank() -> Step:
    """Each rank trains on the first device. NCCL refuses that, and gloo does not."""
    dist.init_process_group("gloo")
    return _stepper(nn.parallel.DistributedDataParallel(blocks(Plan("single")).to("cuda")), "cuda")


ACTIONS, ENVIRONMENT_SECONDS, POLICY_MS = 30, 0.004, 2.0
"""Steps of the environment before each update, what each takes on the CPU, and what the policy takes on the device."""


def acts() -> Step:
    """Collects experience: the policy on the device, the environment on the CPU. Then it learns three times."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "gymnasium").mkdir()
        Path(folder, "gymnasium", "core.py").write_text("class Env:\n    def reset(self, *, seed=None): pass\n")
        sys.path.insert(0, folder)
        core = importlib.import_module("gymnasium.core")
        sys.path.remove(folder)

    class Environment(core.Env):
        def step(self, action: torch.Tensor) -> torch.Tensor:
            time.sleep(ENVIRONMENT_SECONDS)
            return torch.ones(1, WIDTH)

    policy, environment = blocks(Plan("single", forward_ms=POLICY_MS / 4)).to("cuda:0"), Environment()
    learn = _stepper(policy, "cuda:0")
    environment.reset()

    def step() -> None:
        seen = torch.ones(1, WIDTH)
        for _ in range(ACTIONS):
            with torch.no_grad():
                action = policy(seen.to("cuda:0")).cpu()
            seen = environment.step(action)
        for _ in range(3):
            learn()

    return step


def empties_its_cache() -> Step:
    inner = one_of_two()

    def step() -> None:
        inner()
        torch.cuda.empty_cache()

    return step


def runs_short_of_memory() -> Step:
    """A tensor that grows: the cached memory of the last one is too small, and both do not fit at the same time."""
    inner, sizes = one_of_two(), iter(range(4200 << 20, 7 << 30, 4 << 20))

    def step() -> None:
        inner()
        torch.empty(next(sizes, 4 << 30), dtype=torch.uint8, device="cuda:0")

    return step


LOOPS: dict[str, Callable[[], Step]] = {
    each.__name__: each
    for each in (
        *(on_the_cpu, on_the_cpu_by_choice, asks_for_names),
        *(one_of_two, layers_on_two, layers_on_two_with_its_loss, both_at_once),
        *(data_parallel, ignores_its_local_rank, acts, empties_its_cache, runs_short_of_memory),
    )
}


def _goes_on(here: bool) -> bool:
    """Rank 0 decides for all ranks."""
    if not dist.is_initialized():
        return here
    decided = torch.tensor([int(here)])
    dist.broadcast(decided, 0)
    return bool(decided.item())


def main(loop: str, folder: Path, seconds: float) -> None:
    torch.set_num_threads(1)
    torch.ops.load_library(str(Path(torch.__file__).with_name("lib") / "libstandin_values.so"))
    step = LOOPS[loop]()
    step()
    begun, steps = time.monotonic_ns(), 0
    while _goes_on(time.monotonic_ns() - begun < 1e9 * seconds):
        step()
        steps += 1
    told = {"begun": begun, "ended": time.monotonic_ns(), "steps": steps}
    (folder / "told.json").write_text(json.dumps(told))
    if dist.is_initialized():
        # gloo's thread frees its last work with a lock held, and needs Python's. A rank that frees the group meanwhile
        # holds that one and waits for the other, for ever: without whyidle in 10 of 25 runs.
        time.sleep(0.2)
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]))
