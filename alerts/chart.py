"""The rules as the Helm chart has them: with a token in place of each setting, which the chart replaces by its value.

A chart cannot run Python. So the rules are generated with numbers and strings that write themselves as tokens. What
the chart makes of them is what `whyidle rules --config` makes: tests compare the two.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from . import alerting, recording
from .config import DEFAULT, Config
from .kinds import Number, Text
from .output import parsed
from .settings import Setting, settings
from .thresholds import Thresholds

FILE = "chart.json"
FIXED = frozenset({"windows", "interval", "counters_interval", "window", "long_window", "alerts.past"})
"""What decides which series are recorded: the dashboards ask for those of the defaults. And what has many values."""


class _TokenText(str):
    """A string that is a token."""

    __slots__ = ()


class _TokenNumber(float):
    """A number that writes itself as a token, however it is formatted."""

    token: str

    def __new__(cls, value: float, token: str) -> _TokenNumber:
        made = super().__new__(cls, value)
        made.token = token
        return made

    def __format__(self, spec: str) -> str:
        return self.token

    def __repr__(self) -> str:
        return self.token

    def __str__(self) -> str:
        return self.token


def files(config: Config = DEFAULT) -> dict[str, str]:
    """What the chart reads: file name -> text."""
    return {FILE: json.dumps(document(config), indent=1, ensure_ascii=False) + "\n"}


def document(config: Config = DEFAULT) -> dict[str, Any]:
    """The settings that the chart may change, with what each may be, and the groups of rules with tokens."""
    offered = {
        name: each for of, where in ((Config, ""), (Thresholds, "alerts.")) for name, each in _offered(of, where)
    }
    tokens = {name: _token(name, each) for name, each in offered.items()}
    thresholds = {name.removeprefix("alerts."): value for name, value in tokens.items() if name.startswith("alerts.")}
    own = {name: value for name, value in tokens.items() if not name.startswith("alerts.")}
    tokenised = replace(config, **own, alerts=replace(config.alerts, **thresholds))
    return {
        "settings": {name: _described(each) for name, each in offered.items()},
        "fixed": sorted(FIXED),
        "recording": [parsed(group, tokenised) for group in recording.groups(tokenised)],
        "alerts": [parsed(group, tokenised) for group in alerting.groups(tokenised)],
    }


def _offered(of: type, where: str) -> list[tuple[str, Setting]]:
    return [
        (where + name, each)
        for name, each in settings(of).items()
        if each.kind is not None and where + name not in FIXED
    ]


def _token(name: str, setting: Setting) -> _TokenText | _TokenNumber:
    token = f"⟦{name}⟧"
    return _TokenNumber(setting.default, token) if isinstance(setting.kind, Number) else _TokenText(token)


def _described(setting: Setting) -> dict[str, Any]:
    kind, default = setting.kind, setting.default
    if isinstance(kind, Text):
        return {"default": default, "pattern": f"^({kind.pattern})$", "says": kind.says}
    assert isinstance(kind, Number)
    most = {} if kind.most == float("inf") else {"most": kind.most}
    return {"default": int(default) if default == int(default) else default, "least": kind.least, **most}
