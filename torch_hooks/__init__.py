"""What a rank records: the phases of a PyTorch training loop, into a ledger."""
