"""torch's own CUDA build on stand-ins for CUDA's libraries, without a GPU. See README.md."""
