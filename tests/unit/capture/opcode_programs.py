"""For each version of CPython, and each opcode of it, small programs whose code contains the opcode."""

from __future__ import annotations

from opcode_case import Cases, case, only_compiled
from opcode_programs_common import ASYNC, CLASS_BODY, COMMON, CONTROL, GROUPS, MOVES, OPERATORS

_FORMAT = (
    case(
        """
        class F:
            def __format__(self, spec): return f'<{spec}>'
            def __str__(self): return 'str'
            def __repr__(self): return 'repr'
        class G:
            def __str__(self): return 'g'
        def f(a):
            x = F()
            out = [f'{a}', f'{a!r}', f'{a!s:>5}', f'{a!a}', f'{x}', f'{x:{a}}', f'{x!s}', f'{x!r:>6}']
            return [*out, f'{G()}', f'{G()!s:3}|']
        """,
        (4,),
        ("é",),
        ([1],),
    ),
    case("def f(a): return f'{a:.2f}'", (1.2345,), ("x",), (None,)),
    case("class G: pass\ndef f(a): return f'{G():{a}}'", ("x",)),
)
_NAMED = (
    case("def g(a, b=2, *, c=3): return a, b, c\ndef f(a): return g(a, c=5), g(a, b=1), g(b=1, a=a)", (1,)),
    case("class C:\n    def m(self, a, k=1): return a, k\ndef f(a): return C().m(a, k=2), dict(x=a)", (1,)),
    case("def g(a): return a\ndef f(a): return g(a, b=1)", (1,)),
)
_SHORT = {
    "JUMP_IF_FALSE_OR_POP": (case("def f(a, b): return a and b", (1, 2), (0, 2), ([], 1)),),
    "JUMP_IF_TRUE_OR_POP": (case("def f(a, b): return a or b", (1, 2), (0, 2), ([], 1)),),
}
_TESTS: Cases = {
    "POP_JUMP_IF_TRUE": (
        case("def f(a):\n    if not a: return 1\n    return 2 if a or a else 3", (0,), (1,), ([],)),
    ),
    "POP_JUMP_IF_FALSE": (
        case("def f(a):\n    if a: return 1\n    return 2", (0,), (1,), ([],), ("x",)),
        case("class T:\n    def __len__(self): return 0\ndef f():\n    if T(): return 1\n    return 2", ()),
    ),
    "POP_JUMP_IF_NONE": (case("def f(a):\n    if a is not None: return 1\n    return 2", (0,), (None,)),),
    "POP_JUMP_IF_NOT_NONE": (case("def f(a):\n    if a is None: return 1\n    return 2", (0,), (None,)),),
}
_BACKWARD: Cases = {
    "POP_JUMP_BACKWARD_IF_TRUE": (case("def f(a):\n    while a:\n        a -= 1\n    return a", (3,), (0,)),),
    "POP_JUMP_BACKWARD_IF_FALSE": (
        case("def f(a):\n    while not a > 3:\n        a += 1\n    return a", (0,), (5,)),
    ),
    "POP_JUMP_BACKWARD_IF_NONE": (
        case(
            "def f(a):\n    n = 0\n    while a.get(n) is None:\n        n += 1\n    return n",
            ({2: 1},),
            ({0: 1},),
        ),
    ),
    "POP_JUMP_BACKWARD_IF_NOT_NONE": (
        case(
            "def f(a):\n    n = 0\n    while a.get(n) is not None:\n        n += 1\n    return n",
            ({0: 1},),
            ({},),
        ),
    ),
}
_POSITIVE = case("def f(a): return +a", (2,), (True,), ("x",))
_LIST_TO_TUPLE = case("def f(a, b):\n    c = (*a, *b, 1)\n    return c", ([1], "xy"), ([], ()), ([], 5))

