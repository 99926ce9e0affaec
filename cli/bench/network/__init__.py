"""`whyidle bench network`: how fast the ranks of a job reach each other."""
