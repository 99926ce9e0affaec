"""What the NVLinks of a GPU can carry, with the real nvidia-ml-py and a simulated library."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_node.nvml import Value
from support_gpu import WHOLE, Answer, Bench, looking

# A process loads the library once, and pynvml keeps it in globals.
pytestmark = pytest.mark.xdist_group("nvml")

NVLINK_RATE = "whyidle_gpu_nvlink_rate_bytes_per_second"
LINK_MBPS = 26_562
OF_LINKS = {
    "all of the 18 active": ({}, 18 * LINK_MBPS),
    "one down": ({"nvlink3_up": 0}, 17 * LINK_MBPS),
    "one down, and it has no speed": ({"nvlink3_up": 0, "nvlink3_mbps": 0}, 17 * LINK_MBPS),
    "asleep until there is traffic": ({"nvlink_up": 2}, 18 * LINK_MBPS),
    "none active": ({"nvlink_up": 0}, None),
    "no NVLink": ({"nvlinks": 0}, None),
    "a driver that does not know the fields": ({"field164": "!3", "field91": "!2"}, None),
    "partitioned": ({"mig_mode": 1}, None),
}
"""Values of the GPU -> MB/s of all links."""


@pytest.fixture
def whole(tmp_path: Path) -> Iterator[Bench]:
    """No GPU is partitioned."""
    yield from looking(tmp_path, mig=None)


def rates(answer: Answer) -> dict[str, float]:
    return {labels[0]: value for (name, labels), value in answer.series.items() if name == NVLINK_RATE}


@pytest.mark.parametrize(("values", "megabytes"), OF_LINKS.values(), ids=OF_LINKS.keys())
def test_the_rate_of_nvlinks_is_that_of_the_links_in_use(
    whole: Bench, values: dict[str, Value], megabytes: int | None
) -> None:
    whole.node.gpu(WHOLE, **values)
    answer = whole.look()
    others = 18 * LINK_MBPS * 1e6
    assert rates(answer) == ({"1": others} if megabytes is None else {"0": megabytes * 1e6, "1": others})
    assert not answer.errors


def test_the_rate_of_nvlinks_is_read_once_a_minute(whole: Bench) -> None:
    whole.look()
    whole.node.gpu(WHOLE, nvlink3_up=0)
    assert whole.look(30).value(NVLINK_RATE, "0") == 18 * LINK_MBPS * 1e6
    assert whole.look(31).value(NVLINK_RATE, "0") == 17 * LINK_MBPS * 1e6


@pytest.mark.parametrize("values", [{"nvlinks": 1000}, {"nvlink_mbps": 1 << 31}, {"field91": "!999"}])
def test_a_rate_of_nvlinks_that_cannot_be_read_is_counted_and_absent(whole: Bench, values: dict[str, Value]) -> None:
    whole.node.gpu(WHOLE, **values)
    answer = whole.look()
    assert rates(answer).keys() == {"1"}
    assert answer.errors
