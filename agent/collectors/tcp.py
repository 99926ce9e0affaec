"""The collector `tcp`: TCP's counters, of the node and of the network namespaces of its ranks."""

from __future__ import annotations

from collections.abc import Callable

from ..collector import Options
from ..files import KeptFiles, Unreadable, read
from ..kernel.namespaces import HOST, RankNamespaces, node_folder
from ..metrics.metric import Metric
from ..metrics.tcp import COUNTED, NAMESPACE_INFO
from ..parsers import snmp
from ..reading import Absent, Reading

_FILES: dict[str, dict[str, dict[str, Metric]]] = {}
"""File -> protocol -> column -> metric."""
for _metric in COUNTED:
    _file, _protocol, _column = _metric.source.split()
    _FILES.setdefault(_file.rpartition("/")[2], {}).setdefault(_protocol, {})[_column] = _metric

Picks = list[tuple[str, int, Metric]]


def create(options: Options) -> TcpCollector:
    return TcpCollector(options)


class TcpCollector:
    def __init__(self, options: Options):
        self._roots = options.roots
        self._files = KeptFiles()
        self._namespaces = RankNamespaces(options)
        self._picks: dict[tuple[str, bytes], Picks] = {}

    def collect(self, reading: Reading) -> None:
        folder = node_folder(self._roots, reading)
        if not sum(self._read(folder, file, HOST, self._files.text, reading) for file in _FILES):
            raise Absent(f"{folder}/snmp")
        for namespace in self._namespaces.look(folder, reading):
            for rank in namespace.ranks:
                reading.add(NAMESPACE_INFO, (namespace.name, *rank), 1)
            if namespace.name != HOST:
                for file in _FILES:
                    self._read(namespace.folder, file, namespace.name, read, reading)

    def _read(self, folder: str, file: str, namespace: str, text: Callable[[str], bytes], reading: Reading) -> bool:
        """Reads one file. Returns whether it exists."""
        try:
            protocols = snmp.protocols(text(f"{folder}/{file}"))
            wanted = [name for name in _FILES[file] if name.encode() in protocols]
            if not wanted:
                raise Unreadable("garbage")
        except Unreadable as error:
            ended = namespace != HOST and error.reason in ("missing", "gone")
            if not ended:
                reading.error("" if namespace == HOST else namespace, f"net/{file}", error.reason)
            return error.reason != "missing"
        for name in wanted:
            self._take(name, protocols[name.encode()], file, namespace, reading)
        return True

    def _take(self, protocol: str, lines: snmp.Lines, file: str, namespace: str, reading: Reading) -> None:
        picks = self._picks.get((file, lines.names))
        if picks is None:
            columns = snmp.columns(lines.names)
            metrics = _FILES[file][protocol]
            picks = [(column, columns[column], metric) for column, metric in metrics.items() if column in columns]
            if len(self._picks) > 16:
                self._picks.clear()
            self._picks[file, lines.names] = picks
        labels = (namespace,)
        for column, place, metric in picks:
            try:
                value = snmp.value(lines.values[place])
            except Unreadable as error:
                reading.error("" if namespace == HOST else namespace, f"net/{file} {column}", error.reason)
                continue
            reading.add(metric, labels, metric.base(value))
