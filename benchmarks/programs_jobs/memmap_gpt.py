"""A small GPT that takes its batches from a memory-mapped file, as nanoGPT does."""

import numpy
import told
import torch
from torch import nn

READ, STEPS, EVERY, TESTED = told.number("read_ms", 0) / 1000, int(told.number("steps", 200)), 50, 10
BLOCK, BATCH, WIDTH = 64, 12, 128
torch.manual_seed(0)
torch.set_num_threads(1)
numpy.random.default_rng(0).integers(0, 65, 1_000_000).astype("uint16").tofile(told.FOLDER / "train.bin")


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(65, WIDTH), nn.Embedding(BLOCK, WIDTH)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.0, batch_first=True) for _ in range(4)
        )
        self.head = nn.Linear(WIDTH, 65)

    def forward(self, tokens, targets):
        hidden = self.tokens(tokens) + self.places(torch.arange(BLOCK))
        mask = nn.Transformer.generate_square_subsequent_mask(BLOCK)
        for block in self.blocks:
            hidden = block(hidden, src_mask=mask, is_causal=True)
        return nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), targets.flatten())


def get_batch():
    told.injected_wait(READ)
    data = numpy.memmap(told.FOLDER / "train.bin", dtype=numpy.uint16, mode="r")
    begins = torch.randint(len(data) - BLOCK - 1, (BATCH,)).tolist()
    rows = torch.stack([torch.from_numpy(data[i : i + BLOCK + 1].astype(numpy.int64)) for i in begins])
    return rows[:, :-1], rows[:, 1:]


@torch.no_grad()
def estimate_loss(model):
    model.eval()
    losses = [model(*get_batch()).item() for _ in range(TESTED)]
    model.train()
    return sum(losses) / TESTED


def save_checkpoint(model, optimizer):
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, told.FOLDER / "ckpt.pt")


model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
batch = get_batch()
with told.training() as facts:
    for step in range(1, STEPS + 1):
        for _ in range(2):
            loss = model(*batch) / 2
            batch = get_batch()
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % EVERY == 0:
            print(step, estimate_loss(model))
            save_checkpoint(model, optimizer)
    saves = STEPS // EVERY
    facts.update(steps=STEPS, saves=saves, bytes=saves * (told.FOLDER / "ckpt.pt").stat().st_size)
    facts["weights"] = model.state_dict()
