"""All rewrites of the library, in the order in which they are tried. The only place that lists the families.

They keep eager's results within float rounding (what keeps them bit for bit stands in rewrite.algebra and
rewrite.views). Each family is a file of this folder with one function that gives its rules.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from lampwork.rewrite.driver import Rule

Family = Callable[[], tuple[Rule, ...]]


def families() -> dict[str, Family]:
    """The families by name, in the order in which they are tried."""
    return {}


@lru_cache(maxsize=1)
def library_rules() -> tuple[Rule, ...]:
    """The rules of all families."""
    return tuple(r for family in families().values() for r in family())
