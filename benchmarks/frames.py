"""Measures what the watcher costs with and without the samples of Python frames, and that losses stay equal.

    python benchmarks/frames.py [--rounds N] [--steps N]

A loop with deep stacks sleeps and computes. Processes that sample take turns with processes that do not (A B A B ...).
This is not a test: nothing passes or fails.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile

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
[watcher] = [thread for thread in threading.enumerate() if thread.name == "whyidle-watcher"]
cpu = time.clock_gettime_ns((~watcher.native_id << 3) | 6)
print(loss.item().hex(), cpu / 1e9 / (time.monotonic() - begun))
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="pairs of processes (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=1500, help="steps of each process (default: %(default)s)")
    arguments = parser.parse_args()
    shares: dict[str, list[float]] = {"1": [], "0": []}
    losses = set()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(2 * arguments.rounds):
            frames = "1" if number % 2 == 0 else "0"
            env = {**os.environ, "WHYIDLE_DIR": folder, "WHYIDLE_FRAMES": frames}
            words = [sys.executable, "-c", LOOP, str(arguments.steps)]
            loss, share = subprocess.run(words, env=env, check=True, capture_output=True, text=True).stdout.split()
            losses.add(loss)
            shares[frames].append(100 * float(share))
    for frames, found in shares.items():
        print(f"{'with' if frames == '1' else 'without'} frames: {statistics.median(found):.3f} % of a core (median)")
    more = statistics.median(shares["1"]) - statistics.median(shares["0"])
    print(f"frames cost {more:.3f} % of a core; losses {'equal' if len(losses) == 1 else 'DIFFER'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
