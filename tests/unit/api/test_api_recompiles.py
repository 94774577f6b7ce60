"""Recompile records: the guard that failed, both values, the line and the remedy; the limit on versions."""

from __future__ import annotations

import threading
import warnings

import pytest
import torch
from torch import nn

import lampwork
from lampwork.api import function_of
from lampwork.compiled.recompiles import RECOMPILES
from lampwork.errors import Location

X = torch.arange(6.0).reshape(2, 3)
SCALE = 2


def records_of(fn, *calls, **keywords):
    """The recompile records of compiling `fn` for these calls, each a tuple of arguments or a dict of keywords."""
    keywords.setdefault("dynamic", False)
    compiled = lampwork.compile(fn, **keywords)
    for call in calls:
        want = fn(**call) if isinstance(call, dict) else fn(*call)
        got = compiled(**call) if isinstance(call, dict) else compiled(*call)
        torch.testing.assert_close(got, want)
    assert len(compiled.entries) == len(calls)
    return function_of(compiled).recompiles


def scaled(x, n):
    return x * n


def first(items):
    return items[0] * 2


def by_name(table):
    return table["a"] * 2


def swapped(a, b):
    a.add_(1)
    return a * b


class Box:
    def __init__(self, value):
        self.value = value


class Parcel(Box):
    pass


def boxed(x, box):
    return x * box.value


LINE = {fn: fn.__code__.co_firstlineno + 1 for fn in (scaled, first, by_name, swapped, boxed)}
F32 = "Tensor float32[2, 3](3, 1) cpu"


@pytest.mark.parametrize(
    "fn, calls, code, cause",
    [
        (
            scaled,
            [(X, 2), (X, 3)],
            "LW141",
            "compiled again, for another value of n: version 0 needs n == 2; this call has 3",
        ),
        (
            scaled,
            [(X, 2.5), (X, 3.5)],
            "LW141",
            "compiled again, for another value of n: version 0 needs n == 2.5; this call has 3.5",
        ),
        (
            scaled,
            [(X, 2), (X[:1], 2)],
            "LW142",
            "compiled again, for another size of x: version 0 needs x.size(0) == 2; this call has 1",
        ),
        (
            scaled,
            [(X, 2), (X.double(), 2)],
            "LW143",
            f"compiled again, for another kind of tensor in x: version 0 needs x: {F32}; "
            "this call has Tensor float64[2, 3](3, 1) cpu",
        ),
        (
            scaled,
            [(X, 2), (X[0], 2)],
            "LW143",
            f"compiled again, for another kind of tensor in x: version 0 needs x: {F32}; "
            "this call has Tensor float32[3](1) cpu",
        ),
        (
            boxed,
            [(X, Box(X)), (X, Parcel(X))],
            "LW144",
            "compiled again, for another object in box: version 0 needs type(box) is Box; this call has type Parcel",
        ),
        (
            first,
            [([X],), ([X, X],)],
            "LW145",
            "compiled again, for other items in items: version 0 needs len(items) == 1; this call has len(items) == 2",
        ),
        (
            by_name,
            [({"a": X},), ({"a": X, "b": X},)],
            "LW145",
            "compiled again, for other items in table: version 0 needs keys(table) == ('a',); "
            "this call has keys(table) == ('a', 'b')",
        ),
        (
            scaled,
            [(X, 2), {"x": X, "n": 2}],
            "LW149",
            "compiled again, for another form of call: version 0 needs 2 positional arguments; "
            "this call has 0 positional arguments and x, n",
        ),
    ],
)
def test_what_a_record_says(fn, calls, code, cause):
    (record,) = records_of(fn, *calls)
    assert (record.code, record.cause) == (code, cause)
    assert record.fix == RECOMPILES[code].fix.format(source="x", dims=0)
    assert record.file == __file__ and record.function == fn.__name__
    assert record.line == (LINE[fn] - 1 if code == "LW149" else LINE[fn])


def test_several_sizes_and_the_call_that_marks_them():
    first, second = records_of(torch.relu, (X,), (X[:1, :2],), (X.t(),))
    assert first.cause.endswith("args[0].size(0) == 2 and args[0].size(1) == 3; this call has 1 and 2")
    assert "lampwork.mark_dynamic(args[0], (0, 1))" in first.fix
    assert second.code == "LW142"


