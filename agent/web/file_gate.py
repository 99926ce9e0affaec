"""The rules of a web configuration file. They are read again when the file or a certificate changes."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from .config import WebConfig, parse
from .errors import ConfigError, PairError
from .gate import Gate, OpenGate, Refused, Rules
from .limit import Limit

if TYPE_CHECKING:  # at run time, imported only if they are configured
    from .passwords import Passwords
    from .tls import Tls

SETTLES_AFTER_SECONDS = 2.0
"""A changed file is read again for this long, because a second change can have the same modification time."""
FILE_BYTES = 1 << 20


class Teller(Protocol):
    """The part of a log that is needed here."""

    def info(self, message: str, **fields: object) -> None: ...

    def error(self, message: str, **fields: object) -> None: ...


@dataclass(frozen=True, slots=True)
class _State:
    config: WebConfig
    rules: Rules


class FileGate:
    """Applies the rules of a web configuration file. Thread-safe. Raises ConfigError if the file is invalid.

    If the file becomes invalid later, all requests are refused until it is valid again: the new rules are unknown, and
    the change may have been meant to end the old ones. One exception: if a certificate and its key are missing or do
    not match, the previous pair stays in use. They are rarely renewed at the same moment, and they do not decide who
    may connect.
    """

    def __init__(self, path: str, log: Teller):
        self._path = path
        self._log = log
        self._lock = threading.Lock()
        self._files = _Files()
        self._state = self._load(None)
        self._problem = ""  # the last one that was logged
        self._refuse = False
        self.encrypted = self._state.rules.tls is not None

    def rules(self) -> Rules:
        """The current rules. Raises Refused."""
        with self._lock:
            if self._files.changed():
                self._reload()
            if self._refuse:
                raise Refused(self._problem)
            return self._state.rules

    def _reload(self) -> None:
        try:
            state = self._load(self._state)
            if (state.rules.tls is not None) != self.encrypted:
                raise ConfigError("TLS cannot be turned on or off without a restart")
        except PairError as error:
            self._tell(str(error), refuse=False)
        except ConfigError as error:
            self._tell(str(error), refuse=True)
        else:
            if self._problem or state is not self._state:
                self._log.info("the web configuration was loaded", file=self._path)
            self._state, self._problem, self._refuse = state, "", False

    def _tell(self, problem: str, *, refuse: bool) -> None:
        if problem != self._problem:
            then = "nobody is served" if refuse else "the previous certificate stays in use"
            self._log.error("the web configuration is invalid", file=self._path, error=problem, meanwhile=then)
        self._problem, self._refuse = problem, refuse

    def _load(self, last: _State | None) -> _State:
        """The state of the current files. Returns ``last`` itself if they say the same.

        Raises ConfigError. Raises PairError only if the pair is the only problem and ``last`` has a valid pair.
        """
        self._files.begin()
        config = parse(self._files.read(self._path), os.path.dirname(self._path))
        try:
            tls = _tls(config, self._files)
        except PairError as error:
            if last and last.config == config and last.rules.tls and last.rules.tls.policy == error.policy:
                raise
            raise ConfigError(str(error)) from None
        if last and last.config == config and (tls and tls.contents) == (last.rules.tls and last.rules.tls.contents):
            return last
        return _State(config, Rules(tls, config.headers, _passwords(config, last), _limit(config, last)))


def _tls(config: WebConfig, files: _Files) -> Tls | None:
    if not config.tls:
        return None
    from .tls import Tls  # loads OpenSSL, which takes 5 MB

    return Tls(config.tls, files.read)


def _passwords(config: WebConfig, last: _State | None) -> Passwords | None:
    if not config.users:
        return None
    if last and last.config.users == config.users:
        return last.rules.passwords  # it remembers the passwords that were right
    from .passwords import Passwords

    return Passwords(config.users)


def _limit(config: WebConfig, last: _State | None) -> Limit | None:
    wanted = (config.interval_seconds, config.burst)
    if last and (last.config.interval_seconds, last.config.burst) == wanted:
        return last.rules.limit
    return Limit(*wanted) if config.interval_seconds else None


class _Files:
    """Reads files, and finds out whether one of them has changed since."""

    def __init__(self) -> None:
        self._marks: dict[str, tuple[object, float]] = {}  # path -> its mark, and since when it has had it
        self._before: dict[str, tuple[object, float]] = {}

    def begin(self) -> None:
        """Starts a new set of files: :meth:`changed` is about the files that are read after this."""
        self._before, self._marks = self._marks, {}

    def read(self, path: str) -> bytes:
        """The content of a file. Raises ConfigError."""
        mark, seen = _mark(path), self._before.get(path)
        self._marks[path] = seen if seen and seen[0] == mark else (mark, time.monotonic())
        try:
            with open(path, "rb") as file:
                data = file.read(FILE_BYTES + 1)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
        if len(data) > FILE_BYTES:
            raise ConfigError(f"{path} is too long for a configuration or a certificate")
        return data

    def changed(self) -> bool:
        now = time.monotonic()
        return any(
            now - since < SETTLES_AFTER_SECONDS or _mark(path) != mark for path, (mark, since) in self._marks.items()
        )


def _mark(path: str) -> object:
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def gate_of(path: str | None, log: Teller) -> Gate:
    """The gate of a web configuration file, or an open one. Raises ConfigError."""
    return OpenGate() if path is None else FileGate(path, log)
