"""Tensors that outlive the call in which they are made."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from lampwork import pristine


@contextmanager
def lasting() -> Generator[None]:
    """Tensors made in here are ordinary ones without gradients, whatever mode the caller is in.

    What the first call of a compiled function makes and keeps serves later calls in any mode; under inference mode it
    would be made of inference tensors, which autograd refuses for good.
    """
    with pristine.inference_mode(False), pristine.no_grad():
        yield
