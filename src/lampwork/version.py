"""The version of Lampwork."""

__version__ = "0.1.0"