def test_other_strides_of_the_same_sizes():
    square = torch.rand(3, 3)
    (record,) = records_of(scaled, (square, 2), (square.t(), 2))
    assert record.code == "LW143" and "[3, 3](3, 1)" in record.cause and "[3, 3](1, 3)" in record.cause


def test_outside_state():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = 2

        def forward(self, x):
            return x * self.scale

    model = Model()
    compiled = lampwork.compile(model)
    compiled(X)
    model.scale = 3
    assert torch.equal(compiled(X), X * 3)
    (record,) = function_of(compiled).recompiles
    assert record.code == "LW146"
    assert record.cause == (
        "compiled again, because self.scale, which is not an argument, has changed: "
        "version 0 needs self.scale == 2; this call has 3"
    )
    assert record.line == Model.forward.__code__.co_firstlineno + 1


def test_global():
    def f(x):
        return x * SCALE

    global SCALE
    compiled = lampwork.compile(f)
    compiled(X)
    try:
        SCALE = 5
        assert torch.equal(compiled(X), X * 5)
    finally:
        SCALE = 2
    (record,) = function_of(compiled).recompiles
    assert record.code == "LW146" and "this call has 5" in record.cause and "['SCALE']" in record.cause


def test_aliasing():
    def f(a, b):
        a.append(1)
        return b[0] * X

    compiled = lampwork.compile(f)
    compiled([1], [1])
    both = [1]
    assert torch.equal(compiled(both, both), X) and both == [1, 1]
    (record,) = function_of(compiled).recompiles
    assert record.code == "LW147" and "a is not b" in record.cause


@pytest.mark.parametrize("changed", [torch.no_grad, torch.inference_mode])
def test_global_mode(changed):
    compiled = lampwork.compile(scaled)
    compiled(X, 2)
    with changed():
        compiled(X, 2)
    (record,) = function_of(compiled).recompiles
    assert record.code == "LW148"
    assert record.cause == (
        "compiled again, for another global mode: version 0 needs grad_enabled True; this call has False"
    )


def test_a_condition_on_symbols():
    def f(x, n):
        if n > 3:
            return x * n
        return x - n

    compiled = lampwork.compile(f)
    for n in (4, 5, 6, 2):
        assert torch.equal(compiled(X, n), f(X, n))
    last = function_of(compiled).recompiles[-1]
    assert last.code == "LW141" and "s0 = n = 2" in last.cause and "s0 >= 4" in last.cause
    assert last.line == f.__code__.co_firstlineno + 1


def test_the_nearest_version_is_compared():
    compiled = lampwork.compile(scaled, dynamic=False)
    for args in ((X, 2), (X.double(), 2), (X, 3)):
        compiled(*args)
    assert "version 0 needs n == 2" in function_of(compiled).recompiles[-1].cause


def test_values_are_shown_without_running_the_users_code():
    class Loud:
        def __init__(self, text):
            self.text = text

        def __repr__(self):
            raise AssertionError("asked for its text")

    def f(x, loud):
        return x * len(loud.text)

    compiled = lampwork.compile(f)
    compiled(X, Loud("ab"))
    assert torch.equal(compiled(X, Loud("abc")), X * 3)
    assert torch.equal(compiled(X, "x" and Loud("a" * 500)), X * 500)
    texts = [record.cause for record in function_of(compiled).recompiles]
    assert "loud.text == 'ab'" in texts[0] and max(map(len, texts)) < 300


def test_they_are_logged(capsys):
    records_of(scaled, (X, 2), (X, 3), options={"logs": "recompiles"})
    printed = capsys.readouterr().err
    assert printed.startswith(f"[recompiles] [LW141] {__file__}:{LINE[scaled]} in scaled: compiled again")
    assert "[recompiles]   fix: " in printed


