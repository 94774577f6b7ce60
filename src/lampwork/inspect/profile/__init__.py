"""`lampwork.profile`: which kernel is slow, what it computes, and how far it is from what the machine can do."""

from __future__ import annotations

from lampwork.inspect.profile.session import Profile, profile

__all__ = ["Profile", "profile"]
