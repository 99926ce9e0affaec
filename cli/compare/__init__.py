"""The subcommand `compare`: runs or saved reports beside each other."""
