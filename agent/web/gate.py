"""Decides who may connect and send requests. Without a configuration, everybody may connect, in plain HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from .messages import Headers, Request, Response

if TYPE_CHECKING:  # at run time, imported only if they are configured
    from .limit import Limit
    from .passwords import Passwords
    from .tls import Tls


class Refused(Exception):
    """The rules are invalid at the moment, so no request is served. The message is for the log."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules that apply to one request."""

    tls: Tls | None = None
    headers: Headers = ()
    passwords: Passwords | None = None
    limit: Limit | None = None

    def admit(self, request: Request) -> Response | None:
        """None if the request is allowed, otherwise the answer that refuses it."""
        if self.limit and (answer := self.limit.check()):
            return answer
        return self.passwords.check(request.headers.get("authorization", "")) if self.passwords else None


class Gate(Protocol):
    """Provides the rules. It is asked for each request."""

    @property
    def encrypted(self) -> bool:
        """Whether connections use TLS. This never changes."""
        ...

    def rules(self) -> Rules:
        """The current rules. Raises Refused."""
        ...


class OpenGate:
    """Allows all requests."""

    encrypted = False

    def __init__(self) -> None:
        self._rules = Rules()

    def rules(self) -> Rules:
        return self._rules
