"""A rank of `whyidle bench network` in a network namespace, as `ip netns exec` would start it; or torchrun."""

from __future__ import annotations

import ctypes
import os
import sys

_CLONE_NEWNET = 0x40000000


def enter(name: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(f"/run/netns/{name}", os.O_RDONLY)
    if libc.setns(descriptor, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), f"cannot enter {name}")
    os.close(descriptor)


if __name__ == "__main__":
    if namespace := os.environ.get("NAMESPACE"):
        enter(namespace)
    if os.environ.get("TORCHRUN"):
        from torch.distributed.run import main as torchrun

        sys.exit(torchrun(sys.argv[1:]))
    from whyidle.cli.main import main

    sys.exit(main(sys.argv[1:]))
