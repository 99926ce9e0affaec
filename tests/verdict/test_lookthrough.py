"""The look-through: waits are followed through late ranks and groups to what caused them."""

from __future__ import annotations

import time
from math import fsum

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whyidle.verdict.lookthrough import Culprit, Group, GroupWaits, RankWaits, conclude, link

DP = Group("dp", (0, 1))
TP = Group("tp", (1, 2))
PIPE = Group("pp", (0, 1, 2), p2p=True)


def only(family: str, seconds: float) -> dict[str, float]:
    return {family: seconds}


def test_waits_for_a_late_rank_are_charged_to_its_reads():
    """Rank 1 reads for 40 ms in each step, and rank 0 waits for it."""
    conclusion = conclude(
        [
            RankWaits(0, only("compute", 5.0), (GroupWaits(DP, network=1.0, behind={1: 4.0}),)),
            RankWaits(1, {"compute": 5.0, "storage": 4.0}, (GroupWaits(DP, network=1.0, late_own={"storage": 4.0}),)),
        ]
    )
    assert conclusion.seconds == pytest.approx({"compute": 10.0, "network": 2.0, "storage": 8.0})
    assert conclusion.culprits()[0] == (Culprit("storage", 1), pytest.approx(8.0))
    assert conclusion.waited[Culprit("storage", 1)] == pytest.approx(4.0)


@pytest.mark.parametrize(("family", "lost"), [("compute", "straggler"), ("lost", "lost")])
def test_lateness_by_compute_remains_straggler_and_by_another_family_is_that_family(family: str, lost: str):
    conclusion = conclude(
        [
            RankWaits(0, {}, (GroupWaits(DP, behind={1: 4.0}),)),
            RankWaits(1, {}, (GroupWaits(DP, late_own={family: 4.0}),)),
        ]
    )
    assert conclusion.seconds == pytest.approx({lost: 4.0})
    assert conclusion.culprits()[0][0] == Culprit(lost, 1)


def test_lateness_through_another_group_is_followed_to_who_was_late_there():
    conclusion = conclude(
        [
            RankWaits(0, {}, (GroupWaits(DP, behind={1: 4.0}),)),
            RankWaits(1, {}, (GroupWaits(DP, late_elsewhere={TP: 3.0}), GroupWaits(TP, network=1.0, behind={2: 3.0}))),
            RankWaits(2, only("storage", 3.0), (GroupWaits(TP, network=1.0, late_own={"storage": 3.0}),)),
        ]
    )
    assert conclusion.charged == pytest.approx({Culprit("storage", 2): 10.0, Culprit("network", None, TP): 2.0})


def test_transfer_cost_beyond_own_messages_is_network_on_the_slowest_link():
    conclusion = conclude(
        [
            RankWaits(
                0, {}, (GroupWaits(PIPE, network=1.0, latency=4.0, slowest=(1, 2), bubble=2.0, behind={1: 1.0}),)
            ),
            RankWaits(1, {}, (GroupWaits(PIPE, network=3.0, latency=2.0, slowest=(1, 2), late_own={"storage": 1.0}),)),
        ]
    )
    assert conclusion.charged == pytest.approx(
        {
            Culprit("network", None, link(PIPE, 1, 2)): 6.0,
            Culprit("network", None, PIPE): 4.0,
            Culprit("pipeline"): 2.0,
            Culprit("storage", 1): 1.0,
        }
    )


def test_a_rank_late_because_of_a_slow_pipeline_link_is_charged_to_the_network():
    world = Group("world", (0, 1, 2))
    late = GroupWaits(world, late_elsewhere={PIPE: 5.0})
    conclusion = conclude(
        [
            RankWaits(0, {}, (late, GroupWaits(PIPE, latency=5.0, slowest=(0, 1)))),
            RankWaits(1, {}, (GroupWaits(world, behind={0: 5.0}),)),
        ]
    )
    assert conclusion.charged == pytest.approx({Culprit("network", None, link(PIPE, 0, 1)): 10.0})


