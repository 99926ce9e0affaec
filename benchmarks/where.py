"""Measures what the watcher costs with and without the looks at mounts, and that losses stay equal.

    python benchmarks/where.py [--rounds N] [--files N] [--workers N]

Needs root. A loop waits for files on a disk of 4 MiB/s all the time. Processes that look take turns with processes that
do not (A B A B ...). This is not a test: nothing passes or fails.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))
from slow_mounts import forget, missing, throttled

LOOP = """
import os, sys, threading, time, torch, whyidle
whyidle.attach()
torch.set_num_threads(1)
torch.manual_seed(0)
class Files(torch.utils.data.Dataset):
    paths = sorted(os.path.join(sys.argv[1], name) for name in os.listdir(sys.argv[1]) if name.endswith(".bin"))
    def __len__(self):
        return len(self.paths)
    def __getitem__(self, index):
        with open(self.paths[index], "rb") as file:
            return torch.full((8,), file.read()[0] / 255)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
begun = time.monotonic()
for batch in torch.utils.data.DataLoader(Files(), 1, num_workers=int(sys.argv[2])):
    loss = model(batch).square().mean()
    loss.backward(); optimizer.step(); optimizer.zero_grad()
[watcher] = [thread for thread in threading.enumerate() if thread.name == "whyidle-watcher"]
cpu = time.clock_gettime_ns((~watcher.native_id << 3) | 6)
print(loss.item().hex(), cpu / 1e9 / (time.monotonic() - begun))
"""
RATE = 4 << 20


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="pairs of processes (default: %(default)s)")
    parser.add_argument("--files", type=int, default=200, help="files of 1 MiB (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=4, help="of the data loader (default: %(default)s)")
    arguments = parser.parse_args()
    if lacking := missing():
        print(lacking, file=sys.stderr)
        return 1
    shares: dict[str, list[float]] = {"1": [], "0": []}
    losses = set()
    with tempfile.TemporaryDirectory() as folder, throttled(Path(folder, "slow"), RATE) as slow:
        for number in range(arguments.files):
            (slow.point / f"{number:04}.bin").write_bytes(os.urandom(1 << 20))
        for number in range(2 * arguments.rounds):
            forget(slow.point)
            where = "1" if number % 2 == 0 else "0"
            env = {**os.environ, "WHYIDLE_DIR": f"{folder}/ledgers", "WHYIDLE_WHERE": where}
            words = [*slow.inside, sys.executable, "-c", LOOP, str(slow.point), str(arguments.workers)]
            loss, share = subprocess.run(words, env=env, check=True, capture_output=True, text=True).stdout.split()
            losses.add(loss)
            shares[where].append(100 * float(share))
    for where, found in shares.items():
        print(f"{'with' if where == '1' else 'without'} looks: {statistics.median(found):.3f} % of a core (median)")
    more = statistics.median(shares["1"]) - statistics.median(shares["0"])
    print(f"looks cost {more:.3f} % of a core; losses {'equal' if len(losses) == 1 else 'DIFFER'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
