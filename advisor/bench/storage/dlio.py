"""Reads workloads from the YAML files of DLIO. DLIO itself is not needed.

The keys are those of DLIO's configurations (github.com/argonne-lcf/dlio_benchmark, configs/workload), including older
names that still occur there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .mlperf import LEAST_AU
from .plan import BenchError, Plan


@dataclass(frozen=True, slots=True)
class Workload:
    """A workload, converted to a plan."""

    name: str
    plan: Plan
    least_au: float = LEAST_AU
    """The least AU that the workload asks for."""
    notes: list[str] = field(default_factory=list)
    """Sentences about differences from what DLIO does."""


def workload(document: object, plan: Plan) -> Workload:
    """The plan with the sizes and times of a workload. Raises BenchError."""
    if not isinstance(document, Mapping):
        raise BenchError("not a workload: it must be a mapping with `dataset` and `reader`")
    dataset, reader, train = (_section(document, name) for name in ("dataset", "reader", "train"))
    if not dataset or not reader:
        raise BenchError("not a workload: `dataset` or `reader` is missing")
    record = _number(dataset, ("record_length_bytes", "record_length"), None)
    files = _number(dataset, ("num_files_train",), None)
    found = replace(
        plan,
        files=round(files),
        samples_per_file=round(_number(dataset, ("num_samples_per_file",), 1)),
        sample_bytes=round(record),
        sample_deviation=round(_number(dataset, ("record_length_bytes_stdev", "record_length_std"), 0)),
        handed_bytes=round(_number(dataset, ("record_length_bytes_resize", "record_length_resize"), 0)),
        batch=round(_number(reader, ("batch_size",), 1)),
        workers=round(_number(reader, ("read_threads",), 1)),
        compute=_number(train, ("computation_time",), 0),
    )
    if not (found.files and found.samples_per_file and found.sample_bytes and found.batch):
        raise BenchError("not a workload: files, samples, their size and the batch size must be above 0")
    notes = []
    if (form := dataset.get("format")) is not None:
        notes.append(f"format {form}: the files have its sizes, but hold plain bytes, and nothing is decoded")
    if (epochs := _number(train, ("epochs", "epoch"), 1)) > 1:
        notes.append(f"{epochs:.0f} epochs: only one is read")
    if _section(document, "checkpoint"):
        notes.append("checkpoint: left out, the part `checkpoint` measures saves")
    model = document.get("model")
    name = model.get("name") or model.get("type") if isinstance(model, Mapping) else model
    least = _number(_section(document, "metric"), ("au",), LEAST_AU)
    return Workload(str(name or "unnamed"), found, least, notes)


def cut(found: Workload, size: float) -> Workload:
    """The workload, with fewer files if its dataset has more than ``size`` bytes."""
    plan = found.plan
    files = max(1, min(plan.files, int(size // (plan.samples_per_file * plan.sample_bytes))))
    if files == plan.files:
        return found
    note = f"{plan.files} files: cut to {files} to fit the given size"
    return replace(found, plan=replace(plan, files=files), notes=[*found.notes, note])


def _section(document: Mapping[Any, Any], name: str) -> Mapping[Any, Any]:
    found = document.get(name)
    if found is None:
        return {}
    if not isinstance(found, Mapping):
        raise BenchError(f"not a workload: `{name}` must be a mapping")
    return found


def _number(section: Mapping[Any, Any], names: tuple[str, ...], default: float | None) -> Any:
    """The number under the first of ``names`` that the section has. For a distribution, it is the mean."""
    for name in names:
        if name in section:
            value = section[name]
            if isinstance(value, Mapping):
                value = value.get("mean")
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e15:
                raise BenchError(f"not a workload: `{name}` must be a number from 0, not {value!r}")
            return value
    if default is None:
        raise BenchError(f"not a workload: `{names[0]}` is missing")
    return default
