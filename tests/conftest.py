"""Fixtures for collectors that read processes of ranks: the two ranks of the simulated node and their trees. Also the
process that forks training scripts.

Tests get signals as in a terminal. What a shell starts in the background ignores SIGINT, what `nohup` starts ignores
SIGHUP, and all processes that a test starts would inherit this.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import long_tests
import pytest
import versions
from fake_node import processes
from hypothesis import HealthCheck, settings
from suite import STOLEN_KEY
from support_forks import Forks
from support_ledgers import children
from support_quiet import Stolen
from support_sites import JUDGED

from whyidle.agent.files import Roots


def _lost_terminal(number: int, frame: object) -> None:
    """Under `nohup` the tests themselves continue. A handler is not inherited across exec, so started programs have
    none."""


_USUAL = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: _lost_terminal}
for _number, _handler in _USUAL.items():
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)


os.environ.update(JUDGED)

os.environ.setdefault("GOGC", "400")
"""Helm's engine, promtool and Prometheus are written in Go. They collect garbage less often than usual, because this
takes up to a third of their CPU time."""

# How long an example takes, or its creation, depends on other programs on the machine.
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")


class _Root:
    """Treats the root of the repository as a plain directory.

    It is the package whyidle. pytest would import it again, under the name of the directory, which may be no name of a
    package: `why-idle`. A hook of this file itself is only called for directories below it.
    """

    @pytest.hookimpl(tryfirst=True)
    def pytest_collect_directory(self, path: Path, parent: pytest.Collector) -> pytest.Collector | None:
        return pytest.Dir.from_parent(parent, path=path) if path == parent.config.rootpath else None


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Root())
    long_tests.watch(config)
    versions.watch(config)


_STOLEN = pytest.StashKey[dict[Path, Stolen]]()
"""For each module that has tests marked `alone`: the CPU time that a hypervisor took since its first test."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    if item.get_closest_marker("alone"):
        modules = item.config.stash.setdefault(_STOLEN, {})
        modules.setdefault(item.path, Stolen())
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Tells tools/suite.py whether a failed test had the cores."""
    report = yield
    stolen = item.config.stash.get(_STOLEN, {}).get(item.path)
    cache = getattr(item.config, "cache", None)  # there is none with `-p no:cacheprovider`
    if report.failed and stolen is not None and cache is not None:
        known = cache.get(STOLEN_KEY, {})
        cache.set(STOLEN_KEY, {**known, item.nodeid: stolen.so_far()})
    return report


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    """Runs training scripts without the seconds that importing torch takes."""
    with Forks() as found:
        yield found


@pytest.fixture(scope="module")
def ledgers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The live ledgers of the two ranks of the simulated node."""
    directory = tmp_path_factory.mktemp("ledgers")
    with children(directory, *processes.specs()):
        yield directory


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    """The trees that show their processes."""
    found = Roots(str(tmp_path / "proc"), str(tmp_path / "sys"), str(tmp_path / "root"))
    processes.build(found)
    return found