def test_transfers_are_followed_after_the_waits_behind_others():
    """Rank 1 was late because it waited for 2 s elsewhere: it waited 3 s there for rank 2, so none is transfer."""
    ranks = [
        RankWaits(0, {}, (GroupWaits(DP, behind={1: 2.0}),)),
        RankWaits(1, {}, (GroupWaits(DP, late_elsewhere={TP: 2.0}), GroupWaits(TP, network=5.0, behind={2: 3.0}))),
        RankWaits(2, {}, (GroupWaits(TP, late_own={"host": 3.0}),)),
    ]
    assert conclude(ranks).seconds == pytest.approx({"host": 5.0, "network": 5.0})


def test_excess_beyond_the_waits_behind_others_is_transfer():
    ranks = [
        RankWaits(0, {}, (GroupWaits(DP, behind={1: 4.0}),)),
        RankWaits(1, {}, (GroupWaits(DP, late_elsewhere={TP: 4.0}), GroupWaits(TP, network=5.0, behind={2: 1.0}))),
        RankWaits(2, {}, (GroupWaits(TP, late_own={"host": 1.0}),)),
    ]
    conclusion = conclude(ranks)
    assert conclusion.charged == pytest.approx({Culprit("host", 2): 2.0, Culprit("network", None, TP): 8.0})


def test_transfers_without_a_cpu_are_followed_to_the_cpu():
    """The transfers in which rank 1 was late took 5 s. For 3 s of these, its threads got no CPU."""
    ranks = [
        RankWaits(0, {}, (GroupWaits(DP, behind={1: 1.0}),)),
        RankWaits(1, {"cpu": 3.0}, (GroupWaits(DP, late_elsewhere={TP: 1.0}), GroupWaits(TP, network=2.0, queue=3.0))),
    ]
    conclusion = conclude(ranks)
    assert conclusion.charged == pytest.approx({Culprit("cpu", 1): 3.6, Culprit("network", None, TP): 2.4})


@pytest.mark.parametrize(
    ("group", "families"),
    [
        (Group("world", (0, 1, 2, 3)), {"pipeline": 3.0}),  # its stages have different parts of the bubble
        (Group("dp", (0, 3)), {"network": 3.0}),  # rank 3 has a separate pipeline with the same bubble
    ],
)
def test_bubble_explains_lateness_only_where_the_whole_pipeline_is_compared(group: Group, families: dict[str, float]):
    stage = GroupWaits(PIPE, network=3.0, links={1: 3.0}, bubble=5.0)
    ranks = [
        RankWaits(0, {}, (GroupWaits(group, late_elsewhere={PIPE: 3.0}), stage)),
        RankWaits(3, {}, (GroupWaits(group, behind={0: 3.0}),)),
    ]
    expected = {"pipeline": 5.0, "network": 3.0}
    for family, seconds in families.items():
        expected[family] += seconds
    assert conclude(ranks).seconds == pytest.approx(expected)


def test_bubble_is_taken_off_waits_in_collectives_of_the_whole_pipeline_once() -> None:
    """The schedule costs 5 s. Rank 0 waited 2 s of these for messages, and the rest in the collective. Rank 1 waited
    all of it for messages, but is not late because of that: it computed longer."""
    world = Group("world", (0, 1, 2))
    ranks = [
        RankWaits(0, {}, (GroupWaits(world, behind={1: 7.0}), GroupWaits(PIPE, bubble=2.0, schedule=5.0))),
        RankWaits(
            1,
            {},
            (
                GroupWaits(world, late_own={"compute": 4.0}, late_elsewhere={PIPE: 3.0}),
                GroupWaits(PIPE, bubble=5.0, schedule=5.0),
            ),
        ),
        RankWaits(2, {}, (GroupWaits(world, behind={1: 1.0}), GroupWaits(PIPE, bubble=3.0, schedule=5.0))),
    ]
    assert conclude(ranks).charged == pytest.approx(
        {Culprit("pipeline"): 2.0 + 3.0 + 5.0 + 3.0 + 1.0, Culprit("straggler", 1): 4.0}
    )


