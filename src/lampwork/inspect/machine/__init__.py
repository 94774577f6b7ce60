"""What this machine can do at most, measured: what kernels are compared with."""
