"""What no program may leave behind."""

from __future__ import annotations

import gc

from lampwork.graph.tracetensor import TraceTensor


def leaks() -> str | None:
    """Trace tensors that are alive after all calls, and who holds them."""
    gc.collect()
    alive = [o for o in gc.get_objects() if type(o) is TraceTensor]
    if not alive:
        return None
    holders = [type(h).__name__ for h in gc.get_referrers(alive[0]) if h is not alive]
    return f"leak: {len(alive)} trace tensors, held by {holders}"