def test_transfers_that_all_members_have_make_none_of_them_late() -> None:
    """Both ranks of the group have transfers of 3 s in their pipelines, and rank 0 has 1 s more. It was late by 4 s."""
    other = Group("pp", (3, 4), p2p=True)
    ranks = [
        RankWaits(
            0, {}, (GroupWaits(Group("dp", (0, 3)), late_elsewhere={PIPE: 4.0}), GroupWaits(PIPE, 4.0, bubble=9.0))
        ),
        RankWaits(3, {}, (GroupWaits(Group("dp", (0, 3)), behind={0: 4.0}), GroupWaits(other, 3.0, bubble=9.0))),
    ]
    conclusion = conclude(ranks)
    assert conclusion.waited[Culprit("pipeline")] == pytest.approx(18.0 + 3.0)
    assert conclusion.seconds["network"] == pytest.approx(7.0 + 1.0)


def test_unsplit_link_of_the_chain_ends_in_communication():
    ranks = [
        RankWaits(0, {}, (GroupWaits(DP, behind={1: 4.0}),)),
        RankWaits(1, {}, (GroupWaits(DP, late_elsewhere={TP: 4.0}), GroupWaits(TP, unsplit=6.0))),
    ]
    assert conclude(ranks).seconds == pytest.approx({"communication": 10.0})


def test_late_rank_without_a_ledger_remains_straggler_and_is_named_as_missing():
    conclusion = conclude([RankWaits(0, {}, (GroupWaits(DP, behind={1: 4.0}),))])
    assert conclusion.charged == {Culprit("straggler", 1): 4.0}
    assert conclusion.missing == {1}


def test_late_stage_without_a_ledger_remains_pipeline():
    conclusion = conclude([RankWaits(0, {}, (GroupWaits(PIPE, bubble=1.0, behind={1: 4.0}),))])
    assert conclusion.seconds == {"pipeline": 5.0}
    assert conclusion.missing == {1}


def test_unexplained_lateness_stays_with_the_late_rank():
    ranks = [
        RankWaits(0, {}, (GroupWaits(DP, behind={1: 4.0}),)),
        RankWaits(1, {}, (GroupWaits(DP, late_own={"storage": 1.0}, late_unexplained=3.0),)),
    ]
    assert conclude(ranks).charged == pytest.approx({Culprit("storage", 1): 1.0, Culprit("straggler", 1): 3.0})


def test_slow_link_of_a_pipeline_is_named_by_its_two_ends():
    """Rank 2 waits for stage 1, which was late because of the transfers of its own messages."""
    slow = GroupWaits(PIPE, network=4.0, links={0: 3.0, 2: 1.0}, late_elsewhere={PIPE: 2.0})
    ranks = [
        RankWaits(0, {}, (GroupWaits(PIPE, network=3.0, links={1: 3.0}),)),
        RankWaits(1, {}, (slow,)),
        RankWaits(2, {}, (GroupWaits(PIPE, network=1.0, links={1: 1.0}, behind={1: 2.0}),)),
    ]
    charged = conclude(ranks).charged
    assert charged[Culprit("network", None, link(PIPE, 0, 1))] == pytest.approx(6.0 + 1.5)
    assert charged[Culprit("network", None, link(PIPE, 1, 2))] == pytest.approx(2.0 + 0.5)


def test_closed_circle_ends_and_is_counted():
    """Each of two ranks is late only because of the other, so nothing explains it."""
    other = Group("ep", (0, 1))
    ranks = [
        RankWaits(0, {}, (GroupWaits(DP, behind={1: 1.0}), GroupWaits(other, late_elsewhere={DP: 1.0}))),
        RankWaits(1, {}, (GroupWaits(DP, late_elsewhere={other: 1.0}), GroupWaits(other, behind={0: 1.0}))),
    ]
    conclusion = conclude(ranks)
    assert conclusion.seconds == pytest.approx({"straggler": 2.0})
    assert conclusion.open == pytest.approx(2.0)


