"""FSDP2 training that uses whyidle with two calls: `attach`, and a phase for the evaluation, which no hook recognizes.

    torchrun --standalone --nproc-per-node 8 examples/train_fsdp2.py --checkpoint /scratch/checkpoint
    whyidle report

Runs on GPUs if there are any, otherwise on CPUs.
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import whyidle

WORDS, WIDTH, LENGTH = 512, 128, 64


class Model(nn.Module):
    """A small encoder that predicts the next word after each word."""

    def __init__(self, layers: int):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True) for _ in range(layers)
        )
        self.out = nn.Linear(WIDTH, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.embed(words)
        for layer in self.layers:
            x = layer(x)
        return self.out(x.flatten(0, 1))


def loss_of(model: nn.Module, words: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(words[:, :-1]), words[:, 1:].flatten())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=8, help="sequences of a rank's batch")
    parser.add_argument("--evaluate-every", type=int, default=100)
    parser.add_argument("--checkpoint", help="where to save the model at the end")
    args = parser.parse_args()

    whyidle.attach()
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    mesh = init_device_mesh(device.type, (int(os.environ["WORLD_SIZE"]),))

    torch.manual_seed(0)
    model = Model(layers=4).to(device)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)

    torch.manual_seed(dist.get_rank())
    for step in range(1, args.steps + 1):
        loss = loss_of(model, torch.randint(WORDS, (args.batch, LENGTH), device=device))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % args.evaluate_every == 0:
            with whyidle.phase("eval"), torch.no_grad():
                loss = loss_of(model, torch.randint(WORDS, (args.batch, LENGTH), device=device))
                dist.all_reduce(loss, dist.ReduceOp.AVG if cuda else dist.ReduceOp.SUM)
            if dist.get_rank() == 0:
                print(f"step {step} loss {loss.item() / (1 if cuda else dist.get_world_size()):.4f}", flush=True)
    if args.checkpoint:
        dcp.save({"model": get_model_state_dict(model)}, checkpoint_id=args.checkpoint)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
