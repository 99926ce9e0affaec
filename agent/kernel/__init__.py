"""Reads facts from the kernel that need a system call or several files."""
