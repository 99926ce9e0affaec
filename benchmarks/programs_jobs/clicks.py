"""Click prediction: embeddings of categories, batches from a generator over log files, DistributedDataParallel."""

import told
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

READ, LATE, STEPS = told.number("read_ms", 0) / 1000, told.number("late_ms", 0) / 1000, int(told.number("steps", 100))
torch.set_num_threads(1)
distributed.init_process_group("gloo")
RANK = distributed.get_rank()
torch.manual_seed(0)


class Clicks(nn.Module):
    def __init__(self):
        super().__init__()
        self.categories = nn.ModuleList(nn.EmbeddingBag(1000, 16) for _ in range(8))
        self.over = nn.Sequential(nn.Linear(8 * 16, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, ids):
        if RANK == 1:
            told.late_wait(LATE)
        return self.over(torch.cat([bag(one) for bag, one in zip(self.categories, ids, strict=True)], -1)).squeeze(-1)


def batches():
    made = torch.Generator().manual_seed(RANK)
    while True:
        told.injected_wait(READ)
        ids = [torch.randint(1000, (64, 3), generator=made) for _ in range(8)]
        yield ids, torch.randint(2, (64,), generator=made).float()


model = DistributedDataParallel(Clicks())
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
source = batches()
with told.training() as facts:
    for _ in range(STEPS):
        ids, clicked = next(source)
        loss = nn.functional.binary_cross_entropy_with_logits(model(ids), clicked)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    facts.update(steps=STEPS, weights=model.module.state_dict())
distributed.destroy_process_group()
