"""Tells ranks of other nodes which checkpoint was restored: only ledgers of the node whose rank saves know its step.

One rank of each node that knows it writes a key to the store of torch.distributed. The others look for that key when
their group has formed, because all members have written theirs before.
"""

from __future__ import annotations

from typing import Any

from ...ledger.layout import BEGINNINGS, WORD_AT

_BEGINNING_AT, _ATTEMPT_AT = WORD_AT["beginning"][0], WORD_AT["attempt"][0]
_STEP_AT, _OF_AT = WORD_AT["restored_step"][0], WORD_AT["restored_attempt"][0]
_LOCAL_RANK_AT = WORD_AT["local_rank"][0]


def tell(store: Any, words: memoryview) -> None:
    """Raises the errors of the store."""
    if words[_BEGINNING_AT] and words[_LOCAL_RANK_AT] <= 0:
        store.set(_key(words), f"{words[_BEGINNING_AT]} {words[_STEP_AT]} {words[_OF_AT]}")


def learn(store: Any, words: memoryview) -> None:
    """Sets the words of this rank if it does not know them itself. Raises the errors of the store."""
    if words[_BEGINNING_AT] or not store.check([_key(words)]):
        return
    beginning, step, of = map(int, store.get(_key(words)).decode().split())
    if 0 < beginning < len(BEGINNINGS) and step > 0 and of >= 0:
        words[_BEGINNING_AT], words[_STEP_AT], words[_OF_AT] = beginning, step, of


def _key(words: memoryview) -> str:
    return f"restored/{words[_ATTEMPT_AT]}"
