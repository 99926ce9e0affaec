"""Programs that do with torch's functions what few programs do: they behave as without whyidle."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support_long import long_unless
from support_sites import clean_env

from whyidle.torch_hooks.patching import NothingToHook, Patches

BEGIN = """
import torch, whyidle
whyidle.attach()
model, weights = torch.nn.Linear(4, 4), "weights.pt"
optimizer = torch.optim.SGD(model.parameters(), 0.1)
def step():
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
for _ in range(5):
    step()
"""
PROGRAMS = {
    "functions of torch are pickled": """
import pickle
for function in (torch.load, torch.save, torch.serialization.load, torch.cuda.empty_cache):
    assert pickle.loads(pickle.dumps(function)) is function
assert torch.load is torch.serialization.load
import torch.distributed.checkpoint as dcp
assert pickle.loads(pickle.dumps(dcp.async_save)) is dcp.async_save
""",
    "processes of a pool load": """
import concurrent.futures, multiprocessing
torch.save(model.state_dict(), weights)
with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
    assert list(pool.map(torch.load, [weights] * 2))[1].keys() == model.state_dict().keys()
""",
    "a function that saves is pickled under the name of another module": """
import pickle, sys, types
library = types.ModuleType("library")
exec("import torch\\ndef save_weights(state, path): torch.save(state, path)", vars(library))
library.save_weights.__module__ = "library"
sys.modules["library"] = library
save_weights = library.save_weights
for _ in range(3):
    step()
    save_weights(model.state_dict(), weights)
assert pickle.loads(pickle.dumps(save_weights)) is library.save_weights
""",
    "a coroutine that saves stays one": """
import asyncio, inspect
async def save_weights():
    torch.save(model.state_dict(), weights)
for _ in range(3):
    step()
    asyncio.run(save_weights())
assert inspect.iscoroutinefunction(save_weights)
""",
    "a process group of Python calls its base": """
import torch.distributed as dist
class Group(dist.ProcessGroup):
    calls = 0
    def allreduce(self, tensors, options):
        self.calls += 1
        return super().allreduce(tensors, options)
    def send(self, tensors, peer, tag):
        self.calls += 1
        return super().send(tensors, peer, tag)
group = Group(0, 1)
one = [torch.ones(1)]
for call in (lambda: group.allreduce(one, dist.AllreduceOptions()), lambda: group.send(one, 0, 0)):
    try:
        call()
    except RecursionError:
        raise SystemExit("it calls itself")
    except RuntimeError:
        pass  # it has no backend
assert group.calls == 2
""",
    "a model takes any name": """
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)
    def forward(self, x, module, group="a", iterator="b"):
        return self.inner(x)
ddp = torch.nn.parallel.DistributedDataParallel(Model())
ddp(torch.ones(2, 4), module="text", group="c", iterator="d").sum().backward()
""",
    "an environment forbids changes of its class": """
import sys, types
core = types.ModuleType("gymnasium.core")
class Env:
    def reset(self, *, seed=None, options=None): return 0, {}
core.Env = Env
sys.modules["gymnasium"], sys.modules["gymnasium.core"] = types.ModuleType("gymnasium"), core
from whyidle.torch_hooks.hooks import environments
from whyidle.torch_hooks.patching import Patches
from whyidle.torch_hooks import attach
environments.install(attach._session, Patches())
class Fixed(type):
    def __setattr__(cls, name, value): raise AttributeError("fixed")
class Own(Env, metaclass=Fixed):
    def step(self, action): return 0, 0.0, False, False, {}
    def reset(self, *, seed=None, options=None): return super().reset(seed=seed)
assert Own().reset() == (0, {})
""",
    "an object holds a function that saves": """
import pickle
def save_weights(state):
    torch.save(state, weights)
class Trainer:
    def __init__(self, save): self.save = save
trainer = Trainer(save_weights)
for _ in range(3):
    step()
    save_weights(model.state_dict())
assert pickle.loads(pickle.dumps(trainer)).save is save_weights
""",
    "an environment has its step from one of two bases": """
import sys, types
core = types.ModuleType("gymnasium.core")
class Env:
    def reset(self): return 0, {}
core.Env = Env
sys.modules["gymnasium"], sys.modules["gymnasium.core"] = types.ModuleType("gymnasium"), core
from whyidle.torch_hooks.hooks import environments
from whyidle.torch_hooks.patching import Patches
from whyidle.torch_hooks import attach
environments.install(attach._session, Patches())
class Base(Env):
    def step(self): return 1.0
class Double(Base):
    def step(self): return 2 * super().step()
class One(Base): pass
class Both(One, Double): pass
One().reset()
assert "step" not in vars(One) and Both().step() == 2.0
""",
    "what the hooks refer to is copied with functions of the program": """
import pickle
from whyidle.torch_hooks import attach
assert pickle.loads(pickle.dumps(attach._session)) is attach._session
class Trainer:
    def save_checkpoint(self): torch.save(model.state_dict(), weights)
for _ in range(3):
    step()
    Trainer().save_checkpoint()
assert attach._session in [cell.cell_contents for cell in Trainer.save_checkpoint.__closure__]
""",
    "tasks that failed die with their futures": """
import gc, weakref
from concurrent.futures import ThreadPoolExecutor
gc.disable()
alive = weakref.WeakSet()
def fails():
    kept = torch.ones(3)
    alive.add(kept)
    raise ValueError("failed")
with ThreadPoolExecutor(1) as pool:
    for _ in range(5):
        try: pool.submit(fails).result()
        except ValueError: pass
    pool.submit(int).result()
assert len(alive) == 0
""",
    "a compiled optimizer steps without a backward pass": """
import torch._dynamo
from torch._dynamo.utils import counters
@torch.compile(backend="eager")
def compiled(): optimizer.step()
seen = []
for number in range(10):
    for one in model.parameters(): one.grad = torch.ones_like(one)
    compiled()
    seen.append(counters["frames"]["total"])
assert seen[-1] == seen[3], seen
""",
    "the future of a save dies with its last user": """
import gc, os, weakref
import torch.distributed as dist, torch.distributed.checkpoint as dcp
gc.disable()
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
future = dcp.async_save({"model": model.state_dict()}, checkpoint_id="saved")
gone = weakref.ref(future)
future.result()
assert os.path.exists("saved")
import time
for _ in range(100):
    if "result" not in vars(future): break
    time.sleep(0.01)
assert "result" not in vars(future)
""",
}


def test_a_class_that_forbids_changes_stays_unchanged() -> None:
    """As for all hooks that patch the classes of a program's objects."""

    class Fixed(type):
        def __setattr__(cls, name: str, value: object) -> None:
            raise ValueError("fixed")

    class Own(metaclass=Fixed):
        def step(self) -> int:
            return 1

    with pytest.raises(NothingToHook, match=r"Own\.step"):
        Patches().replace(Own, "step", lambda original: original)
    assert Own().step() == 1


@pytest.mark.parametrize("program", long_unless([*PROGRAMS.values()][::2], PROGRAMS.values()), ids=PROGRAMS)
def test_behaves_as_without_whyidle(program: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(BEGIN + program + '\nprint("done")\n')
    env = clean_env(WHYIDLE_DIR=str(tmp_path / "ledgers"))
    done = subprocess.run([sys.executable, script], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
