"""The fault matrix of a collector that reads files: each file of its tree is corrupted in turn, in every way.

For each fault, the collector must answer, the series from the file must be absent, every other series must keep its
value, and the loss must be counted. When the file is correct again, everything must be back.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from whyidle.agent.collector import Collector
from whyidle.agent.reading import Absent, Labels, ReadError, Reading

Series = tuple[str, Labels]

CONTENTS: dict[str, bytes] = {
    "empty": b"",
    "not available": b"N/A (no PMA)\n",
    "garbage": b"four score and seven\n",
    "huge": b"1" * (64 << 10),
    "binary": bytes(range(256)),
}
HUGE_BYTES = 8 << 20
"""The rest of a huge file is a hole, because some tests make hundreds of them."""
FAULTS: tuple[str, ...] = (*CONTENTS, "missing", "EINVAL")
"""The kernel returns EINVAL for the speed of the loopback interface."""

_INVALID = "/sys/class/net/lo/speed"


def read(collector: Collector) -> tuple[dict[Series, object], Counter[ReadError]]:
    """One scrape of one collector: its series and its errors. An absent collector has neither."""
    reading = Reading()
    try:
        collector.collect(reading)
    except Absent:
        return {}, Counter()
    series: dict[Series, object] = {
        (metric.name, labels): value for metric, samples in reading.samples.items() for labels, value in samples.items()
    }
    return series, Counter(reading.errors)


class Anew:
    """A collector that starts again at each scrape: for files that cannot be removed while they are open."""

    def __init__(self, create: Callable[[], Collector]):
        self._create = create

    def collect(self, reading: Reading) -> None:
        self._create().collect(reading)


def files(*roots: Path) -> Iterator[Path]:
    """All plain files under the roots, in order."""
    for root in roots:
        for folder, _, names in sorted(os.walk(root)):
            yield from (path for name in sorted(names) if not (path := Path(folder, name)).is_symlink())


@contextmanager
def spoilt(path: Path, fault: str) -> Iterator[None]:
    """The file at ``path``, corrupted inside the block."""
    kept = path.parent.with_name(f".kept-{path.parent.name}-{path.name}")
    sound = path.read_bytes()
    if fault in CONTENTS:
        path.write_bytes(CONTENTS[fault])
        if fault == "huge":
            os.truncate(path, HUGE_BYTES)
    else:
        path.rename(kept)
        if fault == "EINVAL":
            path.symlink_to(_INVALID)
    try:
        yield
    finally:
        if fault in CONTENTS:
            path.write_bytes(sound)
        else:
            path.unlink(missing_ok=True)
            kept.rename(path)


def check(
    create: Callable[[], Collector],
    path: Path,
    fault: str,
    holds: Callable[[Series], bool],
    *,
    varies: Callable[[Series], bool] = lambda series: False,
    comes: Callable[[Series], bool] = lambda series: False,
    counted: bool = True,
    knowing: Collector | None = None,
) -> None:
    """Asserts the conditions for a corrupted ``path``.

    ``holds`` says which series come from the file, and ``varies`` which change from scrape to scrape by themselves.
    ``comes`` says which may come instead: an info series with one label less. ``counted`` is False for a file that may
    be missing at no cost. ``knowing`` is a collector that has read the correct tree, for trees of many files.
    """
    collector = knowing or create()
    before, errors_before = read(collector)
    lost = {series for series in before if holds(series)}
    where = f"{path} {fault}"
    with spoilt(path, fault):
        # One reader knew the file when it was correct, and one starts with the corrupt file.
        for reader in (collector, create()):
            during, errors = read(reader)
            assert before.keys() - during.keys() == lost, where
            assert not {series for series in during.keys() - before.keys() if not comes(series)}, where
            both = before.keys() & during.keys()
            changed = {series for series in both if during[series] != before[series] and not varies(series)}
            assert not changed, (where, changed)
            assert bool(errors - errors_before) == counted, (where, errors)
    after, _ = read(collector)
    assert after.keys() == before.keys(), where