def test_the_limit():
    compiled = lampwork.compile(scaled, dynamic=False, options={"recompile_limit": 3})
    lampwork.reset()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for n in (2, 3, 4, 5, 6, 2, 3):
            assert torch.equal(compiled(X, n), X * n)
    assert len(compiled.entries) == 3 and [entry.hits for entry in compiled.entries] == [2, 2, 1]
    stats = lampwork.stats()
    assert (stats["compiled_calls"], stats["eager_calls"], stats["recompiles"]) == (5, 2, 2)
    (warning,) = caught
    place = f"{__file__}:{LINE[scaled] - 1}"
    assert str(warning.message) == (
        f"scaled runs eager: [LW140] {place} in scaled: 3 versions are compiled, the limit; "
        "calls that none of them serves run eager\n"
        "  fix: do what the fixes of the recompile records say (LAMPWORK_LOGS=recompiles), or raise `recompile_limit`"
    )
    assert [record.code for record in function_of(compiled).records] == ["LW141", "LW141", "LW140"]


def test_the_default_limit_is_sixteen():
    compiled = lampwork.compile(scaled, dynamic=False)
    with pytest.warns(lampwork.LampworkWarning, match="16 versions are compiled"):
        for n in range(20):
            compiled(X, n)
    assert len(compiled.entries) == 16


def test_every_code_is_tested():
    tested = {
        mark.args[1][i][2] for mark in test_what_a_record_says.pytestmark for i in range(len(mark.args[1]))
    }
    assert tested | {"LW140", "LW146", "LW147", "LW148", "LW150"} == set(RECOMPILES)  # LW150: test_dynamic.py


# --- entries ----------------------------------------------------------------------------------------------------------


def test_entries_have_guards_stages_and_hits():
    compiled = lampwork.compile(scaled, dynamic=False)
    for n in (2, 3, 3):
        compiled(X, n)
    one, two = compiled.entries
    assert (one.name, two.name, one.hits, two.hits) == ("scaled#0", "scaled#1", 1, 2)
    assert one.regions == (one,) and one.breaks == ()
    place = Location(__file__, LINE[scaled], "scaled")
    assert {(guard.kind, guard.line) for guard in one.guards} == {
        ("function", None),
        ("tensor", place),
        ("equals", place),
        # Of the class of tensors, whose __mul__ a program may replace.
        ("mro", place),
        ("class_attr", place),
    }
    assert f"args[1] == 2  # {__file__}:{LINE[scaled]}" in str(one.guards)
    assert two.operators == {"aten.mul.Tensor": 1} and [place.line for place in two.lines] == [LINE[scaled]]
    assert two.stages is compiled.stages and "mul" in one.stages.graph
    assert str(two).startswith("scaled#1: 1 operators, 2 calls\n2 guards on each call")
    with pytest.raises(AttributeError):
        one.name = "other"


def test_entries_of_a_module_and_their_parts():
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(3, 3)

        def forward(self, x):
            y = self.inner(x)
            print(end="")
            return y + 1

    compiled = lampwork.compile(Outer().eval())
    with torch.no_grad():
        compiled(X)
        compiled(X)
    (entry,) = compiled.entries
    line = Outer.forward.__code__.co_firstlineno + 2
    assert [part.hits for part in entry.regions] == [2, 2]
    assert entry.regions[0] is entry and entry.regions[1].name.endswith(f"Outer.forward_resume_{line}#0")
    assert [record.code for record in entry.breaks] == ["LW104"]
    assert "entries" in dir(compiled)


def test_threads_see_whole_lists():
    compiled = lampwork.compile(scaled, dynamic=False)
    failures = []

    def work():
        for n in range(2, 12):
            compiled(X, n)
            entries = compiled.entries
            if [entry.name for entry in entries] != [f"scaled#{i}" for i in range(len(entries))]:
                failures.append(entries)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and len(compiled.entries) == 10


@pytest.mark.filterwarnings("ignore::lampwork.LampworkWarning")
def test_a_subclass_of_tensor_hears_nothing_of_a_miss(monkeypatch):
    monkeypatch.delenv("LAMPWORK_STRICT", raising=False)
    heard = []

    class Hearing(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            heard.append(func.__name__)
            return super().__torch_function__(func, types, args, kwargs or {})

    def function(x):
        return torch.relu(x) * 2

    compiled = lampwork.compile(function)
    compiled(torch.ones(2))
    for call in (function, compiled, compiled):
        heard.clear()
        call(torch.ones(2).as_subclass(Hearing))
        assert heard == ["relu", "mul"]
