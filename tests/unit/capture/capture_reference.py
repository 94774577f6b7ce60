"""A compiled callable in plain Python: captures on demand, checks guards, runs the graph in eager and the recipe."""

from __future__ import annotations

import contextlib
import copy
import io
from collections.abc import Callable
from typing import Any

import torch
from regions import check_guards, fits_call, run_region

from lampwork.capture import CaptureOptions, FrameRefused, ProgramRaised, capture
from lampwork.capture.model.printing import format_condition
from lampwork.capture.model.region import Record, Region
from lampwork.capture.state.dynamic import Dynamic


class Reference:
    """What the runtime does with regions, without the runtime. `records` are the breaks and refusals of all of it."""

    def __init__(self, fn: Callable[..., Any], records: list[Record] | None = None) -> None:
        self.fn = fn
        self.regions: list[Region] = []
        self.refusals: list[FrameRefused] = []
        self.records: list[Record] = records if records is not None else []
        self.children: dict[int, Reference] = {}
        self.options = CaptureOptions(self.child, self.child, Dynamic())

    def child(self, fn: Callable[..., Any], within: Any = None) -> Reference:
        if id(fn) not in self.children:
            self.children[id(fn)] = type(self)(fn, self.records)
        return self.children[id(fn)]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        for region in self.regions:
            if fits_call(region, args, kwargs):
                return run_region(region, args, kwargs)
        region, raised = None, None
        try:
            region = capture(self.fn, args, kwargs, self.options)
        except FrameRefused as refused:
            self.refusals.append(refused)
        except ProgramRaised as error:
            raised = error
        if region is None:
            # Not in the handler, where a bare `raise` and the context of exceptions would tell.
            result = self.fn(*args, **kwargs)
            assert raised is None, f"capture raised where eager does not: {raised}"
            return result
        self.records.extend(region.breaks)
        failed = check_guards(region, args, kwargs)
        assert failed is None, f"a new region does not fit its own call: {format_condition(failed)}"
        self.regions.append(region)
        return run_region(region, args, kwargs)


def same(actual: Any, expected: Any) -> None:
    """Equal in type, structure and numbers."""
    assert type(actual) is type(expected), (actual, expected)
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6, equal_nan=True)
        assert actual.stride() == expected.stride()
    elif isinstance(expected, dict):
        assert list(actual) == list(expected)
        for key in expected:
            same(actual[key], expected[key])
    elif isinstance(expected, (list, tuple)):
        assert len(actual) == len(expected)
        for a, e in zip(actual, expected, strict=True):
            same(a, e)
    elif hasattr(expected, "__dict__") and not callable(expected):
        same(vars(actual), vars(expected))
    elif not callable(expected):
        assert actual == expected or (actual != actual and expected != expected)


def outcome(fn: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, Any, str]:
    """Result, exception type, printed text."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        try:
            return fn(*args, **kwargs), None, text.getvalue()
        except Exception as error:  # noqa: BLE001
            return None, (type(error), str(error)), text.getvalue()


def check(
    fn: Callable[..., Any], *calls: Any, regions: int | None = None, breaks: list[str] | None = None
) -> Reference:
    """Each call gives eager's result, exception, output, and effects on its arguments, the first and second time.

    A call is a tuple of arguments, or a pair (tuple, dict).
    """
    reference = Reference(fn)
    for call in calls:
        args, kwargs = (
            call
            if len(call) == 2 and isinstance(call[0], tuple) and isinstance(call[1], dict)
            else (call, {})
        )
        for _ in range(2):
            memo: dict[int, Any] = {}
            eager_args, eager_kwargs = copy.deepcopy((args, kwargs), memo)
            eager = outcome(fn, eager_args, eager_kwargs)
            ours_args, ours_kwargs = copy.deepcopy((args, kwargs))
            ours = outcome(reference, ours_args, ours_kwargs)
            assert ours[1] == eager[1]
            assert ours[2] == eager[2]
            same(ours[0], eager[0])
            same(ours_args, eager_args)
            same(ours_kwargs, eager_kwargs)
    if regions is not None:
        assert len(reference.regions) == regions
    if breaks is not None:
        assert [record.code for record in reference.records] == breaks, "\n".join(map(str, reference.records))
        assert not reference.refusals
    return reference
