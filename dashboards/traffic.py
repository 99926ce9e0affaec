"""Traffic between GPUs beside traffic of storage, on the same adapters."""

from __future__ import annotations

from ..alerts.recording.names import COLLISION, TRAFFIC_SHARE
from .colours import BLUE, ORANGE, RED
from .variables import SETTINGS
from .vocabulary import Panel, over_range, query, trend, worst

MOST = 6
"""The most adapters of each kind of traffic."""
BETWEEN, STORAGE, BOTH = "between GPUs", "storage", "both at once"


def collide(matchers: str, whose: str) -> Panel:
    """``matchers``: of the nodes. ``whose``: what the lines are about, for the description."""
    return trend(
        "GPU and storage traffic: do they collide?",
        f"""How much of an adapter's speed goes to traffic between GPUs, and how much to storage: {whose}, in the
        direction that carries more. An interface and the RDMA port on its wire are one adapter. A red line means that
        they collide: both took at least {SETTINGS.collision_share} (1 is the whole speed) in the same direction and the
        same two minutes, and the line is the smaller share. Then give storage another adapter, or read and save when
        the GPUs compute. No red line: they do not collide. Storage is NFS and Lustre on the adapter to their server.
        If ranks were blocked at an object store or FUSE mount, it is also everything else on the adapters of that node,
        as an upper bound.""",
        *(
            query(_highest(f"{TRAFFIC_SHARE}{{{matchers}, {kind}}}"), f"{{{{adapter}}}}: {words}")
            for kind, words in (('traffic="gpu"', BETWEEN), ('traffic="storage"', STORAGE))
        ),
        query(_highest(f"{COLLISION}{{{matchers}}}"), f"{{{{adapter}}}}: {BOTH}"),
        unit="percentunit",
        width=24,
        colours={f"/: {BETWEEN}$/": BLUE, f"/: {STORAGE}$/": ORANGE, f"/: {BOTH}$/": RED},
        nothing="No adapter with a known speed carries traffic of GPUs or storage",
    )


def _highest(selector: str) -> str:
    """The adapters with the highest mean, each on the node on which it carries most."""
    shares = f"max by (adapter) ({selector})"
    return worst(shares, over_range(shares), "adapter", str(MOST))
