"""The exchange: ranks compare their waits, group by group, so that each can tell a transfer from a late rank.

Once in a block of steps the members of a group take the minimum of some words (ledger/waits.py) with a small
asynchronous all-reduce over a gloo group of our own, issued and polled at step boundaries and never waited for.
"""
