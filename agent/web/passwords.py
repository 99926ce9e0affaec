"""Basic authentication against bcrypt hashes. RFC 7617."""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import threading
from collections.abc import Mapping

from .errors import ConfigError
from .messages import Response, plain

try:
    import bcrypt
except ImportError:
    bcrypt = None

QUEUE = 16
"""How many requests may wait for a password check. Checks run one at a time, because each keeps a core busy."""
_BYTES = 72
"""bcrypt uses only this many bytes of a password."""
_DENIED = plain(401, headers=(("WWW-Authenticate", 'Basic realm="whyidle", charset="UTF-8"'),))
_BUSY = plain(503, "too many passwords are waiting to be checked", headers=(("Retry-After", "1"),))


class Passwords:
    """The users of one configuration. Thread-safe. Raises ConfigError if bcrypt is not installed.

    A password that was right is remembered as a keyed digest, because a check by bcrypt takes about 70 ms by design.
    The key exists only in this process. Wrong passwords are not remembered, so that guessing cannot fill the memory.
    """

    def __init__(self, users: Mapping[str, str]):
        if bcrypt is None:
            raise ConfigError("basic_auth_users needs bcrypt: pip install 'whyidle[agent]'")
        self._hashes = {name.encode(): secret.encode() for name, secret in users.items()}
        # The passwords of unknown users are checked against this, so that the duration
        # does not reveal which users exist.
        cost = int(next(iter(users.values())).split("$")[2])
        self._decoy = bcrypt.hashpw(base64.b64encode(os.urandom(24)), bcrypt.gensalt(cost))
        self._key = os.urandom(32)
        self._right: dict[bytes, bytes] = {}  # user -> digest of the password
        self._one_at_a_time = threading.Lock()
        self._queue = threading.BoundedSemaphore(QUEUE)

    def check(self, authorization: str) -> Response | None:
        """None if user and password are right, otherwise the answer that refuses the request."""
        credentials = _credentials(authorization)
        if credentials is None:
            return _DENIED
        user, password = credentials
        digest = hashlib.blake2b(password, key=self._key).digest()
        if self._right.get(user) == digest:
            return None
        if not self._queue.acquire(blocking=False):
            return _BUSY
        try:
            with self._one_at_a_time:
                return None if self._verify(user, password, digest) else _DENIED
        finally:
            self._queue.release()

    def _verify(self, user: bytes, password: bytes, digest: bytes) -> bool:
        if self._right.get(user) == digest:  # another request has checked it in the meantime
            return True
        known = user in self._hashes
        if not (_matches(password, self._hashes.get(user, self._decoy)) and known):
            return False
        self._right[user] = digest
        return True


def _matches(password: bytes, secret: bytes) -> bool:
    assert bcrypt
    try:
        return bcrypt.checkpw(password[:_BYTES], secret)
    except ValueError:  # the password contains a NUL, which no valid password does
        return False


def _credentials(authorization: str) -> tuple[bytes, bytes] | None:
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        decoded = base64.b64decode(encoded.strip(), validate=True)
    except (binascii.Error, ValueError):
        return None
    user, colon, password = decoded.partition(b":")
    return (user, password) if colon else None
