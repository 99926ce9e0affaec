"""The sections of `benchmarks/gpu.py`. Each trains with whyidle attached, and compares with an independent measure."""
