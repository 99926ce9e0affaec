"""Measures what the watcher costs with and without the samples of Python frames, and that losses stay equal.

    python benchmarks/frames.py [--rounds N] [--steps N]

A loop with deep stacks sleeps and computes. Processes that sample take turns with processes that do not (A B A B ...).
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


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="pairs of processes (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=1500, help="steps of each process (default: %(default)s)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-c", LOOP + TOLD, str(arguments.steps)]
        compare("frames", "WHYIDLE_FRAMES", arguments.rounds, folder, lambda: words)
    return 0


if __name__ == "__main__":
    sys.exit(main())
