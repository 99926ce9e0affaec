"""Two kinds of traffic on the adapters of a node: between GPUs, and between GPUs and storage. Do they collide?

An adapter is a network interface together with the RDMA port on the same wire. A port without an interface is named
after its device. What is counted, in one direction:

- ``gpu``: over TCP, what the connections of ranks carry for their communication. Over RDMA, everything that is not
  storage, because only communication libraries and file systems use RDMA here.
- ``mount``: what the clients of NFS and Lustre move, on the adapter to which the route of their server leads.
- ``rest``: everything else over TCP, only on nodes whose ranks were blocked at an object store or FUSE mount, whose
  bytes no counter has. So it is an upper bound.
"""

from __future__ import annotations

from ...agent.metrics.ranks import RUN
from ..config import Config
from ..promql import indented, labelled, lines, seconds
from ..rule import Record
from .names import ADAPTER_SPEED, CARRIED, COLLISION, INSTANCE_NODE, TRAFFIC_BYTES, TRAFFIC_SHARE

PROTOCOLS = {"tcp": "!~", "rdma": "=~"}
RDMA = '"rdma.*|o2ib"'
"""The protocols of NFS and Lustre that use RDMA."""
OBJECT_STORES = 'fstype=~"tcp|fuse|fuse[.].+"'
LEAST_SHARE = 0.001
"""Smaller shares are not recorded: most adapters of a node carry nothing."""
WIRE = ("adapter", "direction")
DIRECTIONS = ("receive", "transmit")
KINDS = {"gpu": 'traffic="gpu"', "storage": 'traffic=~"mount|rest"'}
"""The two kinds of traffic -> the matcher of their bytes."""


def rules(config: Config) -> tuple[Record, ...]:
    """The rules, in the order in which they depend on each other."""
    return (
        Record(ADAPTER_SPEED, _speed(config), why="What an adapter carries in one direction."),
        *(
            Record(CARRIED, _carried(config, protocol), {"protocol": protocol}, why="The traffic of all on an adapter.")
            for protocol in PROTOCOLS
        ),
        *(
            Record(
                TRAFFIC_BYTES,
                _capped(_of_mounts(config, protocol), f'{CARRIED}{{protocol="{protocol}"}}', config),
                {"traffic": "mount", "protocol": protocol},
                why="At most what the adapter carries: Lustre's client also counts what its cache serves.",
            )
            for protocol in PROTOCOLS
        ),
        Record(
            TRAFFIC_BYTES,
            _of_ranks(config),
            {"traffic": "gpu", "protocol": "tcp"},
            why="An interface inside a pod is not the node's. Then the adapter is known if the node has only one.",
        ),
        Record(
            TRAFFIC_BYTES,
            _left(config, "rdma", "mount"),
            {"traffic": "gpu", "protocol": "rdma"},
            why="What no file system moves over RDMA.",
        ),
        Record(
            TRAFFIC_BYTES,
            f"{_left(config, 'tcp', 'gpu|mount')}\n"
            f"and {config.on('node')} {_reading(config)}\nunless {config.on('node')} {_unplaced(config)}",
            {"traffic": "rest", "protocol": "tcp"},
            why="On nodes whose ranks were blocked at an object store. An upper bound.",
        ),
        *(
            Record(
                TRAFFIC_SHARE,
                f"max {config.by('node', 'adapter')} (\n{indented(_share(config, kind))}\n) >= {LEAST_SHARE:g}",
                {"traffic": kind},
                why="In the direction with the higher share.",
            )
            for kind in KINDS
        ),
        Record(COLLISION, _collision(config), why="The smaller share, where both are high in the same minutes."),
    )


def window(config: Config) -> str:
    """The time over which rates are taken: that between two evaluations, so that each minute counts once."""
    return max(min(config.windows, key=seconds), config.counters_interval, key=seconds)


def _of_node(config: Config, targets: str, *labels: str) -> str:
    """Turns an expression by target into one by node. The larger one, where two agents report the same node."""
    return (
        f"max {config.by('node', *labels)} (\n{indented(targets)}\n"
        f"  * {config.on('instance')} group_left (node) {_nodes(config)}\n)"
    )


def _nodes(config: Config) -> str:
    """One node for each target: a ledger may have another name of the node than the agent."""
    by = config.by("instance", "node")
    names = f"group {by} ({config.series('whyidle_node_info')}) or 0.5 * {INSTANCE_NODE}"
    return f"group {by} (topk {config.by('instance')} (1, {names}))"


def _port_adapters(config: Config) -> str:
    """1 for each RDMA port, with the name of its adapter: that of its interface, otherwise its own."""
    named = f'label_join({config.series("whyidle_rdma_port_info")}, "adapter", "/", "device", "port")'
    adapter = f'label_replace({named}, "adapter", "$1", "netdev", "(.+)")'
    return f"group {config.by('instance', 'device', 'port', 'adapter')} ({adapter})"


def _of_ports(config: Config, ports: str) -> str:
    """Adds the label adapter to an expression by RDMA port."""
    return f"{ports} * {config.on('instance', 'device', 'port')} group_left (adapter) {_port_adapters(config)}"


def _of_interfaces(interfaces: str) -> str:
    return f'label_replace({interfaces}, "adapter", "$1", "device", "(.+)")'


