"""The ledger: the file in which a rank records where its seconds went. Hooks write it; everything else reads it.

This package imports only the standard library, because the agent reads ledgers in a process without torch.
"""
