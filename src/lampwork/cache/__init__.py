"""What one process made, for the next: contents by key, on disk, and shared between machines if asked for."""

from lampwork.cache.key import Key
from lampwork.cache.store import Store, store

__all__ = ["Key", "Store", "store"]
