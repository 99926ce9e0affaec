"""What the kernel tells: parsers of /proc and of netlink messages, for the hooks and for the agent."""
