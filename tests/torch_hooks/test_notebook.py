"""Notebooks: the time between cells, the name of the run, and the report that draws itself."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import whyidle
from whyidle.ledger.causes import PHASE
from whyidle.torch_hooks.identity import run_id
from whyidle.torch_hooks.notebook import name_of_notebook, watch


class Events:
    """The events of IPython's shell."""

    def __init__(self) -> None:
        self.callbacks: dict[str, list[Callable[..., Any]]] = {"pre_run_cell": [], "post_run_cell": []}

    def register(self, event: str, function: Callable[..., Any]) -> None:
        self.callbacks[event].append(function)

    def unregister(self, event: str, function: Callable[..., Any]) -> None:
        self.callbacks[event].remove(function)

    def trigger(self, event: str) -> None:
        for function in self.callbacks[event][:]:
            function(object())


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> Events:
    shell = types.SimpleNamespace(events=Events())
    module = types.ModuleType("IPython")
    module.get_ipython = lambda: shell  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", module)
    return shell.events


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, events: Events) -> Iterator[Events]:
    monkeypatch.setenv("WHYIDLE_DIR", str(tmp_path))
    monkeypatch.delenv("WHYIDLE", raising=False)
    whyidle.load_ipython_extension(None)
    yield events
    whyidle.unload_ipython_extension(None)


def _ledger() -> Any:
    from whyidle.ledger.reader import parse_ledger
    from whyidle.torch_hooks.attach import own_ledger

    own = own_ledger()
    assert own is not None
    return parse_ledger(own[1], own[0], alive=True)


def test_between_cells_the_rank_waits_for_its_user(recorded: Events) -> None:
    before = _ledger().phase_name
    recorded.trigger("post_run_cell")
    assert _ledger().phase_name == "interactive"
    recorded.trigger("pre_run_cell")
    found = _ledger()
    assert (found.phase_name, found.cause_ns["interactive"] > 0) == (before, True)
    spent = found.cause_ns["interactive"]
    recorded.trigger("pre_run_cell")  # a cell in a cell
    assert _ledger().cause_ns["interactive"] == spent


def test_the_callbacks_are_removed(recorded: Events) -> None:
    assert all(recorded.callbacks.values())
    recorded.trigger("post_run_cell")
    whyidle.detach()
    assert not any(recorded.callbacks.values())


def test_a_process_without_a_shell_is_recorded_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (None, types.ModuleType("IPython")):
        monkeypatch.setitem(sys.modules, "IPython", module)
        watch(None)()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("program", "name"),
    [
        ("/lib/site-packages/ipykernel_launcher.py", "fine tune"),
        ("/lib/ipykernel/__main__.py", "fine tune"),
        ("/lib/colab_kernel_launcher.py", "fine tune"),
        ("train.py", ""),
        ("", ""),
    ],
)
def test_a_run_is_named_after_its_notebook(program: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    env = {"JPY_SESSION_NAME": "/home/somebody/fine tune.ipynb"}
    assert name_of_notebook(env, program) == name
    monkeypatch.setattr(sys, "argv", [program])
    if name:
        assert run_id(env).startswith(f"{name}-")
        assert run_id({}).partition("-")[0] in ("ipykernel_launcher", "__main__", "colab_kernel_launcher")


def test_a_report_draws_itself(recorded: Events) -> None:
    drawn = whyidle.report()._repr_html_()
    assert "no verdict yet" in drawn
    assert "startup" in drawn
    assert str(whyidle.report()).startswith("run ")
    from whyidle.torch_hooks import attach

    machine = attach._session.machine
    machine.begin()
    machine.cut(PHASE["host"])
    drawn = whyidle.report()._repr_html_()
    assert "too short to judge" in drawn
    assert "<table>" in drawn
    assert "<script" not in drawn


def test_without_a_ledger_the_report_says_why() -> None:
    assert "not recorded" in whyidle.report()._repr_html_()
    assert "not recorded" in str(whyidle.report())
