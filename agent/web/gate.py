"""Who may connect and ask, as the connections see it. Without a configuration: everybody, in plain HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from .messages import Headers, Request, Response

if TYPE_CHECKING:  # neither is imported where it is not asked for
    from .limit import Limit
    from .passwords import Passwords
    from .tls import Tls


class Refused(Exception):
    """The rules cannot be told now, so nobody is served. Its text is for the log."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What holds for one request."""

    tls: Tls | None = None
    headers: Headers = ()
    passwords: Passwords | None = None
    limit: Limit | None = None

    def admit(self, request: Request) -> Response | None:
        """None, or what to answer instead."""
        if self.limit and (answer := self.limit.check()):
            return answer
        return self.passwords.check(request.headers.get("authorization", "")) if self.passwords else None


class Gate(Protocol):
    """Asked anew for each request."""

    @property
    def encrypted(self) -> bool:
        """Whether connections speak TLS; that never changes."""
        ...

    def rules(self) -> Rules:
        """What holds now. Raises Refused."""
        ...


class OpenGate:
    """Everybody may ask."""

    encrypted = False

    def __init__(self) -> None:
        self._rules = Rules()

    def rules(self) -> Rules:
        return self._rules
