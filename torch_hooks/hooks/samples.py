"""How many samples a batch has. Only shapes and lengths are read.

No function raises, except for what a signal handler of the program has raised meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import islice
from typing import Any

from ..handlers import pass_on

_DEPTH = 3
_FIRST = 8
"""The most entries of a container that are looked at."""
_COUNTS = ("num_graphs", "batch_size")
"""Attributes with which libraries of graphs say it: in PyTorch Geometric, the graphs of a `Batch`, or the seed nodes of
a `NeighborLoader`."""
_CHANNELS = (1, 3, 4)


def sample_count(batch: Any) -> int:
    """0 if it is not known: the parts of the batch do not agree, or do not tell."""
    try:
        if type(batch) is list and len(batch) == 2:  # the default collate function returns a list for pairs
            one, other = getattr(batch[0], "shape", ()), getattr(batch[1], "shape", ())
            if one and other and one[0] == other[0]:
                return int(one[0])
        if separate := _not_collated(batch):
            return separate
        votes = Counter(_votes(batch, _DEPTH))
        if not votes:
            return 0
        ((size, count),) = votes.most_common(1)
        return size if 2 * count > votes.total() else 0
    except Exception as error:
        pass_on(error)
        return 0


def pieces(batch: Any, most: int = 1024) -> int:
    """How many tensors and other objects are in the containers of a batch, without texts and numbers; at most ``most``.
    0: not known."""
    try:
        found, left = 0, [batch]
        for _ in range(4 * most):
            if not left or found >= most:
                break
            item = left.pop()
            if isinstance(item, (dict, list, tuple)):
                left.extend(islice(item.values() if isinstance(item, dict) else item, most))
            elif not isinstance(item, (str, bytes, int, float, bool, type(None))):
                found += 1
        return min(max(found, 1), most)
    except Exception as error:
        pass_on(error)
        return 0


def _votes(item: Any, depth: int) -> list[int]:
    """What each tensor, array, and list of names says."""
    if isinstance(item, (str, bytes)):
        return []
    shape = getattr(item, "shape", None)
    if isinstance(shape, (tuple, list)):
        return [int(shape[0])] if shape else []
    if (lengths := getattr(item, "batch_sizes", None)) is not None:  # PackedSequence
        return [int(lengths[0])]
    values: Any = item.values() if isinstance(item, Mapping) else item if isinstance(item, (list, tuple)) else None
    if values is None:
        for name in _COUNTS:
            if type(count := getattr(item, name, None)) is int:
                return [count]
        return []
    if not depth:
        return []
    entries = [value for value, _ in zip(values, range(_FIRST), strict=False)]
    if isinstance(item, list) and entries and all(isinstance(one, str) for one in entries):
        return [len(item)]
    return [vote for one in entries for vote in _votes(one, depth - 1)]


def _not_collated(batch: Any) -> int:
    """The length of the lists of a batch whose samples were not stacked, for example of images and their boxes; 0: they
    were."""
    if not isinstance(batch, (list, tuple)) or not batch:
        return 0
    if all(isinstance(one, (list, tuple)) for one in batch):
        lengths = {len(one) for one in batch}
        inside = [entry for one in batch for entry in one[:_FIRST]]
        images = sum(_is_image(entry) for entry in inside)
        return lengths.pop() if len(lengths) == 1 and images >= len(batch[0][:_FIRST]) else 0
    return len(batch) if len(batch) > 1 and all(_is_image(one) for one in batch[:_FIRST]) else 0


def _is_image(item: Any) -> bool:
    """One image without a dimension for the batch."""
    shape = getattr(item, "shape", None)
    return isinstance(shape, tuple) and len(shape) == 3 and shape[0] in _CHANNELS
