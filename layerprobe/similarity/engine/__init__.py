"""Exact sums over the Gram matrices of all layers of all models at once. Knows torch, on a CPU or on CUDA."""
