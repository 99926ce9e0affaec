"""Reads a ledger repeatedly until stdin ends, and prints the result. Runs as a separate process, without torch."""

from __future__ import annotations

import json
import sys
import threading
import time

from whyidle.ledger.reader import LedgerError, read_ledger


def main(path: str) -> None:
    done = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), done.set()), daemon=True).start()
    print("reading", flush=True)
    reads = torn = 0
    longest = 0.0
    while not done.is_set():
        begun = time.perf_counter()
        try:
            read_ledger(path)
        except LedgerError as error:
            torn += error.reason == "torn"
        reads += 1
        longest = max(longest, time.perf_counter() - begun)
        time.sleep(0.0005)
    print(json.dumps({"reads": reads, "torn": torn, "longest_ms": 1e3 * longest}))


if __name__ == "__main__":
    main(sys.argv[1])
