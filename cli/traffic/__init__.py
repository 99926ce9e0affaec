"""The subcommand `traffic`: bytes that a training moves, predicted and measured."""
