"""`record_function` in compiled code: its spans are around the steps that compute what was in it."""

import torch
from torch import nn
from torch.profiler import record_function

import lampwork
from lampwork.inspect.profile.spans import WHAT


def seen_by_torch(fn, *args):
    """(name, begin, end) of what torch's profiler saw of a call."""
    with torch.profiler.profile() as p:
        fn(*args)
    return [(each.name, each.time_range.start, each.time_range.end) for each in p.events()]


def inside(events, inner, outer):
    (span,) = [each for each in events if each[0] == outer]
    found = [each for each in events if inner in each[0]]
    assert found, events
    return all(span[1] <= begin and end <= span[2] for _, begin, end in found)


@torch.no_grad()
def test_a_label_is_around_the_steps_in_it():
    def fn(x):
        with record_function("sorting"):
            y = (x * 2).sort().values
        with record_function("outer"), record_function("inner"):
            z = y.cumsum(0)
        return z.cumprod(0)

    compiled, x = lampwork.compile(fn), torch.randn(4, 8)
    torch.testing.assert_close(compiled(x), fn(x))
    events = seen_by_torch(compiled, x)
    names = [name for name, *_ in events]
    assert [names.count(label) for label in ("sorting", "outer", "inner")] == [1, 1, 1]
    assert inside(events, "sort.default (sort)", "sorting")
    assert inside(events, "inner", "outer")
    assert not inside(events, "cumprod", "sorting")
    # The spans of the labels are within that of the region.
    region = [name for name in names if name.endswith("fn#0")]
    assert len(region) == 1 and inside(events, "sorting", region[0])


@torch.no_grad()
def test_two_times_of_one_label_are_two_spans_and_unlabelled_steps_are_in_none():
    def fn(x):
        for _ in range(2):
            with record_function("step"):
                x = x.sort().values
            x = x.cumsum(0)
        return x

    compiled, x = lampwork.compile(fn), torch.randn(4, 8)
    compiled(x)
    events = seen_by_torch(compiled, x)
    spans = [each for each in events if each[0] == "step"]
    assert len(spans) == 2
    others = [each for each in events if "lampwork::" in each[0] and "cumsum" in each[0]]
    assert len(others) == 2, events
    for _, begin, end in others:
        assert all(end <= one[1] or begin >= one[2] for one in spans)


@torch.no_grad()
def test_ours_sees_them_too():
    def fn(x):
        with record_function("mine"):
            return x.sort().values

    compiled, x = lampwork.compile(fn), torch.randn(4, 8)
    compiled(x)
    with lampwork.profile() as p:
        compiled(x)
    (thread,) = p.threads
    labels = [thread.name(span) for span in thread.spans if WHAT[span["what"]] == "label"]
    assert labels == ["lampwork::profile", "mine"]


def test_a_break_inside_a_decorator_and_names_that_are_none():
    @record_function("decorated")
    def decorated(x):
        return x.sort().values

    def fn(x):
        with record_function("around"):
            y = x.sort().values
            print(end="")
            y = y + 1
        return decorated(y) * 2

    compiled, x = lampwork.compile(fn), torch.randn(4, 8)
    torch.testing.assert_close(compiled(x), fn(x))
    events = seen_by_torch(compiled, x)
    assert [name for name, *_ in events].count("decorated") == 1
    assert [name for name, *_ in events].count("around") == 1


def test_backward_is_not_in_the_labels_of_forward():
    layer = nn.Linear(4, 4)

    def fn(x):
        with record_function("forward only"):
            return layer(x).sort().values.sum()

    compiled, x = lampwork.compile(fn), torch.randn(2, 4)
    for _ in range(3):
        compiled(x).backward()
    with torch.profiler.profile() as p:
        compiled(x).backward()
    names = [each.name for each in p.events()]
    assert names.count("forward only") == 1


def test_a_name_that_changes_is_noticed():
    def fn(x, name):
        with record_function(name):
            return x.sort().values

    compiled, x = lampwork.compile(fn), torch.randn(2, 4)
    for name in ("first", "second"):
        compiled(x, name)
        assert [each[0] for each in seen_by_torch(compiled, x, name)].count(name) == 1
