"""Loads YAML strictly, as exporters do for their configuration: a repeated key is an error."""

from __future__ import annotations

from .errors import ConfigError

try:
    import yaml
except ImportError:
    yaml = None


def load(data: bytes) -> object:
    """The content of the YAML in ``data``. Raises ConfigError."""
    if yaml is None:
        raise ConfigError("a web configuration needs PyYAML: pip install 'whyidle[agent]'")
    try:
        loader = yaml.SafeLoader(data)
        root = loader.get_single_node()
        if root is None:
            return None
        _refuse_repeated_keys(root, set())
        return loader.construct_document(root)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" in line {mark.line + 1}" if mark else ""
        raise ConfigError(f"it is not YAML: {error.problem or error.context}{where}") from None
    except (yaml.YAMLError, ValueError, RecursionError):  # not text; an invalid date; nested too deeply
        raise ConfigError("it is not YAML") from None


def _refuse_repeated_keys(node: object, seen: set[int]) -> None:
    assert yaml
    if id(node) in seen:  # an alias
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for entry in node.value:
            _refuse_repeated_keys(entry, seen)
    elif isinstance(node, yaml.MappingNode):
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"the key {name!r} appears twice")
        for _, value in node.value:
            _refuse_repeated_keys(value, seen)
