"""Kernels for GPUs in Triton, each with a launcher; ``reference`` defines what is right."""
