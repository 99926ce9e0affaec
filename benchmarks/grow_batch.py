"""What a batch that grows gives on a slow link, and what it costs: examples/adapt_batch.py with two ranks.

    python benchmarks/grow_batch.py                  # about 3 minutes; needs root, ip and tc; --json FILE

Each rank has its own network namespace. Their link carries --mbit. All ways train on the same samples.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ranks import PORT
from whatif_network import INTERFACE, address, missing, network, shaped

EXAMPLE = Path(__file__).parents[1] / "examples" / "adapt_batch.py"
_LINE = re.compile(r"batch (\d+) times (\d+) rate (\S+) seconds (\S+) of (\S+) held-out loss (\S+)")
WAYS = {"fixed": (), "linear": ("--grow", "linear"), "sqrt": ("--grow", "sqrt")}
LIMIT_SECONDS = 200


def train(names: Sequence[str], words: Sequence[str]) -> list[dict[str, float]]:
    """The lines that rank 0 prints, as numbers."""
    with tempfile.TemporaryDirectory() as folder:
        started = [
            subprocess.Popen(
                ["ip", "netns", "exec", name, sys.executable, str(EXAMPLE), *words],
                env={**os.environ, **_environment(rank, len(names)), "WHYIDLE_DIR": folder},
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank, name in enumerate(names)
        ]
        try:
            said = [one.communicate(timeout=LIMIT_SECONDS)[0] for one in started]
        finally:
            for one in started:
                one.kill()
    if any(one.returncode for one in started):
        raise SystemExit(f"a rank failed: {[one.returncode for one in started]}")
    keys = ("batch", "times", "rate", "seconds", "whole", "loss")
    return [dict(zip(keys, map(float, found), strict=True)) for found in _LINE.findall(said[0])]


def _environment(rank: int, ranks: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": "0",
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": address(0),
        "MASTER_PORT": str(PORT),
        "GLOO_SOCKET_IFNAME": INTERFACE,
        "OMP_NUM_THREADS": "1",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mbit", type=int, default=100)
    parser.add_argument("--batches", type=int, default=384)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    args = parser.parse_args()
    if lacking := missing():
        raise SystemExit(lacking)
    rows = {}
    with network(2) as names, shaped(names, args.mbit):
        for way in args.ways:
            rows[way] = lines = train(names, (*WAYS[way], "--batches", str(args.batches)))
            for line in lines:
                print(
                    f"{way:7} {line['batch']:4.0f} batches  {line['times']:2.0f} times  rate {line['rate']:.3f}"
                    f"  {line['whole']:6.1f} s  held-out loss {line['loss']:.4f}",
                    flush=True,
                )
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
