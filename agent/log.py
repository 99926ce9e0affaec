"""The agent's log: one line per event, logfmt or JSON, on standard error."""

from __future__ import annotations

import json
import sys
from datetime import datetime, timezone
from typing import TextIO

LEVELS: tuple[str, ...] = ("debug", "info", "warn", "error")
FORMATS: tuple[str, ...] = ("logfmt", "json")


class Log:
    """Writes lines such as ``level=info msg="listening" address=127.0.0.1:9838 ts=2025-01-31T12:00:00.000Z``.

    A line that cannot be written is dropped: the agent must not stop because nobody reads its log.
    """

    def __init__(self, level: str = "info", style: str = "logfmt", stream: TextIO | None = None):
        self._least = LEVELS.index(level)
        self._format = _logfmt if style == "logfmt" else json.dumps
        self._stream = stream or sys.stderr

    def debug(self, message: str, **fields: object) -> None:
        self._write("debug", message, fields)

    def info(self, message: str, **fields: object) -> None:
        self._write("info", message, fields)

    def warning(self, message: str, **fields: object) -> None:
        self._write("warn", message, fields)

    def error(self, message: str, **fields: object) -> None:
        self._write("error", message, fields)

    def _write(self, level: str, message: str, fields: dict[str, object]) -> None:
        if LEVELS.index(level) < self._least:
            return
        moment = datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = self._format({"level": level, "msg": message, **{k: str(v) for k, v in fields.items()}, "ts": moment})
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            pass


def _logfmt(fields: dict[str, str]) -> str:
    return " ".join(f"{name}={_quoted(value) if name == 'msg' else _word(value)}" for name, value in fields.items())


def _word(value: str) -> str:
    plain = value and value.isprintable() and not any(c in ' "=\\' for c in value)
    return value if plain else _quoted(value)


def _quoted(value: str) -> str:
    return json.dumps(value, ensure_ascii=not value.isprintable())
