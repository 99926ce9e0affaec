"""The rules for the Helm chart, with a token in place of each setting. The chart replaces each token by its value.

A chart cannot run Python. So the rules are generated from numbers and strings that format themselves as tokens. Tests
check that the chart's result is the same as that of `whyidle rules --config`.
"""

from __future__ import annotations

import json
from typing import Any

from . import alerting, recording
from .config import DEFAULT, Config
from .kinds import Expression, Number, Text
from .output import parsed
from .settings import TAKEN, Setting
from .tokens import FIXED, offered, tokenised

FILE = "chart.json"


def files(config: Config = DEFAULT) -> dict[str, str]:
    """The files that the chart reads: file name -> text."""
    return {FILE: json.dumps(document(config), indent=1, ensure_ascii=False) + "\n"}


def document(config: Config = DEFAULT) -> dict[str, Any]:
    """The settings that the chart may change, with the values that each allows, and the groups of rules with tokens."""
    made = tokenised(config)
    return {
        "settings": {name: _described(each) for name, each in offered().items()},
        "fixed": sorted(FIXED),
        "taken": sorted(TAKEN),
        "recording": [parsed(group, made) for group in recording.groups(made)],
        "alerts": [parsed(group, made) for group in alerting.groups(made)],
    }


def _described(setting: Setting) -> dict[str, Any]:
    kind, default = setting.kind, setting.default
    if isinstance(kind, Text):
        expression = {"expression": True} if isinstance(kind, Expression) else {}
        return {"default": default, "pattern": f"^({kind.pattern})$", "says": kind.says, **expression}
    assert isinstance(kind, Number)
    most = {} if kind.most == float("inf") else {"most": kind.most}
    return {"default": int(default) if default == int(default) else default, "least": kind.least, **most}