_THROW = (
    case(
        """
        def inner():
            try:
                yield 1
            except KeyError:
                return 'inner'
        def outer():
            got = yield from inner()
            yield got
        def f(a):
            it = outer()
            next(it)
            return it.throw(KeyError('k'))
        """,
        (1,),
    ),
    case(
        """
        def inner(log):
            try:
                yield 1
            finally:
                log.append('left')
        def outer(log):
            try:
                yield from inner(log)
            except ValueError as error:
                log.append(str(error))
                yield 2
        def f(a):
            it = outer(a)
            next(it)
            return it.throw(ValueError('v')), next(it, 'end')
        """,
        ([],),
    ),
    case(
        """
        class Sub:
            def __init__(self, log): self.log = log
            def __iter__(self): return self
            def __next__(self): return 1
            def throw(self, error):
                self.log.append(str(error))
                if isinstance(error, KeyError): raise StopIteration('stop')
                return 'thrown'
            def close(self): self.log.append('closed')
        def outer(log):
            got = yield from Sub(log)
            try:
                yield got
            finally:
                log.append('finally')
        def f(a):
            it = outer(a)
            out = [next(it), it.throw(ValueError('v')), it.throw(KeyError('k'))]
            it.close()
            other = outer(a)
            next(other)
            other.close()
            return out
        """,
        ([],),
    ),
    case(
        """
        def outer(a):
            try:
                yield from a
            except ValueError as error:
                yield str(error)
        def f(a):
            it = outer(a)
            return next(it), it.throw(ValueError('v'))
        """,
        ([1, 2],),
    ),
)

PY311: Cases = {
    **COMMON,
    **_SHORT,
    **_BACKWARD,
    **{name.replace("JUMP", "JUMP_FORWARD"): cases for name, cases in _TESTS.items()},
    "SEND": (*COMMON["SEND"], *_THROW),
    "PRECALL": COMMON["CALL"],
    "KW_NAMES": _NAMED,
    "FORMAT_VALUE": _FORMAT,
    "LOAD_METHOD": (
        case("def f(a): return a.upper().lower()", ("Ab",), (1,)),
        case(
            """
            class C:
                def m(self): return self.v
                v = 2
            def f():
                c = C()
                c.m2 = len
                return c.m(), c.m2('ab')
            """,
            (),
        ),
    ),
    "UNARY_POSITIVE": (_POSITIVE,),
    "LIST_TO_TUPLE": (_LIST_TO_TUPLE,),
    "ASYNC_GEN_WRAP": ASYNC,
    "PREP_RERAISE_STAR": GROUPS,
    "LOAD_CLASSDEREF": CLASS_BODY,
    "IMPORT_STAR": (only_compiled("from math import *"),),
    "PRINT_EXPR": (only_compiled("1 + 1", "single"),),
}

_COMPREHENSIONS = (
    case("def f(a):\n    i = 'kept'\n    b = [i for i in a]\n    return i, b", ([1, 2],)),
    case("def f(a):\n    b = [i for i in a]\n    return i", ([1, 2],)),
    case("def f(a):\n    b = [lambda: i for i in a]\n    return [g() for g in b]", ([1, 2],)),
    case("def f(i):\n    b = [lambda: i for i in (1, 2)]\n    return i, [g() for g in b]", (7,)),
    case("def f(i):\n    b = [lambda: i for i in (1, 2)]\n    return (lambda: i)(), [g() for g in b]", (7,)),
    case(
        """
        def f(a):
            i = 9
            try:
                return [1 // i for i in a]
            except ZeroDivisionError:
                return i
        """,
        ([1, 0],),
    ),
    case("def f(a): return {k: [v for v in a if v < k] for k in a}, {v for v in a}", ([1, 2, 3],)),
)
_AROUND_BREAKS = (
    case(
        """
        def f(i):
            print(i)
            b = [lambda: i for i in (1, 2)]
            return (lambda: i)(), [g() for g in b]
        """,
        (7,),
        breaks=("LW104",),
    ),
    case(
        """
        def f(i):
            b = [lambda: i if print(i) is None else 0 for i in (1, 2) if print(i) is None]
            print(i)
            return i, [g() for g in b]
        """,
        (7,),
        breaks=("LW104",),
    ),
    case(
        """
        def f(a):
            b = [i for i in a if print(i) is None]
            print('after')
            return b, i
        """,
        ([1, 2],),
        breaks=("LW104",),
    ),
)
_SUPER = (
    case(
        """
        class A:
            def m(self, x): return 'A', x
            @property
            def p(self): return 'p'
        class B(A):
            def m(self, x): return super().m(x), super(B, self).p
            @property
            def p(self): return super().p + '!'
        def f(a): return B().m(a), B().p
        """,
        (1,),
    ),
    case("class A:\n    def m(self): return super().missing\ndef f(): return A().m()", ()),
    case(
        """
        class Fake:
            def __init__(self, *a): self.m = a
        globals()['super'] = Fake
        class A:
            def m(self): return super().m, super(1, 2).m
        def f(): return A().m()
        """,
        (),
    ),
)
_STOP = (
    case(
        "def g(a):\n    yield next(a)\n    yield next(a)\ndef f(a): return list(g(iter(a)))",
        ([1],),
        ([1, 2],),
    ),
    _POSITIVE,
    _LIST_TO_TUPLE,
    case("def f(a):\n    def g[T](x: T) -> T: return x\n    return g(a)", (1,), breaks=None),
    case("def f(a):\n    type X = int | str\n    return X.__name__", (1,), breaks=None),
)
PY312: Cases = {
    **COMMON,
    **_TESTS,
    "KW_NAMES": _NAMED,
    "FORMAT_VALUE": _FORMAT,
    "RETURN_CONST": (case("def f(a):\n    if a: return 5", (0,), (1,)),),
    "LOAD_FAST_CHECK": (
        case("def f(a):\n    if a:\n        b = 1\n    return b", (1,), (0,)),
        case("def f(a):\n    del a\n    return a", (1,)),
    ),
    "LOAD_FAST_AND_CLEAR": (*_COMPREHENSIONS, *_AROUND_BREAKS),
    "LOAD_SUPER_ATTR": _SUPER,
    "BINARY_SLICE": (
        case("def f(a, n): return a[1:], a[:n], a[:], a[n:2]", ("abc", 1), ([1, 2], 0), (5, 5)),
    ),
    "STORE_SLICE": (case("def f(a, n):\n    a[1:n] = [8, 9]\n    return a", ([1, 2, 3], 2), ("abc", 2)),),
    "END_FOR": (case("def f(a):\n    for i in a: pass\n    return i", ([1, 2],), ([],), skipped=True),),
    "END_SEND": (
        case("def g(a):\n    x = yield from a\n    yield x\ndef f(a): return list(g(a))", ([1, 2],)),
    ),
    "CLEANUP_THROW": _THROW,
    "CALL_INTRINSIC_1": _STOP,
    "CALL_INTRINSIC_2": (
        *GROUPS,
        case("def f(a):\n    def g[T: int](x: T) -> T: return x\n    return g(a)", (1,), breaks=None),
    ),
    "LOAD_LOCALS": CLASS_BODY,
    "LOAD_FROM_DICT_OR_DEREF": CLASS_BODY,
    "LOAD_FROM_DICT_OR_GLOBALS": (
        case("def f(a):\n    class C:\n        type X = int\n    return C.X.__value__", (1,), breaks=None),
    ),
}

