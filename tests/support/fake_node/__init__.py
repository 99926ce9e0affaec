"""A simulated node: trees of /proc and /sys as kernel and drivers write them, and libraries that answer like NVML and
the kernel. Each module creates its part with ``build(roots)``."""
