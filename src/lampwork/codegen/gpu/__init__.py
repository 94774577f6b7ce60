"""Code for GPUs: kernels on a grid as LLVM IR, for NVIDIA cards as PTX, and for this CPU with the threads as loops."""
