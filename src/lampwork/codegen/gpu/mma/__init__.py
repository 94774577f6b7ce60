"""Matrix products on the tensor cores of NVIDIA cards."""
