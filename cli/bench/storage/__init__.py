"""The subcommand `bench storage`: what storage gives to data loading and checkpoints."""
