"""Programs that run right, but not with the breaks and regions that their authors expect, each with the reason.

At most one program in twenty may stand here; one whose expectation is met must not.
"""

from __future__ import annotations

UNMET: dict[str, str] = {}
