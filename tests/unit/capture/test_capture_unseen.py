"""The program's Python code that native code calls: it is interpreted first, or the region ends before it."""

from __future__ import annotations

import collections
import decimal
import functools
import gc
import inspect
import itertools
import math
import operator
import os
import signal
import statistics
import string
import subprocess
import sys
import threading
import types
import weakref

import pytest
import torch
import torch.utils._pytree as pytree
from children import failure

import lampwork
from lampwork.capture.state import unseen

X = torch.ones(2)


class Held:
    """Its state lies in an attribute."""

    def __init__(self, n):
        self.n = n


class Equal(Held):
    __hash__ = None

    def __eq__(self, other):
        return self.n == getattr(other, "n", 1)


class Asked:
    def __init__(self):
        self.log = []

    def __getattribute__(self, name):
        if name != "log":
            object.__getattribute__(self, "log").append(name)
        return object.__getattribute__(self, name)


class Index(Held):
    def __index__(self):
        return self.n


class Float(Held):
    def __float__(self):
        return float(self.n)


class Items(Held):
    def __len__(self):
        return self.n

    def __getitem__(self, i):
        if i >= self.n:
            raise IndexError
        return i + 1


class Truth(Held):
    def __bool__(self):
        return self.n == 1


class Path(Held):
    def __fspath__(self):
        return f"p{self.n}"


class Text(Held):
    def __str__(self):
        return f"s{self.n}"


class Power(Held):
    def __pow__(self, other, modulus=None):
        return self.n


class Walked(Held):
    def __iter__(self):
        return iter(range(self.n))


class Mapping(Held):
    def keys(self):
        return "abc"[: self.n]

    def __getitem__(self, key):
        return self.n


class Hint(Held):
    def __length_hint__(self):
        return self.n


class Key(Held):
    """Equal hashes, so that `==` decides."""

    def __hash__(self):
        return 7

    def __eq__(self, other):
        return self.n == other.n


TABLE = {Key(1): "one", Key(2): "two"}

READS = {
    Equal: [
        lambda x, a, b: a != 1,
        lambda x, a, b: a != b,
        lambda x, a, b: operator.ne(a, b),
        lambda x, a, b: collections.deque([a]) == collections.deque([b]),
        lambda x, a, b: types.SimpleNamespace(v=a) == types.SimpleNamespace(v=b),
        lambda x, a, b: slice(a) == slice(b),
        lambda x, a, b: collections.OrderedDict(v=a) == collections.OrderedDict(v=b),
        lambda x, a, b: len(list(itertools.groupby([a, b]))),
    ],
    Index: [
        lambda x, a, b: "x" * a,
        lambda x, a, b: a * [0],
        lambda x, a, b: int(a),
        lambda x, a, b: float(a),
        lambda x, a, b: complex(a),
        lambda x, a, b: math.floor(a),
        lambda x, a, b: bytes(a),
        lambda x, a, b: round(2.7182, a),
        lambda x, a, b: "a b c".split(" ", a),
        lambda x, a, b: "q".zfill(a),
        lambda x, a, b: x.repeat(a),
        lambda x, a, b: torch.zeros(12).reshape(a, -1).shape,
    ],
    Float: [
        lambda x, a, b: complex(a),
        lambda x, a, b: math.floor(a),
        lambda x, a, b: math.ceil(a),
        lambda x, a, b: float(a) * x,
    ],
    Items: [
        lambda x, a, b: list(a),
        lambda x, a, b: 2 in a,
        lambda x, a, b: list(enumerate(a)),
        lambda x, a, b: list(zip(a, a, strict=True)),
        lambda x, a, b: [x * v for v in map(float, a)],
        lambda x, a, b: collections.Counter(a),
        lambda x, a, b: collections.deque(a),
        lambda x, a, b: dict.fromkeys(a),
        lambda x, a, b: bytes(a),
        lambda x, a, b: torch.tensor([a]),
        lambda x, a, b: list(itertools.chain(a, a)),
        lambda x, a, b: statistics.mean(a),
        lambda x, a, b: operator.length_hint(a),
    ],
    Truth: [
        lambda x, a, b: len(list(filter(None, [a]))),
        lambda x, a, b: list(itertools.compress([1], [a])),
    ],
    Path: [lambda x, a, b: os.fspath(a), lambda x, a, b: os.path.join("d", a)],
    Text: [
        lambda x, a, b: string.Template("$q").substitute(q=a),
        lambda x, a, b: string.Formatter().format("{}", a),
    ],
    Power: [lambda x, a, b: pow(a, 2, 3)],
    Walked: [lambda x, a, b: bytes(a), lambda x, a, b: bytearray(a)],
    Mapping: [lambda x, a, b: dict(a)],
    Hint: [lambda x, a, b: operator.length_hint(a)],
    Key: [
        lambda x, a, b: TABLE.get(a),
        lambda x, a, b: a in TABLE,
        lambda x, a, b: dict(TABLE).setdefault(a, "none"),
        lambda x, a, b: {b: 1}.get(a),
        lambda x, a, b: {(b, 0): 1}.get((a, 0)),
        lambda x, a, b: {a: 1} == {b: 1},
    ],
}


