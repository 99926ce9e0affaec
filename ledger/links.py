"""The links that carry the transfers of a rank, and those beside them: their words and strings in the ledger.

The rank reads them itself, from inside its network namespace and without privileges.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

LINKS = 6
"""How many links a ledger has: those that carry transfers, then the fastest. A link keeps its index."""
LINK_LABELS: tuple[str, ...] = tuple(f"link{index}" for index in range(LINKS))
"""The strings `KIND NAME ADDRESS`. KIND: one of KINDS. ADDRESS: with the length of the prefix (`10.0.0.1/24`), or `-`.
The string of an unused link is empty."""
KINDS: tuple[str, ...] = ("tcp", "rdma", "node")
"""`tcp`: a network interface. `rdma`: a port of an adapter (`mlx5_0/1`). `node`: inside the node (loopback, shared
memory, NVLink, PCIe), named after what is known."""

SHAPERS: tuple[str, ...] = ("", "tbf", "htb", "hfsc", "cake", "fq", "netem", "police", "cbs")
"""What limits the rate of an interface below that of its hardware."""
RDMA_MISSING: tuple[str, ...] = (
    "NCCL_IB_DISABLE",  # it is set
    "NCCL_NET",  # it chooses another transport
    "NCCL_IB_HCA",  # no active port fits it
    "devices",  # no /dev/infiniband in the container
    "memlock",  # the limit of locked memory is too low
    "libibverbs",  # the library is not installed
    "port",  # ports are there, but down
    "gpudirect",  # no module lets the adapter read the GPU's memory
    "backend",  # the group's backend (gloo) cannot use it
)
"""Why RDMA is not used although the node has adapters. The bits of `rdma_missing`."""

LINK_WORDS: dict[str, int] = {
    "link_up": LINKS,  # 1: up; 0: down, or not known
    "link_speed": LINKS,  # bits a second, of the hardware; 0: not known
    "link_limit": LINKS,  # bits a second, of a shaper; 0: none known
    "link_limit_by": LINKS,  # index into SHAPERS
    "link_mtu": LINKS,  # bytes; 0: not known
    "link_nodes": LINKS,  # nodes of the run that told to have a link in the same network; 0: not known
    "link_all": LINKS,  # bytes that anybody moved over it, both directions, since window_ns
    # The connections of the rank's communication on it. Of an RDMA port only their number (queue pairs) is known.
    "link_sent": LINKS,  # bytes
    "link_received": LINKS,
    "link_connections": LINKS,
    "link_busy_ns": LINKS,  # of the busiest connection: something was sent and not yet acknowledged
    "link_window_ns": LINKS,  # part of it: the receiver's window was full
    "link_buffer_ns": LINKS,  # part of it: the send buffer was full
    "link_segments": LINKS,  # sent, with data, including those sent again
    "link_resent": LINKS,  # segments sent again
    "link_trip_ns": LINKS,  # the last smoothed round-trip time, of the connection that sends most
    "link_least_trip_ns": LINKS,
    # Looks in waits for collectives, without the time in which nothing was to be sent. On an accelerator, whose host
    # does not wait with it: all transfers.
    "link_wait_bytes": LINKS,  # payload, the larger direction
    "link_wait_ns": LINKS,
    "link_best": LINKS,  # the highest rate over two seconds and more, bits a second; of an RDMA port, by anybody
}


@dataclass(frozen=True, slots=True)
class Link:
    """One link of a rank."""

    index: int
    kind: str
    name: str
    address: str
    """With the length of the prefix; empty if it has none."""
    words: Mapping[str, int]
    """The link's words, without `link_` in the name."""

    @property
    def carried(self) -> int:
        """Bytes that the rank's communication moved over it. An RDMA port has what anybody moved over it, because only
        the number of the rank's queue pairs is known."""
        return self.sent + self.received or (self.all if self.kind == "rdma" and self.connections else 0)

    def __getattr__(self, name: str) -> int:
        try:
            return self.words[name]
        except KeyError:
            raise AttributeError(name) from None


def link_text(kind: str, name: str, address: str) -> str:
    return f"{kind} {name} {address or '-'}"


def link_at(index: int, text: str, words: Mapping[str, tuple[int, ...]]) -> Link | None:
    """None if the link is not used."""
    if not text:
        return None
    kind, name, address = [*text.split(" "), "", ""][:3]
    own = {key.removeprefix("link_"): words[key][index] for key in LINK_WORDS}
    return Link(index, kind, name, "" if address == "-" else address, own)