def _speed(config: Config) -> str:
    by = config.by("instance", "adapter")
    speeds = config.series("whyidle_nic_speed_bytes_per_second")
    rates = config.series("whyidle_rdma_port_rate_bytes_per_second")
    return _of_node(
        config,
        f"max {by} (\n  {_of_interfaces(speeds)}\n  or {_of_ports(config, rates)}\n)",
        "adapter",
    )


def _carried(config: Config, protocol: str) -> str:
    """What adapters carry. The kernel counts no RDMA traffic of an interface, and a port nothing else."""
    by = config.by("instance", *WIRE)
    if protocol == "tcp":
        moved = _of_interfaces(config.rate("whyidle_nic_bytes_total", window(config)))
        return _of_node(config, f"sum {by} ({moved})", *WIRE)
    ports = config.by("instance", "device", "port")
    ways = (
        labelled(
            _of_ports(config, f"sum {ports} ({config.rate(f'whyidle_rdma_{way}_bytes_total', window(config))})"),
            "direction",
            way,
        )
        for way in DIRECTIONS
    )
    return _of_node(config, f"sum {by} (\n{indented(lines(*ways))}\n)", *WIRE)


def _of_mounts(config: Config, protocol: str) -> str:
    """What the clients of file systems receive from their servers and send to them."""
    chosen, ways = f'adapter!="", protocol{PROTOCOLS[protocol]}{RDMA}', []
    for info, key, counters in (
        ("nfs", "mount", ("nfs_server_read", "nfs_server_written")),
        ("lustre", "filesystem", ("lustre_read", "lustre_written")),
    ):
        known = f"max {config.by('instance', key, 'adapter')} ({config.series(f'whyidle_{info}_info', chosen)})"
        for way, counter in zip(DIRECTIONS, counters, strict=True):
            moved = config.rate(f"whyidle_{counter}_bytes_total", window(config))
            joined = f"{moved} * {config.on('instance', key)} group_left (adapter) {known}"
            ways.append(labelled(joined, "direction", way))
    by = config.by("instance", *WIRE)
    return _of_node(config, f"sum {by} (\n{indented(lines(*ways))}\n)", *WIRE) + " > 0"


def _capped(moved: str, most: str, config: Config) -> str:
    """``moved``, but at most ``most``, where that is known."""
    on = config.on("node", *WIRE)
    return f"({moved}) < {on} {most}\nor {on} ({most} and {on} {moved})\nor {on} {moved}"


def _of_ranks(config: Config) -> str:
    """What the connections of ranks carry, by the adapters of the node."""
    by, way = config.by("instance", *WIRE), config.by("instance", "direction")
    moved = config.rate("whyidle_run_link_bytes_total", window(config), 'kind="tcp"')
    placed = f'label_replace({moved} and {_outside(config)}, "adapter", "$1", "link", "(.+)")'
    inside = f"sum {way} ({moved} unless {_outside(config)})"
    only = f"group {config.by('instance', 'adapter')} ({_of_interfaces(_single(config))})"
    in_pods = f"{inside} * {config.on('instance')} group_left (adapter) {only}"
    return _of_node(config, f"sum {by} (\n  {placed}\n  or\n  {in_pods}\n)", *WIRE) + " > 0"


def _outside(config: Config) -> str:
    """For series of runs whose ranks are in the node's own network namespace."""
    spaces = config.series("whyidle_tcp_namespace_info", 'namespace="host"')
    return f"{config.on('instance', *RUN)} {spaces}"


def _single(config: Config) -> str:
    """The speed of an interface that is the only one of its node."""
    speeds = config.series("whyidle_nic_speed_bytes_per_second")
    return f"({speeds} unless {config.on('instance')} count {config.by('instance')} ({speeds}) > 1)"


def _unplaced(config: Config) -> str:
    """Nodes with traffic of ranks of which the adapter is not known, so it would count as the rest of an adapter."""
    moved = config.rate("whyidle_run_link_bytes_total", window(config), 'kind="tcp"')
    inside = f"sum {config.by('instance')} ({moved} unless {_outside(config)}) > 0"
    return _of_node(config, f"({inside} unless {config.on('instance')} {_single(config)})")


def _reading(config: Config) -> str:
    """Nodes whose ranks were blocked at an object store or a FUSE mount."""
    blocked = config.increase("whyidle_run_mount_blocked_seconds_total", config.long_window, OBJECT_STORES)
    return f"(sum {config.by('node')} ({blocked}) > 0)"


def _left(config: Config, protocol: str, known: str) -> str:
    """What adapters carry over a protocol, without the traffic that is known."""
    carried, on = f'{CARRIED}{{protocol="{protocol}"}}', config.on("node", *WIRE)
    matchers = f'{{traffic=~"{known}", protocol="{protocol}"}}'
    less = f"{carried} - {on} sum {config.by('node', *WIRE)} ({TRAFFIC_BYTES}{matchers})"
    return f"(({less}) or {on} {carried}) > 0"


def _share(config: Config, kind: str) -> str:
    moved = f"sum {config.by('node', *WIRE)} ({TRAFFIC_BYTES}{{{KINDS[kind]}}})"
    return f"{moved}\n/ {config.on('node', 'adapter')} group_left () {ADAPTER_SPEED}"


def _collision(config: Config) -> str:
    high = f">= {config.collision_share:g}"
    gpu, storage = (f"({_share(config, kind)} {high})" for kind in KINDS)
    smaller = f"({gpu} < {storage}\nor {storage} <= {gpu})"
    return f"max {config.by('node', 'adapter')} (\n{indented(smaller)}\n)"
