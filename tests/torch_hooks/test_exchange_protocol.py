"""What ranks send each other has a version, so that ranks with different whyidles do not read each other wrongly."""

from __future__ import annotations

import hashlib
from array import array

from whyidle.ledger.causes import LATE_FAMILIES
from whyidle.ledger.layout import SLOTS
from whyidle.ledger.messages import pack_stages, pack_times, stages_of, stages_words, times_words
from whyidle.ledger.replay import first_capacity, sequence_words, steps_to_replay
from whyidle.ledger.waits import Message, StepWaits, pack, words_of
from whyidle.torch_hooks.exchange.mixes import MIX_FAMILIES, NAMED, ROUNDS, Mixes, pack_mix
from whyidle.torch_hooks.exchange.side_group import PROTOCOL
from whyidle.torch_hooks.exchange.slot import FIRST_WIDTH, CollectiveExchange, block_length, messages_block_length
from whyidle.torch_hooks.groups import Group, key_of

MS = 1_000_000
RANKS = (0, 1, 2)
KNOWN = (6, "de36bff6e6c86591")
"""The protocol, and a digest of what ranks send under it."""


def blocks() -> list[object]:
    """All kinds of words, and what every rank must decide in the same way."""
    own, elsewhere = range(1, len(LATE_FAMILIES) + 1), range(11, SLOTS + 11)
    collectives = StepWaits(5, 90 * MS, [7 * MS, 2 * MS], own, elsewhere, queues=[MS, 0])
    sent, received = Message(2, True, 3 * MS, 9 * MS, MS, 0), Message(2, False, 4 * MS, 12 * MS, 2 * MS, MS)
    stage = StepWaits(5, 90 * MS, [MS, 2 * MS], own, elsewhere, [2, 2], [sent, received], queues=[0, MS])
    compared = array("q", bytes(8 * words_of(2, 4)))
    pack(compared, 1, [collectives], 2, 4)
    times = array("q", bytes(8 * times_words(len(RANKS))))
    pack_times(times, 1, RANKS, [stage], 2, 77)
    stages = array("q", bytes(8 * stages_words(2)))
    pack_stages(stages, 1, 2, (0,), [stage], stages_of([stage], {}), 2)
    steps = MS, 30 * MS, 900 * MS, 9_000 * MS
    return [
        *(list(words) for words in (compared, times, stages)),
        sequence_words(1, RANKS, stage, (0,), 4),
        [pack_mix({family: 1 / len(MIX_FAMILIES) for family in MIX_FAMILIES}), NAMED, ROUNDS],
        Mixes(1, range(SLOTS)).words(Group(0, RANKS, False, "world", 7), [None] * ROUNDS),
        [
            [length(ns, ranks) for ns in steps for ranks in (3, 1000)]
            for length in (block_length, messages_block_length)
        ],
        [FIRST_WIDTH, CollectiveExchange.lag, first_capacity(3), list(steps_to_replay(8, 3, 4)), key_of(RANKS, False)],
    ]


def test_what_ranks_send_changes_only_with_the_protocol() -> None:
    digest = hashlib.blake2b(repr(blocks()).encode(), digest_size=8).hexdigest()
    assert (PROTOCOL, digest) == KNOWN, (
        "what ranks send each other has changed: raise PROTOCOL (side_group.py), and enter it here with its new digest"
    )
