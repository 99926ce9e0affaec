"""Tokens in place of settings, for texts that get their values later: in the Helm chart or in a dashboard.

A configuration of tokens has numbers and strings that format themselves as tokens. So a text that is generated from it
has a token wherever a setting is used.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .config import DEFAULT, Config
from .kinds import Number
from .settings import Setting, settings
from .thresholds import Thresholds

FIXED = frozenset(
    {
        *("windows", "interval", "details_interval", "ranks_interval", "counters_interval", "window", "long_window"),
        "alerts.past",
    }
)
"""Settings without a token: those that decide which series are recorded, because the dashboards query the series of the
default settings; and the setting that is a list."""
_TOKEN = re.compile("⟦([^⟧]+)⟧")


class _TokenText(str):
    """A string that is a token."""

    __slots__ = ()


class _TokenNumber(float):
    """A number that becomes a token in every kind of formatting."""

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


def token(name: str) -> str:
    """The token of a setting."""
    return f"⟦{name}⟧"


def offered() -> Mapping[str, Setting]:
    """The settings that have tokens, by name. The names of thresholds begin with `alerts.`."""
    return {
        where + name: each
        for of, where in ((Config, ""), (Thresholds, "alerts."))
        for name, each in settings(of).items()
        if each.kind is not None and where + name not in FIXED
    }


def tokenised(config: Config = DEFAULT) -> Config:
    """The configuration with a token in place of each setting that has one."""
    tokens = {name: _token(name, each) for name, each in offered().items()}
    thresholds = {name.removeprefix("alerts."): value for name, value in tokens.items() if name.startswith("alerts.")}
    own = {name: value for name, value in tokens.items() if not name.startswith("alerts.")}
    return replace(config, **own, alerts=replace(config.alerts, **thresholds))


def filled(document: str, config: Config) -> str:
    """Replaces the tokens in a JSON text by the values of a configuration. An empty selector leaves no comma behind."""
    if not config.selector:
        document = document.replace("{⟦selector⟧}", "").replace(", ⟦selector⟧", "").replace("{⟦selector⟧, ", "{")
    return _TOKEN.sub(lambda found: json.dumps(_written(found[1], config), ensure_ascii=False)[1:-1], document)


def _written(name: str, config: Config) -> str:
    of: Any = config
    for part in name.split("."):
        of = getattr(of, part)
    return f"{of:.15g}" if isinstance(of, float) else of


def _token(name: str, setting: Setting) -> _TokenText | _TokenNumber:
    return _TokenNumber(setting.default, token(name)) if isinstance(setting.kind, Number) else _TokenText(token(name))
