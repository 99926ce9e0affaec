"""DDP's other wait in C++: the broadcast of a model's buffers, in which rank 0 waits for a rank whose data is late."""

from __future__ import annotations

from pathlib import Path

from support_forks import Forks

from whyidle.ledger.layout import UNKNOWN_SLOT

SCRIPT = """
import time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 32
    def __getitem__(self, index):
        if dist.get_rank() == 1:
            time.sleep(0.1)
        return torch.ones(8)

torch.set_num_threads(1)
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 4096), torch.nn.BatchNorm1d(4096)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in DataLoader(Slow(), batch_size=2):
    model(batch + torch.randn(2, 8)).sum().backward()
    optimizer.step()
dist.destroy_process_group()
"""


def test_the_wait_in_a_buffer_broadcast_is_not_compute(tmp_path: Path, forks: Forks) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    outcome, codes = forks.run((str(script),), tmp_path, 2)
    assert codes == [0, 0], outcome.stderr
    first, second = sorted(outcome.ledgers, key=lambda ledger: ledger.rank)
    late = second.cause_ns["data_read"] / 1e9
    assert late >= 0.9 * 32 * 0.1
    (world,) = first.slots
    assert (world.label, world.size, world.pairwise) == ("world", 2, False)
    assert world.waited / 1e9 > 0.6 * late  # rank 0 computes meanwhile, for longer on a busier machine
    assert world.waited == world.network + world.straggler + world.pipeline + world.queue + world.unsplit
    # The script ends too early for most of its waits to be compared, but the verdict reads them in the ring of calls.
    meeting = first.words["slot_waited_ns"][UNKNOWN_SLOT]  # in init_process_group
    assert world.unsplit <= first.cause_ns["collective"] <= world.unsplit + meeting
    assert world.unsplit + world.straggler > 0.6 * world.waited
    assert world.bytes["broadcast"] >= 15 * 2 * 4096 * 4  # the mean and the variance, before each forward pass
