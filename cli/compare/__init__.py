"""The subcommand `compare`: compares runs or saved reports."""
