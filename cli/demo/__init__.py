"""The subcommand `demo`: a small training job, watched by an agent, with a verdict at the end."""
