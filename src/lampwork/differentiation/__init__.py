"""Forward and backward of a region as graphs: the joint graph, and its division into two programs."""
