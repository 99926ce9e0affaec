"""How many samples a batch has, in the forms that collate functions give it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from whyidle.torch_hooks.hooks.samples import pieces, sample_count

X, Y, SCALAR = torch.ones(8, 4), torch.ones(8), torch.tensor(3)
IMAGE = torch.ones(3, 16, 16)


class Fails:
    @property
    def shape(self) -> Any:
        raise RuntimeError


BATCHES: dict[str, tuple[Any, int]] = {
    "a pair": ([X, Y], 8),
    "a tuple": ((X, Y), 8),
    "one tensor": (X, 8),
    "a dictionary": ({"x": X, "y": Y}, 8),
    "names first": ({"names": ["a"] * 8, "x": X}, 8),
    "a number first": ({"epoch": SCALAR, "x": X, "y": Y}, 8),
    "two inputs and two labels": (((X, X), (Y, Y)), 8),
    "sequences and their lengths": (((torch.ones(8, 5), torch.ones(8)), Y), 8),
    "images that differ, with boxes": (((IMAGE,) * 5, ({"boxes": torch.ones(2, 4)},) * 5), 5),
    "a list of images": ([IMAGE] * 5, 5),
    "packed": (pack_sequence([torch.ones(3, 2), torch.ones(2, 2)]), 2),
    "graphs": (SimpleNamespace(num_graphs=6, x=torch.ones(70, 4)), 6),
    "seed nodes": (SimpleNamespace(batch_size=6, x=torch.ones(70, 4)), 6),
    "graphs and labels": ((SimpleNamespace(num_graphs=8), Y), 8),
    "parts that disagree": ((torch.ones(3, 2), torch.ones(5, 2)), 0),
    "one graph": (SimpleNamespace(x=torch.ones(70, 4), num_graphs=None), 0),
    "nothing": ((), 0),
    "text": ("text", 0),
    "a number": (SCALAR, 0),
    "fails": (Fails(), 0),
}


@pytest.mark.parametrize(("batch", "samples"), BATCHES.values(), ids=BATCHES.keys())
def test_the_number_of_samples_is_right_or_absent(batch: Any, samples: int) -> None:
    assert sample_count(batch) == samples


@pytest.mark.parametrize(
    ("batch", "count"),
    [
        (torch.ones(4), 1),
        ([torch.ones(4), torch.ones(4)], 2),
        ({"x": torch.ones(4), "names": ["a", "b", "c"]}, 1),
        ([["a", 1, None]], 1),
        ([[{"box": (torch.ones(4), torch.ones(1))}] * 3000], 1024),
        (iter([1]), 1),
    ],
)
def test_counts_the_pieces_of_a_batch(batch: Any, count: int) -> None:
    assert pieces(batch) == count


def test_a_batch_that_cannot_be_walked_has_an_unknown_number_of_pieces() -> None:
    class Odd(dict[str, int]):
        def values(self) -> Any:
            raise ValueError

    assert pieces(Odd()) == 0
