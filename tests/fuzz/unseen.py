# ruff: noqa: E501
"""Mutations that compiled code does not see yet: `PROGRAM | PATH | LABEL`, as the fuzzer prints them. To stay empty."""

UNSEEN: frozenset[str] = frozenset()
