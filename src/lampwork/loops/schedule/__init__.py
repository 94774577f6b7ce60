"""Groups to kernels: loop trees over flat memory."""