@pytest.mark.parametrize(
    ("kind", "number"), [(kind, i) for kind, functions in READS.items() for i in range(len(functions))]
)
def test_native_code_sees_the_state_of_each_call(kind, number):
    read = READS[kind][number]

    def function(x, a, b):
        return x + 1, read(x, a, b)

    compiled = lampwork.compile(function)
    for n in (2, 3, 1, 2):
        assert repr(compiled(X, kind(n), kind(1))) == repr(function(X, kind(n), kind(1)))


@pytest.mark.parametrize(
    "read",
    [
        lambda a: [i * a.n for i in range(a.n)],
        lambda a: (list(a), 2 in a, dict(enumerate(a)), list(zip(a, a, strict=True)), sum(map(float, a))),
    ],
)
def test_items_by_index_need_no_break(read):
    compiled = lampwork.compile(lambda x, a: (x + 1, read(a)), fullgraph=True)
    assert compiled(X, Items(2))[1] == read(Items(2))
    assert compiled(X, Items(3))[1] == read(Items(3))


def test_numbers_and_inequality_need_no_break():
    def function(x, a, b):
        return x * float(a), int(a), "x" * a, Equal(a.n) != Equal(b.n)

    compiled = lampwork.compile(function, fullgraph=True)
    for n in (2, 3, 1):
        assert repr(compiled(X, Index(n), Index(1))) == repr(function(X, Index(n), Index(1)))


def test_the_effects_of_what_native_code_calls_happen_on_each_call():
    seen = []

    class Noted(Held):
        def __fspath__(self):
            seen.append(self.n)
            return "p"

    compiled = lampwork.compile(lambda x, a: (x + 1, os.fspath(a)))
    for n in (1, 2, 3):
        compiled(X, Noted(n))
    assert seen == [1, 2, 3]


def test_what_native_code_calls_is_named():
    with pytest.raises(
        lampwork.LampworkError, match=r"Path\.__fspath__\(\), which native code calls, is not known"
    ):
        lampwork.compile(lambda x, a: (x + 1, os.fspath(a)), fullgraph=True)(X, Path(1))


def test_the_compilers_own_questions_are_not_heard():
    """isinstance() asks an object for its class, by way of its __getattribute__."""

    def fn(x, asked):
        return x + 1 if asked is not None else x

    ours, theirs = Asked(), Asked()
    compiled = lampwork.compile(fn)
    for _ in range(3):
        compiled(X, ours)
        fn(X, theirs)
        assert ours.log == theirs.log


def test_the_callbacks_of_pytree_are_inlined():
    state, seen = {"k": 2}, []

    def scaled(v):
        seen.append(state["k"])
        return v * state["k"]

    def function(x):
        return pytree.tree_map(scaled, {"a": [x, 1]})

    compiled = lampwork.compile(function, fullgraph=True)
    for k in (2, 3, 4):
        state["k"] = k
        result = compiled(X)
        assert torch.equal(result["a"][0], X * k)
        assert result["a"][1] == k
    assert seen == [2, 2, 3, 3, 4, 4]


def test_decimals_are_reckoned_by_the_context_of_each_call():
    one = decimal.Decimal(1)
    compiled = lampwork.compile(lambda x: x * float(one / 3))
    with decimal.localcontext() as context:
        for precision in (28, 2, 5):
            context.prec = precision
            assert torch.equal(compiled(X), X * float(one / 3))


