"""Reads values of a GPU with nvmlDeviceGetFieldValues: about thirty with one call, and others now and then."""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Sequence
from typing import NamedTuple

from ...metrics import gpu as metrics
from ...metrics.metric import Metric
from .nvml import INVALID_ARGUMENT, NOT_SUPPORTED
from .target import Target

CALL = "nvmlDeviceGetFieldValues"
ALL_LINKS = 0xFFFFFFFF

_ONE = struct.Struct("=IIqqIIQ")  # nvmlFieldValue_t: field, scope, time, latency, type, result, value
_DOUBLE = struct.Struct("=d")
_QUAD = struct.Struct("=Q")
_MASKS: dict[int, int] = {1: 0xFFFFFFFF, 2: (1 << 64) - 1, 3: (1 << 64) - 1, 6: 0xFFFF}
"""nvmlValueType_t, if unsigned -> the bits of the union that hold the value."""
_UNKNOWN = (NOT_SUPPORTED, INVALID_ARGUMENT)  # the latter for fields that the driver does not know


class Field(NamedTuple):
    id: int  # NVML_FI_DEV_*
    metric: Metric
    labels: tuple[str, ...] = ()
    scope: int = 0
    most: int = 1 << 63


FIELDS: tuple[Field, ...] = (
    Field(83, metrics.ENERGY),
    Field(186, metrics.POWER, most=100_000_000),  # instantaneous; the average (185) is said to take the driver 3 ms
    Field(190, metrics.POWER_LIMIT, most=100_000_000),
    Field(82, metrics.TEMPERATURE_MEMORY, most=1000),
    Field(138, metrics.NVLINK_BYTES, ("tx",), ALL_LINKS),
    Field(139, metrics.NVLINK_BYTES, ("rx",), ALL_LINKS),
    Field(38, metrics.NVLINK_ERRORS, ("crc_flit",)),
    Field(45, metrics.NVLINK_ERRORS, ("crc_data",)),
    Field(52, metrics.NVLINK_ERRORS, ("replay",)),
    Field(59, metrics.NVLINK_ERRORS, ("recovery",)),
    Field(3, metrics.ECC_ERRORS, ("corrected", "volatile")),
    Field(4, metrics.ECC_ERRORS, ("uncorrected", "volatile")),
    Field(5, metrics.ECC_ERRORS, ("corrected", "aggregate")),
    Field(6, metrics.ECC_ERRORS, ("uncorrected", "aggregate")),
    Field(142, metrics.REMAPPED, ("corrected",)),
    Field(143, metrics.REMAPPED, ("uncorrected",)),
    Field(144, metrics.REMAP_PENDING, most=1),
    Field(145, metrics.REMAP_FAILURE, most=1),
    Field(29, metrics.RETIRED, ("corrected",)),
    Field(30, metrics.RETIRED, ("uncorrected",)),
    Field(31, metrics.RETIRED_PENDING, most=1),
    Field(94, metrics.PCIE_REPLAYS),
    *(
        Field(throttle.field, metrics.THROTTLED, (throttle.reason, "counter"))
        for throttle in metrics.THROTTLES
        if throttle.field is not None
    ),
)
PCIE_FIELDS: tuple[Field, ...] = (
    Field(197, metrics.PCIE_BYTES, ("tx", "nvml")),
    Field(198, metrics.PCIE_BYTES, ("rx", "nvml")),
)
"""Read only if GPM does not have the PCIe traffic, because the driver needs about 0.3 ms for them."""
_ALL = (*FIELDS, *PCIE_FIELDS)
_WIDE_ONLY = frozenset(field.id for field in PCIE_FIELDS)
"""Fields that are used only if they have 64 bits: with 32 bits, these counters wrap several times a second."""


