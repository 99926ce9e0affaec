"""The ledger: the file in which one rank keeps where its seconds went. Hooks write it; everything else reads it.

The standard library alone: the agent reads ledgers in a process that has no torch.
"""
