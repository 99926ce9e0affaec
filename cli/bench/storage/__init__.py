"""The subcommand `bench storage`: how fast storage serves data loading and checkpoints."""
