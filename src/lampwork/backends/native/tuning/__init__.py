"""mode="max-autotune": the tiles, blocks and layouts of templates by measurement, with the winners kept on disk."""
