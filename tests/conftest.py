"""Fixtures of the collectors that look at the processes of ranks: the fake node's two ranks and their trees. And the
process in whose forks training scripts run.

And signals as a terminal has them: what a shell starts in the background ignores SIGINT, what `nohup` starts ignores
SIGHUP, and both hand that on to every process that a test starts and signals.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_node import processes
from hypothesis import HealthCheck, settings
from support_forks import Forks
from support_ledgers import children

from whyidle.agent.files import Roots


def _lost_terminal(number: int, frame: object) -> None:
    """Under `nohup` the tests themselves go on. A handler is not inherited across exec: what they start has none."""


_USUAL = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: _lost_terminal}
for _number, _handler in _USUAL.items():
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)


# How long an example takes, or the making of one, depends on who else uses the machine.
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    """Runs training scripts without the seconds that an import of torch takes."""
    with Forks() as found:
        yield found


@pytest.fixture(scope="module")
def ledgers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The live ledgers of the fake node's two ranks."""
    directory = tmp_path_factory.mktemp("ledgers")
    with children(directory, *processes.specs()):
        yield directory


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    """The trees that show their processes."""
    found = Roots(str(tmp_path / "proc"), str(tmp_path / "sys"), str(tmp_path / "root"))
    processes.build(found)
    return found
