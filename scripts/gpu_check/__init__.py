"""Says on a GPU machine whether the kernels for GPUs are right there, and how fast they are: `scripts/gpu_check.sh`."""
