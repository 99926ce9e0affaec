"""What a rank of a case does. Only the standard library: ranks and tests import it, each in their environment."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

LATE, SAVES = 1, 0
"""The rank that a fault slows down where there are several, and the rank that saves or evaluates."""


@dataclass(frozen=True)
class Plan:
    shape: str
    """Function of shapes.py."""
    loop: str = "plain"
    """Function of loops.py or own_code.py."""
    steps: int = 16
    forward_ms: float = 6.0
    """Device time of each of four blocks. The backward pass takes twice as long."""
    slower: float = 1.0
    """How many times as long the late rank computes."""
    operations: int = 0
    """Small operations of each block. Their launch takes the host longer than they take the device."""
    read_ms: float = 0.0
    """How long each batch of the late rank takes to read."""
    save_every: int = 0
    evaluate_every: int = 0

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str) -> Plan:
        return cls(**json.loads(text))
