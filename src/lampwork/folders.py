"""Where Lampwork keeps files between processes."""

from __future__ import annotations

import os
from pathlib import Path

from lampwork.config import Config


def cache_folder(config: Config) -> Path | None:
    """The folder of the option `cache`; None if nothing is to be kept. It need not exist."""
    if config.cache == "off":
        return None
    if config.cache:
        return Path(config.cache).expanduser()
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The specification has relative paths ignored.
    return (Path(base) if os.path.isabs(base) else Path("~/.cache").expanduser()) / "lampwork"
