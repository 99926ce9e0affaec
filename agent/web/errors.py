"""Errors in a web configuration."""

from __future__ import annotations


class ConfigError(Exception):
    """A configuration that cannot be used. The message says what is wrong, and contains no secret."""


class PairError(ConfigError):
    """A certificate and a key that are missing or do not match, for example while they are being renewed."""

    def __init__(self, problem: str, policy: object):
        super().__init__(problem)
        self.policy = policy
        """The policy (see Tls.policy) of the configuration, of which only the pair is wrong."""
