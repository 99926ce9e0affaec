"""Collects what a node knows about a run that hangs, for one file that somebody attaches to a ticket."""
