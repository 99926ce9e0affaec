"""The exchange: the ranks of each group compare their waits, so that each can tell a transfer from a late rank.

Once per block of steps, the members of a group take the minimum of some words (ledger/waits.py). They use a small
asynchronous all-reduce over whyidle's own gloo group. It is issued and polled at step boundaries, and never waited for.
"""
