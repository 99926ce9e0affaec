"""The collectors, one per module. A collector's name is also the name of its module, its flags and its metrics."""
