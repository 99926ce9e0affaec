"""Measures what the watcher costs with and without some of its looks, and that losses stay equal.

    python benchmarks/frames.py [--of frames|background] [--rounds N] [--steps N]

A loop with deep stacks sleeps and computes. Processes with the looks take turns with processes without (A B A B ...).
This is not a test: nothing passes or fails.
"""

from __future__ import annotations

import argparse
import sys
import tempfile

from watcher_cost import TOLD, compare

LOOP = """
import sys, threading, time, torch, whyidle
whyidle.attach()
torch.set_num_threads(1)
torch.manual_seed(0)
def deep(n):
    if n:
        return deep(n - 1)
    time.sleep(0.005)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
data = torch.utils.data.TensorDataset(torch.randn(1 << 16, 64))
begun, steps = time.monotonic(), 0
for (batch,) in torch.utils.data.DataLoader(data, 8):
    loss = model(batch).square().mean()
    loss.backward(); optimizer.step(); optimizer.zero_grad()
    deep(20)
    steps += 1
    if steps == int(sys.argv[1]):
        break
"""

SWITCHES = {"frames": "WHYIDLE_FRAMES", "background": "WHYIDLE_BACKGROUND"}
"""What is looked at -> the variable that switches it off."""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--of", choices=SWITCHES, default="frames", help="the looks (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="pairs of processes (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=1500, help="steps of each process (default: %(default)s)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-c", LOOP + TOLD, str(arguments.steps)]
        compare(arguments.of, SWITCHES[arguments.of], arguments.rounds, folder, lambda: words)
    return 0


if __name__ == "__main__":
    sys.exit(main())
