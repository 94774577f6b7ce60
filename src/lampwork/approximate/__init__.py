"""Approximations of a model, applied within a budget of error: `lampwork.approximate`."""
