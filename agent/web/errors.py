"""What can be wrong with a web configuration."""

from __future__ import annotations


class ConfigError(Exception):
    """A configuration that cannot be used. Its text says what is wrong with it, and shows no secret."""


class PairError(ConfigError):
    """A certificate and a key that are not there, or do not belong together: as while they are being renewed."""

    def __init__(self, problem: str, policy: object):
        super().__init__(problem)
        self.policy = policy
        """Who may connect, all else being right."""
