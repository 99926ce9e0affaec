"""Looks at who reads or writes for the loop while the loop waits for it, and at which mount: see ledger/mounts.py."""
