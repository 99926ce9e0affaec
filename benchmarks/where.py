"""Measures what the watcher costs with and without the looks at mounts, and that losses stay equal.

    python benchmarks/where.py [--rounds N] [--files N] [--workers N]

Needs root. A loop waits for files on a disk of 4 MiB/s all the time. Processes that look take turns with processes that
do not (A B A B ...). This is not a test: nothing passes or fails.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))
from slow_mounts import forget, missing, throttled
from watcher_cost import TOLD, compare

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
    with tempfile.TemporaryDirectory() as folder, throttled(Path(folder, "slow"), RATE) as slow:
        for number in range(arguments.files):
            (slow.point / f"{number:04}.bin").write_bytes(os.urandom(1 << 20))

        def words() -> list[str]:
            forget(slow.point)
            return [*slow.inside, sys.executable, "-c", LOOP + TOLD, str(slow.point), str(arguments.workers)]

        compare("looks", "WHYIDLE_WHERE", arguments.rounds, f"{folder}/ledgers", words)
    return 0


if __name__ == "__main__":
    sys.exit(main())
