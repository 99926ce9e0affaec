"""A loop that needs more and more memory: `leak` or `jump`, in the `worker` of its loader, or in a `neighbour`."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset

HOW = sys.argv[1]
MIB = 1 << 20
EATS = f"import time\nkept = []\nfor _ in range(2000): kept.append(bytearray({MIB})); time.sleep(0.0005)"

CHOSEN = "open('/proc/self/oom_score_adj', 'w').write('1000')\n"
"""Otherwise the kernel may kill the larger one of the two, which is the rank."""


class Samples(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> torch.Tensor:
        if HOW == "worker" and index == 40:
            exec(EATS)
        return torch.ones(4)


if __name__ == "__main__":
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    kept = []
    for number, batch in enumerate(DataLoader(Samples(), 1, num_workers=int(HOW == "worker"))):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        time.sleep(0.05)
        if HOW == "leak":
            kept.append(torch.ones(MIB))
        if HOW == "jump" and number == 60:
            kept.append(torch.ones(1000 * MIB // 4))
        if HOW == "neighbour" and number == 40:
            assert subprocess.run([sys.executable, "-c", CHOSEN + EATS], check=False).returncode == -signal.SIGKILL
        if HOW == "neighbour" and number == 80:
            break