@pytest.mark.parametrize(("first", "second", "turns"), [(20.0, 0.3, False), (12.0, 8.0, True)])
def test_a_rank_that_caused_almost_all_waits_does_not_take_turns(first: float, second: float, turns: bool):
    """Both ranks are late by a little in many steps. The first one also saves a few times, for longer."""
    group = Group("dp", (0, 1))
    ranks = [
        RankWaits(0, {}, (GroupWaits(group, behind={1: second}, late_own={"storage": 1}, late_steps=45),), steps=100),
        RankWaits(1, {}, (GroupWaits(group, behind={0: first}, late_own={"storage": 1}, late_steps=40),), steps=100),
    ]
    assert conclude(ranks).take_turns("storage") is turns


def test_circle_with_a_way_out_is_solved_exactly():
    """Half of each lateness comes from the other rank: rank 0 ends with 2/3 or 1/3 of what began at either."""
    other = Group("ep", (0, 1))
    ranks = [
        RankWaits(
            0, {}, (GroupWaits(DP, behind={1: 3.0}), GroupWaits(other, late_own={"host": 1}, late_elsewhere={DP: 1}))
        ),
        RankWaits(
            1,
            {},
            (GroupWaits(DP, late_own={"storage": 1}, late_elsewhere={other: 1}), GroupWaits(other, behind={0: 3})),
        ),
    ]
    charged = conclude(ranks).charged
    assert charged[Culprit("storage", 1)] == pytest.approx(2.0 + 1.0)
    assert charged[Culprit("host", 0)] == pytest.approx(1.0 + 2.0)


@pytest.mark.parametrize(
    ("late_steps", "turns"),
    [
        ([40, 35, 30, 20], True),
        ([98, 3, 1, 0], False),
        ([50, 3, 1, 0], False),
        ([6, 5, 4, 3], False),
        ([95, 94], False),
    ],
)
def test_ranks_that_take_turns_are_found_by_counts_of_late_steps(late_steps: list[int], turns: bool):
    group = Group("dp", tuple(range(len(late_steps))))
    ranks = [RankWaits(r, {}, (GroupWaits(group, late_steps=n),), steps=100) for r, n in enumerate(late_steps)]
    assert conclude(ranks).take_turns("storage") is turns
    assert conclude(ranks).take_turns("network") is False


# -- properties

RANKS = 5
GROUPS = [
    Group("dp", (0, 1, 2)),
    Group("tp", (2, 3)),
    Group("pp", (0, 3, 4), p2p=True),
    Group("world", tuple(range(RANKS))),
]
amounts = st.one_of(st.just(0.0), st.floats(0.001, 100.0))


@st.composite
def group_waits(draw, rank: int, group: Group) -> GroupWaits:
    others = [other for other in group.ranks if other != rank]
    links = {peer: draw(amounts) for peer in others} if group.p2p else {}
    elsewhere = [other for other in GROUPS if rank in other.ranks and (other != group or group.p2p)]
    return GroupWaits(
        group,
        network=sum(links.values()) if group.p2p else draw(amounts),
        unsplit=draw(amounts),
        bubble=draw(amounts) if group.p2p else 0.0,
        behind={other: draw(amounts) for other in others},
        links=links,
        late_own={family: draw(amounts) for family in ("compute", "storage")},
        late_elsewhere={other: draw(amounts) for other in elsewhere},
        late_unexplained=draw(amounts),
    )


@st.composite
def runs(draw) -> list[RankWaits]:
    present = draw(st.lists(st.integers(0, RANKS - 1), min_size=1, max_size=RANKS, unique=True))
    return [
        RankWaits(
            rank,
            {family: draw(amounts) for family in ("compute", "storage", "host")},
            tuple(draw(group_waits(rank, group)) for group in GROUPS if rank in group.ranks),
        )
        for rank in present
    ]


