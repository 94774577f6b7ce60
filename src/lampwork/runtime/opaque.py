"""Our own Python frames, hidden from TorchDynamo.

A compiled function of ours that is called from under `torch.compile` runs while Dynamo looks at every new frame. Left
to itself it would trace our compiler: 1,100 frames, 9 seconds, for a function of one line.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

F = TypeVar("F", bound=Callable[..., Any])


def opaque(function: F) -> F:
    """Make Dynamo run a function, and all that it calls, as they are."""
    frames = cast(Any, torch)._C._dynamo.eval_frame
    skip = frames._FrameAction.SKIP
    frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))
    return function
