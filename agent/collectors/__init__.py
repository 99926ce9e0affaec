"""One collector per file. Its name is that of its file, of its flags and of its metrics."""
