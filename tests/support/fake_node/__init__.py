"""A node that does not exist: trees of /proc and /sys as kernel and drivers write them, and libraries that answer
as NVML and the kernel would. Each module builds its part with ``build(roots)``."""
