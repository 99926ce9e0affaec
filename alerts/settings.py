"""The settings file of rules and alerts: which settings there are, reading and checking a file, the defaults as YAML.

The keys of the file are the fields of `Config`. `alerts` holds the thresholds, and `for` is the field `for_`, because
`for` is a keyword in Python. A setting that is not in the file keeps its default.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from textwrap import wrap
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

import yaml

from .config import Config, Override
from .kinds import Number, Text
from .thresholds import Thresholds

TAKEN = frozenset(
    {"owner", "run", "rank", "node", "instance", "job", "family", "cause", "collector", "device", "port", "gpu", "uuid"}
    | {"mount", "xid", "__name__", "alertname", "severity"}
)
"""Labels that rules group by. Two alerts that differ only in them would become one, which Prometheus refuses."""
_NO_MORE = "`whyidle rules --print-config` prints all settings."


class SettingsError(ValueError):
    """A setting is wrong. The message says which one, and what to write."""


class Setting(NamedTuple):
    """One key of a settings file. ``kind`` is None for a mapping, and ``many`` means a list of values of this kind."""

    name: str
    default: Any
    kind: Number | Text | None
    many: bool
    says: str


@cache
def settings(of: type) -> Mapping[str, Setting]:
    """The settings of a dataclass, by name, in the order of its fields."""
    hints, says = get_type_hints(of, include_extras=True), _docstrings(of)
    found: dict[str, Setting] = {}
    for each in fields(of):
        default = each.default if each.default is not MISSING else each.default_factory()  # type: ignore[misc]
        kind, many = _kind(hints[each.name])
        name = each.name.rstrip("_")
        found[name] = Setting(name, default, kind, many, says.get(each.name, ""))
    return found


def load(path: Path, names: frozenset[str]) -> Config:
    """The configuration in a file. ``names`` are the names of all alerts.

    Raises SettingsError if the file cannot be read or a setting is wrong.
    """
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    try:
        return parse(document, names)
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}") from error


def parse(document: Any, names: frozenset[str]) -> Config:
    """The configuration from the parsed YAML of a file. Raises SettingsError."""
    given = _mapping(document if document is not None else {}, "the file")
    thresholds = _mapping(given.pop("alerts", {}), "alerts")
    overrides = _mapping(given.pop("overrides", {}), "overrides")
    labels = _labels(given.pop("labels", {}), "labels")
    if (label := given.get("cluster_label")) in TAKEN:
        raise SettingsError(f"cluster_label cannot be {label}: series have a label of this name with another meaning")
    try:
        return replace(
            Config(),
            **_checked(Config, given, ""),
            alerts=replace(Thresholds(), **_checked(Thresholds, thresholds, "alerts.")),
            labels=labels,
            overrides={name: _override(name, value, names) for name, value in overrides.items()},
        )
    except SettingsError:
        raise
    except ValueError as error:  # settings that contradict each other
        raise SettingsError(str(error)) from error


def _override(name: str, value: Any, names: frozenset[str]) -> Override:
    if name not in names:
        raise SettingsError(f"overrides.{name} is not an alert.{_nearest(name, names)}")
    given = _mapping(value, f"overrides.{name}")
    labels = _labels(given.pop("labels", {}), f"overrides.{name}.labels")
    enabled = given.pop("enabled", True)
    if not isinstance(enabled, bool):
        raise SettingsError(f"overrides.{name}.enabled must be true or false, not {enabled!r}")
    checked = _checked(Override, given, f"overrides.{name}.")
    if "for" in checked:
        checked["for_"] = checked.pop("for")
    return Override(**checked, labels=labels, enabled=enabled)


def _checked(of: type, given: Mapping[str, Any], where: str) -> dict[str, Any]:
    known = settings(of)
    found: dict[str, Any] = {}
    for name, value in given.items():
        setting = known.get(name)
        if setting is None:
            raise SettingsError(f"{where}{name} is not a setting.{_nearest(name, known)} {_NO_MORE}")
        found[name] = _value(f"{where}{name}", setting, value)
    return found


def _value(name: str, setting: Setting, value: Any) -> Any:
    if setting.kind is None:
        raise SettingsError(f"{name} must be a mapping")
    if not setting.many:
        return _one(name, setting.kind, value)
    if not isinstance(value, list) or not value:
        raise SettingsError(f"{name} must be a list with at least one item, not {value!r}")
    return tuple(_one(f"{name}[{index}]", setting.kind, item) for index, item in enumerate(value))


def _one(name: str, kind: Number | Text, value: Any) -> Any:
    wrong = kind.wrong(value)
    if wrong:
        raise SettingsError(f"{name} {wrong}")
    return float(value) if isinstance(kind, Number) else value


def _labels(value: Any, where: str) -> dict[str, str]:
    name_kind, text_kind = (_kind(part)[0] for part in get_args(get_type_hints(Config, include_extras=True)["labels"]))
    assert name_kind is not None
    assert text_kind is not None
    found: dict[str, str] = {}
    for name, text in _mapping(value, where).items():
        _one(f"the label {name!r} in {where}", name_kind, name)
        if name in ("alertname", "severity"):
            raise SettingsError(f"{where}.{name} cannot be set: write overrides.<alert>.severity for a severity")
        if name in TAKEN:
            raise SettingsError(f"{where}.{name} cannot be set: alerts have a label {name} that says what they concern")
        found[name] = _one(f"{where}.{name}", text_kind, text)
    return found


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise SettingsError(f"{where} must be a mapping of settings, not {value!r}")
    return dict(value)


def _nearest(name: Any, known: Any) -> str:
    near = get_close_matches(str(name), list(known), n=1, cutoff=0.6)
    return f" Did you mean {near[0]}?" if near else ""


def _kind(hint: Any) -> tuple[Number | Text | None, bool]:
    """The kind of a type hint, and whether it is a tuple of values of this kind."""
    if get_origin(hint) is Annotated:
        return next(each for each in get_args(hint)[1:] if isinstance(each, Number | Text)), False
    if get_origin(hint) is tuple:
        return _kind(get_args(hint)[0])[0], True
    return None, False


# -- settings as YAML


def as_yaml(config: Config) -> str:
    """All settings with their values and descriptions, as YAML. `parse` makes the same configuration of it."""
    return "\n".join(_lines(config)) + "\n"


def _lines(config: Config) -> Iterator[str]:
    yield "# The settings of whyidle's rules and alerts. Keep what you change; the rest keeps its default."
    yield from _section(config, settings(Config), "")
    yield ""
    yield "# Thresholds of alerts."
    yield "alerts:"
    yield from _section(config.alerts, settings(Thresholds), "  ")


def _section(of: Any, known: Mapping[str, Setting], indent: str) -> Iterator[str]:
    for setting in known.values():
        if setting.name == "alerts":
            continue
        yield ""
        yield from (f"{indent}# {line}" for line in wrap(setting.says, 116 - len(indent)))
        yield f"{indent}{setting.name}: {_plain(getattr(of, setting.name))}"


def _plain(value: Any) -> str:
    if isinstance(value, tuple):
        value = list(value)
    elif isinstance(value, Mapping):
        value = {name: _override_values(each) for name, each in value.items()}
    elif isinstance(value, float) and value == int(value):
        value = int(value)
    return yaml.safe_dump(value, default_flow_style=True, width=10_000, allow_unicode=True).split("\n...")[0].strip()


def _override_values(value: Any) -> Any:
    if not isinstance(value, Override):
        return value
    plain = {"severity": value.severity, "for": value.for_, "labels": dict(value.labels)}
    return {name: each for name, each in plain.items() if each} | ({} if value.enabled else {"enabled": False})


def _docstrings(of: type) -> dict[str, str]:
    """Field name -> the string literal below the field, for the fields of a dataclass."""
    tree = ast.parse(inspect.getsource(of)).body[0]
    assert isinstance(tree, ast.ClassDef)
    found: dict[str, str] = {}
    last = ""
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            last = node.target.id
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            found.setdefault(last, " ".join(node.value.value.split()))
    return found