def test_finalizers_and_signal_handlers_run_while_a_call_is_captured():
    events = []

    class Dying:
        def __del__(self):
            events.append("finalized")

    watched = Held(1)
    weakref.finalize(watched, events.append, "gone")
    reference = weakref.ref(watched, lambda dead: events.append("dead"))
    waiting = [watched, Dying()]
    del watched
    before = signal.signal(signal.SIGUSR1, lambda number, frame: events.append("signal"))

    @functools.partial(torch.library.custom_op, "unseen::interrupting", mutates_args=())
    def interrupting(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @interrupting.register_fake
    def _(x):
        waiting.clear()
        signal.raise_signal(signal.SIGUSR1)
        return torch.empty_like(x)

    try:
        assert torch.equal(lampwork.compile(lambda x: interrupting(x) + 1, fullgraph=True)(X), X + 1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert set(events) == {"finalized", "gone", "dead", "signal"}
    assert reference() is None


def _audited(told):
    sys.addaudithook(lambda event, arguments: told.append(event))


def _traced(told):
    sys.settrace(lambda frame, event, argument: told.append(event))


def _profiled(told):
    sys.setprofile(lambda frame, event, argument: told.append(event))


def _monitored(told):
    sys.monitoring.use_tool_id(3, "test")
    sys.monitoring.register_callback(3, sys.monitoring.events.CALL, lambda *call: told.append("call"))
    sys.monitoring.set_events(3, sys.monitoring.events.CALL)


@pytest.mark.parametrize("observe", [_audited, _traced, _profiled, _monitored])
def test_who_looks_at_the_interpreter_does_not_end_a_region(observe):
    if observe is _monitored and sys.version_info < (3, 12):
        pytest.skip("sys.monitoring came with Python 3.12")

    def job():
        gc.unfreeze()  # the child's: a capture freezes what is there to tell what it makes
        told, held = [], Held(2)
        compiled = lampwork.compile(lambda x: x * len(sorted([held.n, 1])) + int(str(held.n)), fullgraph=True)
        observe(told)
        for held.n in (2, 3):
            assert torch.equal(compiled(X), X * 2 + held.n)
        assert told

    assert not failure([(observe.__name__, job)])  # in a process of its own: an audit hook stays


def test_torch_compile_in_another_thread_takes_the_same_place():
    def job():
        theirs, ended = torch.compile(lambda x: torch.sin(x) * 2, backend="eager"), threading.Event()
        theirs(X)
        calls = []

        def call():
            while not ended.is_set():
                calls.append(torch.equal(theirs(X), torch.sin(X) * 2))

        thread = threading.Thread(target=call)
        thread.start()
        for factor in range(20):
            compiled = lampwork.compile(
                functools.partial(lambda k, x: torch.relu(x) * k + x, factor), fullgraph=True
            )
            assert torch.equal(compiled(X), X * factor + X)
        ended.set()
        thread.join()
        assert all(calls)

    assert not failure([("both", job)])


def _options(x, scale=2):
    return x * scale


@pytest.mark.parametrize(
    ("function", "make"),
    [
        (lambda x, s: x * s.parameters["scale"].default, lambda: inspect.signature(_options)),
        (lambda x, p: x * p.default, lambda: inspect.signature(_options).parameters["scale"]),
        (lambda x, t: x * len(t.substitute(q=1)), lambda: string.Template("$q" * _options.__defaults__[0])),
    ],
)
@pytest.mark.filterwarnings("ignore::lampwork.LampworkWarning")
def test_library_code_that_runs_as_it_is_reads_what_is_guarded(function, make, monkeypatch):
    monkeypatch.delenv("LAMPWORK_STRICT")
    compiled = lampwork.compile(function)
    for n in (2, 3, 4, 2):
        monkeypatch.setattr(_options, "__defaults__", (n,))
        assert torch.equal(compiled(X, make()), function(X, make()))


def test_a_replaced_next_does_not_outlive_its_call():
    """The compiler, and the library it is made of, call builtins too. That the watch ends does not hang on them."""
    script = """
import builtins, itertools, torch, lampwork
calls, real = [], builtins.next
def patched(*args):
    calls.append(1)
    return real(*args)
def function(x, counter):
    return x * next(counter) + next(counter)
compiled = lampwork.compile(function, options={"strict": False})
assert compiled(torch.ones(2), itertools.count(1)).tolist() == [3, 3]
builtins.next = patched
for _ in range(3):
    assert compiled(torch.ones(2), itertools.count(1)).tolist() == [3, 3]
builtins.next = real
assert calls and compiled(torch.ones(2), itertools.count(4)).tolist() == [9, 9]
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True)


def test_a_hook_that_a_library_adds_to_an_abstract_base_class():
    """The compiler asks the standard library's classes, too; what the hook says is kept with the class."""
    script = """
import collections.abc, torch, lampwork
old, asked = collections.abc.MutableMapping.__subclasshook__, []
def hook(cls, subclass):
    asked.append(subclass)
    return not issubclass(subclass, Own) and old(subclass)
class Own(dict):
    pass
class Other(dict):
    pass
collections.abc.MutableMapping.__subclasshook__ = classmethod(hook)
def function(x, *mappings):
    return x * sum(isinstance(m, collections.abc.MutableMapping) for m in mappings) + 1
compiled = lampwork.compile(function)
for _ in range(3):
    assert compiled(torch.ones(2), Own(), Other()).tolist() == function(torch.ones(2), Own(), Other()).tolist()
assert lampwork.stats()["breaks"] == 0 and asked.count(Own) == asked.count(Other) == 1, asked
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True)


@pytest.mark.parametrize("folder", ["lib/python3/dist-packages", "user/lib/python3.11/site-packages"])
def test_packages_are_those_of_every_folder_for_packages(folder, tmp_path, monkeypatch):
    """Of the user's own, for one, and of the Python below a virtual environment."""
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / folder / "cached_tables.py").write_text(
        "import functools\n@functools.lru_cache\ndef table(n):\n    return tuple(range(n))\n"
    )
    monkeypatch.syspath_prepend(tmp_path / folder)
    import cached_tables

    try:
        lampwork.reset_stats()
        compiled = lampwork.compile(lambda x: x * sum(cached_tables.table(4)))
        assert torch.equal(compiled(X), X * 6)
        assert lampwork.stats()["breaks"] == 0
        assert unseen.is_program(cached_tables.table.__wrapped__.__code__, {})
        numpy_code = compile("", str(tmp_path / folder / "numpy" / "linalg.py"), "exec")
        assert not unseen.is_program(numpy_code, {})
    finally:
        del sys.modules["cached_tables"]


def test_a_function_that_a_package_makes_is_one_of_many(tmp_path, monkeypatch):
    """What is handed on at a graph break is another function on each call."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "packs_tensors.py").write_text(
        "def pack(t):\n    shape = t.shape\n    def unpack(o, by=2.0):\n        return o.reshape(shape) * by\n"
        "    return t.reshape(-1), unpack\n"
    )
    monkeypatch.syspath_prepend(folder)
    import packs_tensors

    def function(x):
        y, unpack = packs_tensors.pack(x)
        if y.sum() > 0:
            y = y + 1
        return unpack(y)

    try:
        compiled = lampwork.compile(function)
        lampwork.reset_stats()
        for _ in range(4):
            assert torch.equal(compiled(torch.ones(2, 3)), function(torch.ones(2, 3)))
        assert lampwork.stats()["recompiles"] == 0
    finally:
        del sys.modules["packs_tensors"]


def test_einsum_asks_opt_einsum_in_which_order_to_multiply(tmp_path):
    folder = tmp_path / "site-packages" / "opt_einsum"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(
        "def contract_path(equation, *operands, optimize):\n"
        "    sizes = [x.shape[0] for x in operands]\n"
        "    return ([(0, 2), (0, 1)] if sizes[0] > 1 else [(0, 1), (0, 1)]), None\n"
    )
    script = """
import torch, lampwork
def function(a, b, c):
    return torch.einsum("ij,jk,kl->il", a, b, c)
compiled = lampwork.compile(function)
for n in (1, 3, 4):
    args = torch.randn(n, 4), torch.randn(4, 5), torch.randn(5, 2)
    torch.testing.assert_close(compiled(*args), function(*args))
assert torch.backends.opt_einsum.is_available() and lampwork.stats()["breaks"] == 0
"""
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(folder.parent))))
    environment = {**os.environ, "PYTHONPATH": path}
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, env=environment)
