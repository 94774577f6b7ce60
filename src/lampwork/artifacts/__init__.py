"""Artifacts: `.lamp` files, models that run without their source and without a compiler."""
