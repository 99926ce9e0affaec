"""The subcommand `traffic`: the bytes that a training moves, predicted and measured."""
