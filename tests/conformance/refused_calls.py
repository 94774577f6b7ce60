"""Calls that torch refuses, run eager and compiled: OpInfo's `error_inputs`, and samples in dtypes not meant for them.

A compiled function raises what eager raises, of the same type and with the same words, whether the call is the first,
or comes after one that was served, with sizes fixed or open.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import opinfo_samples
import torch
from torch.utils import _pytree as pytree

import lampwork
from lampwork.api import function_of

DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float64,
    torch.complex64,
)

# Results are whatever the memory held.
UNINITIALIZED = frozenset(
    {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
)


# Expanded dimensions make more elements than one can look at.
_MANY = 1 << 24

# Randomized: which vectors come out depends on the last bits of matrix products.
DECOMPOSITIONS = frozenset({"svd_lowrank", "pca_lowrank"})


@dataclass(frozen=True, slots=True)
class Call:
    """`fn(*args, **kwargs)`; `before`: arguments of a call that eager takes, run first."""

    name: str
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    before: tuple[tuple[Any, ...], dict[str, Any]] | None = None


def error_inputs(op: Any) -> Iterator[Call]:
    """What torch's own tests expect an operator to refuse, each alone and after a sample that it takes."""
    if op.error_inputs_func is None:
        return
    name = opinfo_samples.full_name(op)
    valid = next(opinfo_samples.samples(op, torch.float32, 1), None)
    torch.manual_seed(0)
    for number, error in enumerate(op.error_inputs("cpu")):
        sample = error.sample_input
        args, kwargs = (sample.input, *sample.args), dict(sample.kwargs)
        yield Call(f"{name} error {number}", op.op, args, kwargs)
        if valid is not None:
            yield Call(
                f"{name} error {number} after a sample", op.op, args, kwargs, (valid.args, valid.kwargs)
            )


def other_dtypes(op: Any, dtypes: tuple[torch.dtype, ...] = DTYPES) -> Iterator[Call]:
    """The first sample in float32, its floating tensors in each of the dtypes that the operator is not for."""
    valid = next(opinfo_samples.samples(op, torch.float32, 1), None)
    if valid is None:
        return
    for dtype in dtypes:
        if op.supports_dtype(dtype, "cpu"):
            continue

        def cast(value: Any, dtype: torch.dtype = dtype) -> Any:
            plain = isinstance(value, torch.Tensor) and value.layout is torch.strided
            return value.detach().to(dtype) if plain and value.is_floating_point() else value

        args, kwargs = pytree.tree_map(cast, (valid.args, valid.kwargs))
        yield Call(f"{valid.operator} in {dtype}", op.op, args, kwargs)


def run(fn: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, Exception | None]:
    torch.default_generator.manual_seed(7)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return fn(*args, **kwargs), None
        except Exception as error:  # noqa: BLE001  (whatever eager raises is what compiled code must raise)
            return None, error


def difference(call: Call, dynamic: bool) -> str | None:
    """How the compiled call differs from eager's; None if it does not."""
    copied = opinfo_samples._copied  # pyright: ignore[reportPrivateUsage]
    args, kwargs = copied((call.args, call.kwargs))
    want, raised = run(call.fn, args, kwargs)
    lampwork.reset_stats()
    fn = call.fn

    def program(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    compiled = lampwork.compile(program, dynamic=dynamic, options={"strict": False, "verify": True})
    if call.before is not None:
        run(compiled, *copied(call.before))
    got_args, got_kwargs = copied((call.args, call.kwargs))
    got, got_raised = run(compiled, got_args, got_kwargs)
    if type(raised) is not type(got_raised) or _words(raised) != _words(got_raised):
        # What eager says may be whatever the memory held, as well.
        if type(raised) is not type(got_raised) or _words(raised) == _words(_again(call)[1]):
            return f"raised {got_raised!r}, expected {raised!r}"
    records = [r for f in function_of(compiled).tree() for r in f.records]
    failures = [r for r in records if r.code in ("LW500", "LW119") or not r.code.startswith("LW1")]
    if failures:
        return f"failed: {failures[0]}"
    if raised is not None or call.name.split(".")[0].split()[0] in UNINITIALIZED:
        return None
    wanted, found = (want, (args, kwargs)), (got, (got_args, got_kwargs))
    wide = any(isinstance(v, torch.Tensor) and v.numel() > _MANY for v in pytree.tree_leaves((wanted, found)))
    loose = wide or call.name.partition(": ")[2].split(" ")[0] in DECOMPOSITIONS
    different = opinfo_samples.compare(wanted, found, None, values=not loose)
    if different is None or loose or opinfo_samples.compare(wanted, found, None, values=False) is not None:
        return different
    # Only values differ. They may do so as rounding goes, or eager's are whatever the memory held.
    return None if _is_unsteady(call, wanted) else opinfo_samples.compare(wanted, found, _exact(call))


def _words(error: Exception | None) -> str:
    """What an exception says, but for where in C++ it was raised from: that has addresses of this run."""
    return str(error).partition("\nException raised from")[0]


def _is_unsteady(call: Call, wanted: Any) -> bool:
    """Whether eager gives other values when it is asked again, with other content in memory that is free."""
    for filling in (0.0, 7.5):
        for size in (8, 64, 512, 1024, 4096):
            for _ in range(4):
                torch.full((size,), filling)
        if opinfo_samples.compare(wanted, _again(call)[0], None) is not None:
            return True
    return False


def _again(call: Call) -> tuple[Any, Exception | None]:
    """Result and arguments of eager, and what it raises."""
    args, kwargs = opinfo_samples._copied((call.args, call.kwargs))  # pyright: ignore[reportPrivateUsage]
    result, raised = run(call.fn, args, kwargs)
    return (result, (args, kwargs)), raised


def _exact(call: Call) -> Any:
    """The call in double precision; None if eager does not take it so."""
    widened = opinfo_samples._widened  # pyright: ignore[reportPrivateUsage]
    args, kwargs = pytree.tree_map(widened, opinfo_samples._copied((call.args, call.kwargs)))  # pyright: ignore
    exact, raised = run(call.fn, args, kwargs)
    return None if raised is not None else (exact, (args, kwargs))