def total(ranks: list[RankWaits]) -> float:
    return fsum(
        value
        for rank in ranks
        for value in [
            *rank.own.values(),
            *(v for w in rank.groups for v in (w.network, w.unsplit, w.bubble, *w.behind.values())),
        ]
    )


@settings(max_examples=150, deadline=None)
@given(runs())
def test_no_second_is_lost_or_made(ranks: list[RankWaits]):
    conclusion = conclude(ranks)
    assert fsum(conclusion.charged.values()) == pytest.approx(total(ranks), rel=1e-9, abs=1e-9)
    assert all(spent >= 0 for spent in conclusion.charged.values())
    for culprit, spent in conclusion.waited.items():
        assert spent <= conclusion.charged[culprit] * (1 + 1e-9)


@settings(max_examples=50, deadline=None)
@given(runs(), st.permutations(range(RANKS)))
def test_result_does_not_depend_on_rank_numbers(ranks: list[RankWaits], order: list[int]):
    def group(old: Group) -> Group:
        return Group(old.name, tuple(order[rank] for rank in old.ranks), old.p2p)

    def waits(old: GroupWaits) -> GroupWaits:
        return GroupWaits(
            group(old.group),
            old.network,
            old.unsplit,
            old.bubble,
            old.schedule,
            {order[rank]: spent for rank, spent in old.behind.items()},
            {order[rank]: spent for rank, spent in old.links.items()},
            old.late_own,
            {group(other): spent for other, spent in old.late_elsewhere.items()},
            old.late_unexplained,
            old.late_steps,
        )

    renamed = [RankWaits(order[r.rank], r.own, tuple(map(waits, r.groups))) for r in reversed(ranks)]
    expected: dict[Culprit, float] = {}
    for culprit, spent in conclude(ranks).charged.items():
        rank = None if culprit.rank is None else order[culprit.rank]
        where = culprit.group and group(culprit.group)
        if where and where.p2p and len(where.ranks) == 2:
            where = Group(where.name, (min(where.ranks), max(where.ranks)), p2p=True)
        expected[Culprit(culprit.family, rank, where)] = spent
    assert conclude(renamed).charged == pytest.approx(expected, rel=1e-6, abs=1e-9)


@pytest.mark.long
def test_a_thousand_ranks_in_four_groups_each_are_solved_in_seconds():
    """16 replicas x 8 stages x 8 TP ranks. Every rank is sometimes late in each of its groups."""
    dp, pp, tp = 16, 8, 8
    number = lambda d, p, t: (d * pp + p) * tp + t  # noqa: E731
    world = Group("world", tuple(range(dp * pp * tp)))
    ranks = []
    for d in range(dp):
        for p in range(pp):
            for t in range(tp):
                me = number(d, p, t)
                groups = (
                    Group("dp", tuple(number(other, p, t) for other in range(dp))),
                    Group("pp", tuple(number(d, other, t) for other in range(pp)), p2p=True),
                    Group("tp", tuple(number(d, p, other) for other in range(tp))),
                    world,
                )
                ranks.append(
                    RankWaits(
                        me,
                        {"compute": 100.0},
                        tuple(
                            GroupWaits(
                                group,
                                network=1.0,
                                bubble=1.0 if group.p2p else 0.0,
                                behind={group.ranks[(me * 7 + k) % len(group.ranks)]: 1.0 for k in range(8)},
                                late_own={"compute": 0.2, "storage": 0.1},
                                late_elsewhere={other: 1.0 for other in groups if other != group},
                            )
                            for group in groups
                        ),
                    )
                )
    begin = time.process_time()
    conclusion = conclude(ranks)
    assert time.process_time() - begin < 20  # 2 s on an idle core
    assert fsum(conclusion.charged.values()) == pytest.approx(total(ranks))
