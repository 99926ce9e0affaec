"""The parts of `benchmarks/gpu.py`: each section trains with whyidle attached, beside a truth that is not whyidle's."""
