"""A program that parses its own options, and whose loop a framework runs: a few steps."""

from __future__ import annotations

import argparse
import gc
import sys
import types

import torch

parser = argparse.ArgumentParser()
parser.add_argument("-j", "--loader-workers", type=int, default=0)
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--log-interval", type=int, default=10)
parser.add_argument("--secret", default="")
parser.add_argument("--epochs", type=int, default=0)
parser.add_argument("--keep", action="store_true")
parser.add_argument("--stream", action="store_true", help="read an IterableDataset, and freeze all objects")
parser.add_argument("keys", nargs="*")


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter([torch.ones(4)] * 8)


TRAINER = """
def fit(steps):
    for _ in range(steps):
        step()
"""


def main() -> None:
    args = parser.parse_args()
    trainer = types.ModuleType("lightning.pytorch.loops")
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).sum()
        loss.backward()
        optimizer.step()
        print(loss.item())

    vars(trainer)["step"] = step
    exec(TRAINER, vars(trainer))
    sys.modules["lightning"] = sys.modules["lightning.pytorch.loops"] = trainer
    (gc.freeze if args.stream else gc.unfreeze)()  # what starts this process may have frozen objects
    if args.epochs:
        train, held_out = (
            torch.utils.data.DataLoader(
                Stream() if args.stream else [torch.ones(4)] * 8,
                batch_size=2,
                num_workers=args.loader_workers,
                persistent_workers=args.keep,
            )
            for _ in range(2)
        )
        for _ in range(args.epochs):
            for _ in train:
                step()
            with torch.no_grad():
                for batch in held_out:
                    model(batch)
            gc.collect()
    elif args.secret == "by hand":
        for _ in range(3):
            step()
    else:
        trainer.fit(3)


main()
