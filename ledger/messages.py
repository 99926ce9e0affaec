"""How the waits of a pipeline's stages for each other are told apart: the arithmetic of a block. Pure functions.

A stage waits for a message because the message is under way, because the schedule has a bubble there, or because
another stage is late. A block of steps is exchanged twice, each time as a minimum of words over the stages:

1. `pack_times`: of some messages of each link, when the sender issued it and when the receiver had it, each on its own
   clock. The least difference of a direction is a transfer plus the offset of the two clocks, so that half of the
   difference of both directions is the offset (as in NTP, RFC 5905, section 8). A message is then under way from when
   it was issued, or the one before it had arrived, to when it arrives. Only a message that its receiver was waiting
   for tells something. Where a direction has none, the receiver's shortest wait stands in.
2. `pack_stages`: each stage's wait of a step, less the transfers of its messages. The stage that waits least is the
   busiest, counting what it waits in collectives of the whole pipeline. What is waited at least is the bubble of all
   stages: (p - 1) / m of the least busy stage's time for p stages and m microbatches (GPipe and 1F1B: arXiv
   2104.04473, section 2.2). The rest is waited for the busiest stage.
"""

from __future__ import annotations

from .causes import LATE_FAMILIES
from .layout import SLOTS

MESSAGES = 32
"""Messages of each direction of a link that are compared in a block."""
MOST_STAGES = 64
_WAITED = 10_000
"""ns: what is shorter is no wait."""
_WORDS_OF_MESSAGE = 3  # when it was issued, when it was received, how long the receiver waited
_PER_STEP = 1 + len(LATE_FAMILIES) + SLOTS + 3
"""-(not measured), own time per family, waits elsewhere per slot, idle with rank, pipeline, -pipeline"""
