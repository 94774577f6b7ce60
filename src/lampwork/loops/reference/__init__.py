"""Slow numpy interpreters that all generated code is compared with."""
