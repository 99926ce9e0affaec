"""The hooks: record the phases of a PyTorch training loop in a ledger."""