class Batch:
    """The fields that one GPU supports, packed for the library."""

    __slots__ = ("_buffer", "_fields", "_ids", "_labels", "_metrics", "_target", "_template", "_until", "_wanted")

    def __init__(self, target: Target):
        self._target = target
        self._wanted: tuple[Field, ...] = ()
        self._until = 0.0
        self._fields: list[Field] = []
        self._ids: frozenset[int] = frozenset()
        self._metrics: set[Metric] = set()
        self._labels: list[tuple[str, ...]] = []
        self._template = b""
        self._buffer = ctypes.create_string_buffer(1)

    def has(self, field: int) -> bool:
        """Whether the GPU supports this field, as far as is known."""
        return field in self._ids and self._target.asks(CALL)

    def read(self, *, pcie: bool) -> set[Metric]:
        """Adds the samples of all fields. Returns the metrics of supported fields, including those that failed now."""
        target = self._target
        wanted = _ALL if pcie else FIELDS
        if wanted is not self._wanted or target.now >= self._until:
            self._compose(wanted)
        function = target.function(CALL)
        if function is None or not self._fields:
            return set()
        ctypes.memmove(self._buffer, self._template, len(self._template))
        known = set(self._metrics)
        if not target.answered(function(target.handle, len(self._fields), self._buffer), CALL):
            return known if target.asks(CALL) else set()
        unsupported: list[Field] = []
        add = target.reading.add
        for (_, _, _, _, kind, result, raw), field, labels in zip(
            _ONE.iter_unpack(self._buffer), self._fields, self._labels, strict=True
        ):
            if result:
                if result in _UNKNOWN:
                    unsupported.append(field)
                else:
                    target.failed(result, f"{CALL}/{field.id}")
                continue
            value = _value(kind, raw)
            if value is None or not 0 <= value <= field.most:
                target.garbage(f"{CALL}/{field.id}")
            elif kind == 1 and field.id in _WIDE_ONLY:
                unsupported.append(field)
            elif value or not field.metric.sparse:
                add(field.metric, labels, field.metric.base(value))
        if unsupported:
            for field in unsupported:
                target.refuse(f"{CALL}/{field.id}")
            self._compose(wanted)
            known -= {field.metric for field in unsupported}
        return known

    def _compose(self, wanted: tuple[Field, ...]) -> None:
        """Packs the wanted fields, without those that were refused recently."""
        target = self._target
        self._wanted = wanted
        self._until = target.now + 60.0
        self._fields = [field for field in wanted if target.asks(f"{CALL}/{field.id}")]
        self._metrics = {field.metric for field in self._fields}
        self._ids = frozenset(field.id for field in self._fields)
        self._labels = [(*target.labels, *field.labels) for field in self._fields]
        self._template = b"".join(_ONE.pack(field.id, field.scope, 0, 0, 0, 0, 0) for field in self._fields)
        self._buffer = ctypes.create_string_buffer(max(1, len(self._template)))
        # create_string_buffer(n) holds exactly n bytes, so that `raw` divides into values.


def ask(target: Target, fields: Sequence[tuple[int, int]]) -> list[float | None]:
    """Reads fields, each with its scope, once. None for those that the GPU does not support or that failed now.

    Errors are counted. Raises Lost and Uninitialised.
    """
    function = target.function(CALL)
    if function is None or not fields:
        return [None] * len(fields)
    packed = b"".join(_ONE.pack(field, scope, 0, 0, 0, 0, 0) for field, scope in fields)
    buffer = ctypes.create_string_buffer(packed, len(packed))
    if not target.answered(function(target.handle, len(fields), buffer), CALL):
        return [None] * len(fields)
    found: list[float | None] = []
    for field, _, _, _, kind, result, raw in _ONE.iter_unpack(buffer):
        value = None
        if not result:
            value = _value(kind, raw)
            if value is None:
                target.garbage(f"{CALL}/{field}")
        elif result not in _UNKNOWN:
            target.failed(result, f"{CALL}/{field}")
        found.append(value)
    return found


def _value(kind: int, raw: int) -> float | None:
    """The value of a union (nvmlValue_t) of a type, or None if it is not a finite number."""
    mask = _MASKS.get(kind)
    return raw & mask if mask else _number(kind, raw)


def _number(kind: int, raw: int) -> float | None:
    """The value of a union whose type is not unsigned, or None if it is not a finite number."""
    if kind == 0:
        (value,) = _DOUBLE.unpack(_QUAD.pack(raw))
        if raw < 1 << 32:  # no value of a driver is so small: some type an integer (field 82) as a double
            return raw
        return value if math.isfinite(value) else None
    if kind == 4:  # long long
        return raw - (1 << 64) if raw >> 63 else raw
    if kind == 5:  # int
        low = raw & 0xFFFFFFFF
        return low - (1 << 32) if low >> 31 else low
    return None
