"""What a verdict says of the links that carry the transfers, and when it says nothing."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from support_ledgers import Spec, write
from support_links import GBIT, Words, interface, limited, used

from whyidle.ledger.directory import read_directory
from whyidle.ledger.links import RDMA_MISSING
from whyidle.verdict.carried import Carried, rate_of
from whyidle.verdict.link_words import MISSING, rate_text
from whyidle.verdict.report import build_report

STEPS = 50
SLOW = {"compute": 0.02, "network": 0.08}
TBF = "0.19 Gbit/s over eth0, which tbf limits to 0.2"
IDLE = "eth1 (10 Gbit/s) carries nothing"


def rank(number: int, *links: Words, step: dict[str, float] = SLOW, node: str = "", **options: Any) -> Spec:
    """A rank in one group, which has all transfers."""
    network = int(STEPS * step.get("network", 0.0) * GBIT)
    group: dict[str, Any] = {
        "slots": [{"key": 1, "size": 2, "network_ns": network}],
        "groups": [("world", {}, STEPS)],
    }
    return Spec(rank=number, node=node or f"n{number}", steps=STEPS, step=step, links=[*links], **(group | options))


def report_of(folder: Path, *specs: Spec) -> dict[str, Any]:
    for spec in specs:
        write(str(folder), replace(spec, world_size=max(spec.world_size, len(specs)))).close()
    ledgers, problems = read_directory(str(folder), steps=True)
    assert not problems
    return build_report(("lab", "r1"), ledgers, time.monotonic_ns())


def verdict_of(folder: Path, *specs: Spec) -> dict[str, Any]:
    return report_of(folder, *specs)["verdict"]


def slow(number: int, **options: Any) -> Spec:
    """A rank on a limited link, beside a fast one that is idle."""
    return rank(number, interface(0, number, **used(0.19), **limited(0.2)), interface(1, number), **options)


def test_names_the_link_its_rate_its_limit_and_the_link_that_is_idle(tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, slow(0), slow(1))
    assert verdict["summary"] == f"{TBF}; {IDLE}"
    [link] = verdict["links"]
    assert (link["kind"], link["names"], link["ranks"], link["groups"]) == ("tcp", ("eth0",), (0, 1), ("world",))
    assert link["rate"] == pytest.approx(0.19 * GBIT, rel=0.01)
    assert (link["limit"], link["limited_by"], link["speed"]) == (0.2 * GBIT, "tbf", 10 * GBIT)
    assert link["at_limit"]
    assert link["spare"] == {"kind": "tcp", "names": ["eth1"], "capacity": 10 * GBIT, "carries": 0.0}
    assert (
        "eth0: at best 0.19 Gbit/s over some seconds, its speed without the limit is 10 Gbit/s" in verdict["evidence"]
    )


def test_the_rate_of_a_link_is_that_of_all_ranks_however_long_each_was_looked_at() -> None:
    link = cast(Any, None)
    looks = [Carried(link, wait_bytes=seconds * GBIT // 8, waited=seconds, busy=seconds) for seconds in (10, 2)]
    assert rate_of(looks) == pytest.approx(2 * GBIT)


@pytest.mark.parametrize(
    ("step", "named"),
    [
        ({"compute": 0.095, "network": 0.005}, False),
        ({"compute": 0.05, "data_read": 0.045, "network": 0.005}, False),
        ({"compute": 0.02, "data_read": 0.06, "network": 0.02}, True),
        ({"compute": 0.05, "collective": 0.05}, True),
    ],
    ids=["healthy", "another fault", "a smaller fault beside another", "unsplit waits"],
)
def test_a_link_is_named_only_where_transfers_take_a_tenth_of_the_time(
    step: dict[str, float], named: bool, tmp_path: Path
) -> None:
    verdict = verdict_of(tmp_path, slow(0, step=step), slow(1, step=step))
    assert ("eth" in " ".join([verdict["summary"], *verdict["evidence"]])) is named
    assert bool(verdict["links"]) is named
    assert "eth" not in verdict["summary"]


def test_a_link_without_troubles_is_not_named_for_unsplit_waits(tmp_path: Path) -> None:
    step = {"compute": 0.05, "collective": 0.05}
    links = (interface(0, 0, **used(3)), interface(1, 0))
    verdict = verdict_of(tmp_path, rank(0, *links, step=step), rank(1, *links, step=step))
    assert not verdict["links"]
    assert "eth0" not in " ".join([verdict["summary"], *verdict["evidence"]])


def test_a_speed_below_what_the_link_carries_is_not_its_speed(tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, *(rank(number, interface(0, number, **used(11))) for number in (0, 1)))
    assert verdict["summary"] == "11 Gbit/s over eth0"
    [link] = verdict["links"]
    assert (link["speed"], link["at_limit"]) == (None, None)


def test_says_what_it_said_before_if_nothing_is_known_of_links(tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, rank(0), rank(1))
    assert (verdict["summary"], verdict["links"]) == ("the transfers themselves take long", [])


@pytest.mark.parametrize(
    ("words", "at_limit"),
    [
        (used(0.12), False),
        (used(0.12, trip_ns=5_000_000, least_trip_ns=9_000), True),  # what is sent queues there
        (used(0.12, trip_ns=90_000, least_trip_ns=9_000), False),
        (used(0.08, trip_ns=5_000_000, least_trip_ns=9_000), False),
        (used(0.12, all=2 * int(0.2 * GBIT / 8 * 4)), True),  # others have the rest
    ],
)
def test_a_link_is_at_its_limit_by_its_rate_or_by_what_queues(words: Words, at_limit: bool, tmp_path: Path) -> None:
    specs = [rank(number, interface(0, number, **words, **limited(0.2)), interface(1, number)) for number in (0, 1)]
    [link] = verdict_of(tmp_path, *specs)["links"]
    assert link["at_limit"] is at_limit
    assert (link["spare"] is not None) is at_limit


FAST: Words = used(3)
SAID: dict[str, tuple[Words, str]] = {
    "a fast link": (interface(0, 0, **FAST), "3 Gbit/s over eth0 (10 Gbit/s)"),
    "hardware": (interface(0, 0, 1, **used(0.94)), "0.94 Gbit/s over eth0, whose speed is 1 Gbit/s"),
    "speed not known": (interface(0, 0, 0, **FAST), "3 Gbit/s over eth0"),
    "no looks": (
        interface(0, 0, **used(3, wait_bytes=0, wait_ns=0, best=0)),
        "3 Gbit/s over eth0 (10 Gbit/s)",
    ),
    "no rate": (
        interface(0, 0, **used(3, wait_bytes=0, wait_ns=0, busy_ns=0, best=0)),
        "the transfers themselves take long, over eth0 (10 Gbit/s)",
    ),
    "a slow rate": (interface(0, 0, **used(0.019), **limited(0.02)), "19 Mbit/s over eth0, which tbf limits to 20"),
    "a policer": (
        interface(0, 0, **used(0.09), **limited(0.1, "police")),
        "90 Mbit/s over eth0, which a policer limits to 100",
    ),
    "loss": (
        interface(0, 0, **used(0.3, segments=1000, resent=20)),
        "0.3 Gbit/s over eth0 (10 Gbit/s); 2 % of the segments were sent again",
    ),
    "window": (
        interface(0, 0, **used(0.3, window_ns=int(3.2 * GBIT))),
        "0.3 Gbit/s over eth0 (10 Gbit/s); the receiver's window was full in 80 % of the time",
    ),
    "send buffer": (
        interface(0, 0, **used(0.3, buffer_ns=int(2.4 * GBIT))),
        "0.3 Gbit/s over eth0 (10 Gbit/s); the send buffer was full in 60 % of the time",
    ),
    "MTU": (interface(0, 0, **FAST, mtu=500), "3 Gbit/s over eth0 (10 Gbit/s); its MTU is 500"),
    "drops of a shaper": (interface(0, 0, **used(0.19, segments=1000, resent=20), **limited(0.2)), TBF),
    "others": (
        interface(0, 0, **used(0.25, all=int(4 * 0.4 * GBIT / 4)), **limited(0.4)),
        "0.25 Gbit/s over eth0, which tbf limits to 0.4; 31 % of what it carries is not the run's",
    ),
    "loopback": ({"link": "node lo 127.0.0.1/8", **FAST}, "3 Gbit/s over the loopback interface"),
    "GPUs of one node": (
        {"link": "node local -", "up": 1},
        "the transfers themselves take long, over shared memory, NVLink or PCIe",
    ),
    "RDMA": (
        {"link": "rdma mlx5_0/1 -", "up": 1, "speed": 100 * GBIT, "connections": 4, "all": 10**9, "best": 3 * GBIT},
        "the transfers themselves take long, over mlx5_0/1 (100 Gbit/s)",
    ),
}


@pytest.mark.parametrize("case", SAID)
def test_says_what_is_known_of_the_link(case: str, tmp_path: Path) -> None:
    words, said = SAID[case]
    other = dict(words) | ({"link": str(words["link"]).replace(".0.1/", ".0.2/")} if "eth0" in str(words) else {})
    assert verdict_of(tmp_path, rank(0, words), rank(1, other))["summary"] == said


ALTERNATIVES: dict[str, tuple[list[Words], bool]] = {
    "up and idle": ([interface(1, 0), interface(1, 1)], True),
    "down on one node": ([interface(1, 0), interface(1, 1, up=0)], False),
    "missing on one node": ([interface(1, 0)], False),
    "in another network": ([interface(1, 0), interface(2, 1)], False),
    "busy": ([interface(1, 0), interface(1, 1, all=10**9)], False),
    "hardly faster": ([interface(1, 0, 0.3), interface(1, 1, 0.3)], False),
    "slow on one node": ([interface(1, 0), interface(1, 1, 0.3)], False),
    "limited": ([interface(1, 0), interface(1, 1, **limited(0.2))], False),
    "of unknown speed": ([interface(1, 0, 0), interface(1, 1, 0)], False),
    "without an address": ([interface(1, 0, link="tcp eth1 -"), interface(1, 1, link="tcp eth1 -")], False),
}


@pytest.mark.parametrize("case", ALTERNATIVES)
def test_another_link_is_named_if_it_is_up_everywhere_faster_and_idle(case: str, tmp_path: Path) -> None:
    others, named = ALTERNATIVES[case]
    specs = [
        rank(number, interface(0, number, **used(0.19), **limited(0.2)), *others[number : number + 1])
        for number in range(2)
    ]
    assert verdict_of(tmp_path, *specs)["summary"] == (f"{TBF}; {IDLE}" if named else TBF)


@pytest.mark.parametrize(("nodes", "named"), [(4, True), (3, False), (0, False)])
def test_the_ranks_of_other_nodes_tell_whether_they_have_the_other_link(
    nodes: int, named: bool, tmp_path: Path
) -> None:
    """Ledgers of one node, of a run on four."""
    links = interface(0, 0, **used(0.095), **limited(0.2)), interface(1, 0, nodes=nodes)
    specs = [rank(number, *links, node="n0", world_size=8, words={"local_world_size": 2}) for number in range(2)]
    assert verdict_of(tmp_path, *specs)["summary"] == (f"{TBF}; {IDLE}" if named else TBF)


def test_another_link_does_not_help_a_link_that_is_not_at_its_limit(tmp_path: Path) -> None:
    specs = [rank(number, interface(0, number, 1, **used(0.1)), interface(1, number)) for number in range(2)]
    assert verdict_of(tmp_path, *specs)["summary"] == "0.1 Gbit/s over eth0 (1 Gbit/s)"


def test_with_few_looks_the_rate_is_what_was_sent_while_ranks_waited(tmp_path: Path) -> None:
    """Over a link that loses packets, little is under way: between two losses, and not while the sender waits."""
    lossy = used(0.5, 8, wait_ns=GBIT // 10, wait_bytes=GBIT // 8, segments=50_000, resent=1000)
    specs = [rank(n, interface(0, n, **(lossy | {"busy_ns": (n + 1) * GBIT // 2}))) for n in range(2)]
    seconds = STEPS * SLOW["network"]
    assert verdict_of(tmp_path, *specs)["links"][0]["rate"] == pytest.approx(8 * lossy["sent"] / seconds, rel=0.01)


def test_without_losses_it_is_what_was_sent_while_something_was_under_way(tmp_path: Path) -> None:
    """Groups with the same ranks are one group, which may also wait for transfers over other links."""
    few = used(0.19, 4, wait_ns=GBIT // 10, wait_bytes=GBIT // 800)
    specs = [rank(number, interface(0, number, **few)) for number in range(2)]
    assert verdict_of(tmp_path, *specs)["links"][0]["rate"] == pytest.approx(0.19 * GBIT, rel=0.01)


def test_ranks_of_a_node_share_a_link_and_containers_do_not(tmp_path: Path) -> None:
    together = [rank(number, interface(0, 0, **used(1)), node="n0") for number in range(2)]
    assert verdict_of(tmp_path, *together)["summary"].startswith("2 Gbit/s over eth0")
    apart = [replace(rank(number, interface(0, number, **used(1)), node="n0"), attempt=1) for number in range(2)]
    assert verdict_of(tmp_path / "apart", *apart)["summary"].startswith("1 Gbit/s over eth0")


def test_a_link_inside_a_node_does_not_hide_the_one_between_nodes(tmp_path: Path) -> None:
    """Each rank of a ring sends as much to the next rank on its node as the last one sends to the next node."""
    lo: Words = {"link": "node lo 127.0.0.1/8", **used(0.19)}
    specs = [
        rank(number, lo, *([interface(0, number, **used(0.19), **limited(0.2))] if number % 2 else []), node=node)
        for number, node in enumerate(("n0", "n0", "n1", "n1"))
    ]
    assert verdict_of(tmp_path, *specs)["summary"] == TBF


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        (["n0", "n1", "n2", "n3"], "over eth1 on n3, which tbf limits to 0.2; the other ranks use eth0 (10 Gbit/s)"),
        (["n"] * 4, "over eth1 of rank 3, which tbf limits to 0.2; the other ranks use eth0 (10 Gbit/s)"),
    ],
)
def test_names_the_node_whose_link_is_slow(nodes: list[str], said: str, tmp_path: Path) -> None:
    """Its neighbours in the ring use the slow interface, too, towards it."""
    slow = used(0.19, sent=10**8, received=10**8) | limited(0.2)
    fast = used(0.19, sent=10**8, received=10**8)
    links = [
        [interface(0, 0, **fast), interface(1, 0, **slow)],
        [interface(0, 1, **used(0.19)), interface(1, 1)],
        [interface(0, 2, **fast), interface(1, 2, **slow)],
        [interface(0, 3), interface(1, 3, **used(0.19), **limited(0.2))],
    ]
    specs = [rank(number, *links[number], node=nodes[number]) for number in range(4)]
    [link] = verdict_of(tmp_path, *specs)["links"]
    assert (link["ranks"], link["apart"], link["others"]) == ((3,), True, ("eth0",))
    assert verdict_of(tmp_path, *specs)["summary"] == f"0.19 Gbit/s {said}"


def test_names_the_rank_whose_link_has_a_limit(tmp_path: Path) -> None:
    specs = [rank(0, interface(0, 0, **used(0.19), **limited(0.2))), rank(1, interface(0, 1, **used(0.19)))]
    summary = verdict_of(tmp_path, *specs)["summary"]
    assert summary == "0.19 Gbit/s over eth0 on n0, which tbf limits to 0.2; that of the other rank has 10 Gbit/s"


def test_names_the_groups_that_use_two_links(tmp_path: Path) -> None:
    links = [
        interface(0, 0, **used(0.19), **limited(0.2), slots=[600, 0]),
        interface(1, 0, **used(0.45), **limited(0.5), slots=[0, 100]),
    ]
    slots = [{"key": 1, "size": 2, "network_ns": 3 * GBIT}, {"key": 2, "size": 2, "network_ns": GBIT}]
    groups = [("dp", {}, STEPS), ("tp", {}, STEPS)]
    verdict = verdict_of(tmp_path, *(rank(number, *links, slots=slots, groups=groups) for number in range(2)))
    assert verdict["summary"] == f"the group dp: {TBF}"
    assert "the group tp: 0.45 Gbit/s over eth1, which tbf limits to 0.5" in verdict["evidence"]
    assert [link["groups"] for link in verdict["links"]] == [("dp",), ("tp",)]


def test_names_no_group_if_all_groups_use_one_link(tmp_path: Path) -> None:
    slots = [{"key": key, "size": 2, "network_ns": 2 * GBIT} for key in (1, 2)]
    groups = [("dp", {}, STEPS), ("tp", {}, STEPS)]
    verdict = verdict_of(tmp_path, *(slow(number, slots=slots, groups=groups) for number in range(2)))
    assert verdict["summary"] == f"{TBF}; {IDLE}"
    [link] = verdict["links"]
    assert sorted(link["groups"]) == ["dp", "tp"]
    assert link["share"] == pytest.approx(0.8, abs=0.01)


def test_attempts_are_summed(tmp_path: Path) -> None:
    words = used(0.1, segments=500, resent=0), used(0.3, segments=500, resent=20)
    specs = [
        rank(number, interface(0, number + 10 * attempt, **words[attempt]), attempt=attempt, created=attempt + 1)
        for attempt in range(2)
        for number in range(2)
    ]
    report = report_of(tmp_path, *specs)
    assert report["verdict"]["summary"] == "0.2 Gbit/s over eth0 (10 Gbit/s); 2 % of the segments were sent again"
    [link] = report["per_rank"][0]["links"]
    assert link["bytes"] == pytest.approx(2 * 0.4 * GBIT / 8 * 4)


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        (["devices"], "RDMA is not used: /dev/infiniband is not in the container"),
        (["NCCL_IB_DISABLE", "memlock"], "RDMA is not used: NCCL_IB_DISABLE is set and the limit of locked memory is "
                                         "too low"),
        ([], None),
    ],
)  # fmt: skip
def test_says_why_rdma_is_not_used(missing: list[str], said: str | None, tmp_path: Path) -> None:
    words = {"rdma_missing": sum(1 << RDMA_MISSING.index(name) for name in missing)}
    port: Words = {"link": "rdma mlx5_0/1 -", "up": 1, "speed": 100 * GBIT}
    specs = [rank(number, interface(0, number, **used(3)), port, device="cuda", words=words) for number in range(2)]
    verdict = verdict_of(tmp_path, *specs)
    assert verdict["summary"] == "3 Gbit/s over eth0 (10 Gbit/s)" + (f"; {said}" if said else "")
    assert (said in verdict["evidence"]) is bool(said)
    assert MISSING.keys() == {*RDMA_MISSING}


def test_says_that_gpudirect_is_not_used(tmp_path: Path) -> None:
    port: Words = {"link": "rdma mlx5_0/1 -", "up": 1, "speed": 100 * GBIT, "connections": 4, "all": 10**9}
    words = {"rdma_missing": 1 << RDMA_MISSING.index("gpudirect")}
    verdict = verdict_of(tmp_path, *(rank(number, port, device="cuda", words=words) for number in range(2)))
    assert verdict["summary"].endswith(
        "over mlx5_0/1 (100 Gbit/s); GPUDirect is not used: no kernel module lets the adapter read the GPU's memory"
    )


def test_an_active_port_that_carries_nothing_is_named_on_gpus_alone(tmp_path: Path) -> None:
    port: Words = {"link": "rdma mlx5_0/1 -", "up": 1, "speed": 100 * GBIT}
    for device, said in (("cuda", "; mlx5_0/1 (100 Gbit/s) carries nothing"), ("cpu", "")):
        specs = [
            rank(number, interface(0, number, 1, **used(0.94)), port, device=device, run=device) for number in range(2)
        ]
        for spec in specs:
            write(str(tmp_path), spec).close()
        ledgers, _ = read_directory(str(tmp_path), steps=True)
        verdict: Any = build_report(("lab", device), ledgers, time.monotonic_ns())["verdict"]
        assert verdict["summary"] == f"0.94 Gbit/s over eth0, whose speed is 1 Gbit/s{said}"


@pytest.mark.parametrize(
    ("bits", "text"),
    [(1.9e8, "0.19 Gbit/s"), (1e8, "0.1 Gbit/s"), (9.9e7, "99 Mbit/s"), (4e11, "400 Gbit/s"), (5e3, "5 kbit/s")],
)
def test_rates_have_two_digits(bits: float, text: str) -> None:
    assert rate_text(bits) == text


@pytest.mark.parametrize(
    ("bits", "beside", "text"), [(2e8, 1.9e8, "0.2"), (1e8, 9.7e7, "100"), (1e10, 3e8, "10"), (1e10, 9e6, "10 Gbit/s")]
)
def test_a_rate_beside_another_has_its_unit(bits: float, beside: float, text: str) -> None:
    assert rate_text(bits, beside) == text


@pytest.mark.parametrize(
    ("busy", "cpu", "said"),
    [(11 * GBIT // 2, 0.3, "; the ranks' communication threads get no CPU"), (15 * GBIT // 2, 0.1, "")],
    ids=["the link was idle meanwhile", "the kernel went on to send"],
)
def test_names_threads_without_a_cpu_beside_the_link(busy: int, cpu: float, said: str, tmp_path: Path) -> None:
    """The link may also have been busy in all of the startup, 3 s."""
    step = {"compute": 0.02, "network": 0.05, "collective_queue": 0.03}
    ranks = [
        rank(n, interface(0, n, **used(0.19, busy_ns=busy), **limited(0.2)), interface(1, n), step=step) for n in (0, 1)
    ]
    report = report_of(tmp_path, *ranks)
    assert report["verdict"]["summary"] == f"{TBF}; {IDLE}{said}"
    assert report["families"]["cpu"] == pytest.approx(cpu, abs=0.01)
