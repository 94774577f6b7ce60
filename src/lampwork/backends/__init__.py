"""Backends: the protocol, the registry, and those that come with Lampwork."""

from __future__ import annotations

from lampwork.backends.reachable import ReachableOperator, reachable_operators

__all__ = ["ReachableOperator", "reachable_operators"]