PY313: Cases = {
    **{
        name: cases
        for name, cases in PY312.items()
        if name not in ("KW_NAMES", "FORMAT_VALUE", "LOAD_CLOSURE")
    },
    "CALL_KW": _NAMED,
    "FORMAT_SIMPLE": _FORMAT[:1],
    "FORMAT_WITH_SPEC": _FORMAT,
    "CONVERT_VALUE": _FORMAT[:1],
    "TO_BOOL": (
        *_TESTS["POP_JUMP_IF_FALSE"],
        *OPERATORS["UNARY_NOT"],
        case("def f(a, b): return a and b, a or b", (1, 2), (0, 2), ([], 1)),
        case("class T:\n    def __bool__(self): return 5\ndef f(): return 1 if T() else 2", ()),
    ),
    "SET_FUNCTION_ATTRIBUTE": MOVES["MAKE_FUNCTION"][1:],
    "LOAD_FAST_LOAD_FAST": (
        case("def f(a, b): return a + b", (1, 2)),
        case("def f(a, b):\n    print()\n    return a + b", (1, 2), breaks=("LW104",)),
    ),
    "STORE_FAST_LOAD_FAST": (
        case("def f(a):\n    b = a + 1; return b * 2", (1,)),
        case("def f(a):\n    b = a; print(); b = b + a; return b", (1,), breaks=("LW104",)),
        case("def f(a): return [i + 1 for i in a]", ([1, 2],)),
    ),
    "STORE_FAST_STORE_FAST": (
        case("def f(a):\n    b, c = a\n    return c, b", ([1, 2],)),
        case("def f(a):\n    b = 5\n    return [b for b, c in a], b", ([(1, 2)],)),
    ),
}

_ENTERED = (
    *CONTROL["BEFORE_WITH"],
    case("class M:\n    def __exit__(self, *e): pass\ndef f():\n    with M(): return 1", ()),
    case("class M:\n    def __enter__(self): pass\ndef f():\n    with M(): return 1", ()),
    case(
        """
        class M:
            class N:
                async def __aenter__(self): pass
                async def __aexit__(self, *error): pass
        def f():
            with M.N(): return 1
        """,
        (),
    ),
    case(
        """
        class M:
            def __init__(self, log): self.log = log
            def __enter__(self): print('in', self.log)
            def __exit__(self, *error):
                print('out', error[0], self.log)
                return error[0] is KeyError
        def f(a, kind):
            with M(a):
                print('within')
                if kind is not None: raise kind('k')
                a.append(1)
            print('after')
            return a
        """,
        ([], None),
        ([], KeyError),
        ([], ValueError),
        breaks=("LW104", "LW117"),
    ),
)
_TEMPLATES = (
    case("def f(a): return t'{a!r:>3} x{a}'.values, t''.strings", (1,), breaks=("LW131",)),
    case("def f(a):\n    print(a)\n    return t'{a!r}'.values", (1,), breaks=("LW131",)),
    case("def g(a): return t'{a=}'\ndef f(a): return g(a).strings", (1,), breaks=None),
)
_PAIRS = PY313["LOAD_FAST_LOAD_FAST"]
PY314: Cases = {
    **{
        name: cases
        for name, cases in PY313.items()
        if name
        not in (
            "BEFORE_ASYNC_WITH",
            "BEFORE_WITH",
            "BINARY_SUBSCR",
            "BUILD_CONST_KEY_MAP",
            "LOAD_ASSERTION_ERROR",
            "RETURN_CONST",
        )
    },
    "LOAD_FAST": (
        case("def f(a):\n    b = a\n    a = 7\n    return [b, a]", (1,)),
        case("def f(a):\n    b = a\n    print()\n    a = b\n    return a", (1,), breaks=("LW104",)),
    ),
    "LOAD_FAST_LOAD_FAST": (case("def f(a, b):\n    a, b = b, a\n    return a, b", (1, 2)),),
    "LOAD_FAST_BORROW": (*COMMON["LOAD_FAST"], case("def f(a): return -a", (2,), ("x",))),
    "LOAD_FAST_BORROW_LOAD_FAST_BORROW": _PAIRS,
    "LOAD_SMALL_INT": (case("def f(a): return [0, a + 255, -1]", (1,)),),
    "LOAD_COMMON_CONSTANT": (
        *COMMON["LOAD_ASSERTION_ERROR"],
        case(
            """
            def f(a):
                return any(x > 1 for x in a), all(x for x in a), tuple(x + 1 for x in a)
            """,
            ([0, 1],),
            ([1, 2],),
            ([],),
        ),
        case(
            """
            def any(items): return list(items)
            def f(a): return any(x > 1 for x in a)
            """,
            ([0, 2],),
        ),
        case(
            """
            def shown(x):
                print(x)
                return x
            def f(a):
                return any(shown(x) > 1 for x in a), all(shown(x) for x in a)
            """,
            ([0, 1],),
            ([1, 2, 3],),
            breaks=None,
        ),
    ),
    "NOT_TAKEN": _TESTS["POP_JUMP_IF_FALSE"][:1],
    "POP_ITER": (
        case("def f(a):\n    for i in a: pass\n    return i", ([1, 2],), ([],), skipped=True),
        case("def f(a): return any(x for x in a)", ([0, 1],), ([],)),
    ),
    "LOAD_SPECIAL": _ENTERED,
    "BINARY_OP": (
        *COMMON["BINARY_OP"],
        *COMMON["BINARY_SUBSCR"],
        case(
            """
            class S:
                def __getitem__(self, key):
                    print(key)
                    return key
            def f(a):
                s = S()
                return s[a] + a[0], s[1:2], s[::2]
            """,
            ([1],),
            ("x",),
            breaks=None,
        ),
    ),
    "UNPACK_SEQUENCE": (
        *COMMON["UNPACK_SEQUENCE"],
        case(
            "def f(a):\n    b, c = a\n    return b, c",
            ([1, 2, 3],),
            ((1, 2, 3, 4),),
            ({1: 2, 3: 4, 5: 6},),
            ("abc",),
            ({1},),
        ),
    ),
    "SET_FUNCTION_ATTRIBUTE": (
        *MOVES["MAKE_FUNCTION"][1:],
        case(
            """
            def f(a):
                class_ = list
                def g(b: class_ = a, *, c: 'later' = 1) -> missing: return b, c, a
                return g(), g(2)
            """,
            (1,),
        ),
        case("def f(a):\n    def g(b: missing): return b\n    return g.__annotations__", (1,)),
        case("def f(a):\n    def g(b: int): return b\n    return g.__annotate__(1)['b'] is int", (1,)),
    ),
    "BUILD_TEMPLATE": _TEMPLATES,
    "BUILD_INTERPOLATION": _TEMPLATES,
}

CASES: dict[tuple[int, int], Cases] = {(3, 11): PY311, (3, 12): PY312, (3, 13): PY313, (3, 14): PY314}
