"""Which native functions may run while a region is captured. A table, not a guess: what is not here breaks the graph.

`PURE`: no effects, result depends on the arguments only. `OVERRIDES`: need the interpreter (they call back, or look at
attributes or types). `BREAKING`: known to do what a graph cannot hold, with the code of the break.
"""

from __future__ import annotations

import builtins
import collections
import dataclasses
import inspect
import logging
import os
import re
import sys
import time
import types
import typing
import warnings
from collections.abc import Callable
from typing import Any, cast

import torch
from torch.utils.checkpoint import checkpoint

from lampwork.capture.calls import builtin_calls as own
from lampwork.capture.calls import data_checks, labels
from lampwork.capture.calls.checkpoints import call_checkpoint
from lampwork.capture.calls.deepcopy import shallow_copy
from lampwork.capture.calls.functional_call import call_functional
from lampwork.capture.calls.modules import exception_comes, leave_to_eager
from lampwork.capture.calls.torch_calls import break_graph, is_compiling, is_dynamo_compiling
from lampwork.capture.semantics import operators, sequences
from lampwork.capture.semantics.attribute_writes import delete_attr, store_attr
from lampwork.capture.semantics.attributes import has_attr
from lampwork.capture.semantics.iteration import length
from lampwork.capture.semantics.protocols import delete_item, get_item, set_item
from lampwork.capture.state import asked
from lampwork.standard import copy, functools, itertools, math, operator

Override = Callable[[Any, list[Any], dict[str, Any]], Any]


def _functions_of(module: Any) -> dict[Any, None]:
    return {f: None for f in vars(module).values() if isinstance(f, types.BuiltinFunctionType)}


PURE: dict[Any, None] = {
    **_functions_of(math),
    **dict.fromkeys(
        (
            bin, chr, hex, oct, ord, operator.length_hint,
            functools.reduce, sys.intern, os.fspath, itertools.chain.from_iterable,
            sys.getsizeof, int.__new__, float.__new__, collections.namedtuple, types.SimpleNamespace,
            torch._C._get_tracing_state, typing.cast, inspect.isclass, inspect.isfunction, inspect.ismethod,
            operator.itemgetter, operator.attrgetter, operator.methodcaller, itertools.tee, str.maketrans,
            bytes.maketrans,
        )
    ),
}  # fmt: skip

# Classes that call their function arguments or walk their iterable arguments.
CALLBACK_CLASSES: frozenset[Any] = frozenset(
    {
        list, tuple, set, frozenset, dict, enumerate, zip, map, filter, reversed, collections.OrderedDict,
        collections.deque, collections.Counter, collections.defaultdict, itertools.chain, itertools.islice,
        itertools.zip_longest, itertools.product, itertools.permutations, itertools.combinations, itertools.accumulate,
        itertools.groupby, itertools.starmap, itertools.takewhile, itertools.dropwhile, itertools.repeat,
        itertools.count, itertools.cycle, itertools.pairwise, itertools.filterfalse, itertools.compress,
        itertools.combinations_with_replacement,
    }
)  # fmt: skip

# Pure functions that walk their iterable arguments.
WALKING: frozenset[Any] = frozenset(
    {functools.reduce, itertools.chain.from_iterable, math.prod, math.fsum, math.dist, itertools.tee}
)

# Which argument of a native function is called, by position and by name.
TAKES_FUNCTION: dict[Any, tuple[int, str]] = {
    **dict.fromkeys((map, filter, functools.reduce, itertools.starmap, itertools.takewhile), (0, "")),
    **dict.fromkeys((itertools.dropwhile, itertools.filterfalse), (0, "")),
    itertools.accumulate: (1, "func"),
    itertools.groupby: (1, "key"),
    **dict.fromkeys((re.sub, re.subn), (1, "repl")),
}

# Classes whose constructors are native and free of effects, on forced arguments as they are.
NATIVE_CLASSES: frozenset[Any] = frozenset(
    {
        bool, complex, bytes, bytearray, range, slice, object, property, staticmethod, classmethod, functools.partial,
        types.MethodType, types.SimpleNamespace, types.MappingProxyType, operator.itemgetter, operator.attrgetter,
        operator.methodcaller, torch.Size, torch.device, torch.finfo, torch.iinfo, torch.memory_format,
    }
)  # fmt: skip

# The code of what functools.singledispatch makes.
SINGLE_DISPATCH: types.CodeType = cast(Any, functools.singledispatch(repr)).__code__
# The code of functions around a `__repr__` that keep a table of the objects they are at work on.
REPR_GUARDS: frozenset[types.CodeType] = frozenset(
    {cast(Any, dataclasses.make_dataclass("Empty", ())).__repr__.__code__}
)

BREAKING: dict[Any, str] = {
    **dict.fromkeys((print, input, open, builtins.breakpoint, warnings.warn, os.getpid, os.urandom), "LW104"),
    **dict.fromkeys((f for f in vars(time).values() if isinstance(f, types.BuiltinFunctionType)), "LW104"),
    **dict.fromkeys((exec, eval, compile, globals, locals, dir, builtins.__import__), "LW103"),
    builtins.__build_class__: "LW110",
    # They look at the frames that call them.
    **dict.fromkeys((sys._getframe, sys._current_frames, inspect.currentframe, inspect.stack), "LW136"),
    # They read all that objects and classes have.
    **dict.fromkeys(
        (inspect.getmembers, inspect.getmembers_static, inspect.getattr_static, inspect.classify_class_attrs),
        "LW103",
    ),
    torch.autograd.grad: "LW116",
    torch.autograd.backward: "LW116",
    torch.manual_seed: "LW105",
}

ANSWERS: dict[tuple[str, str], Any] = {
    ("torch.onnx", "is_in_onnx_export"): False,
    ("torch._dynamo.external_utils", "is_compiling"): True,
    ("torch._utils", "is_compiling"): True,
}
"""What functions answer, by module and name: naming torch.onnx or torch._dynamo would import it, which takes long."""

OVERRIDES: dict[Any, Override] = {
    isinstance: own.call_isinstance,
    issubclass: own.call_issubclass,
    type: own.call_type,
    getattr: own.call_getattr,
    setattr: own.call_inside(store_attr),
    delattr: own.call_inside(delete_attr),
    hasattr: own.call_inside(has_attr),
    callable: own.call_callable,
    len: own.call_inside(length),
    iter: own.call_iter,
    next: own.call_next,
    id: own.call_id,
    vars: own.call_vars,
    str: own.call_str,
    repr: own.call_repr,
    ascii: own.call_ascii,
    int: own.call_number(int, "__int__"),
    float: own.call_number(float, "__float__"),
    bool: own.call_bool,
    super: own.call_super,
    operator.truth: own.call_bool,
    operator.not_: own.call_not,
    operator.getitem: own.call_inside(get_item),
    operator.setitem: own.call_inside(set_item),
    operator.delitem: own.call_inside(delete_item),
    operator.contains: own.call_contains,
    any: sequences.call_any,
    all: sequences.call_all,
    sum: sequences.call_sum,
    max: sequences.call_extreme(">", max),
    min: sequences.call_extreme("<", min),
    sorted: sequences.call_sorted,
    set: sequences.call_set(set),
    frozenset: sequences.call_set(frozenset),
    functools.cmp_to_key: sequences.call_cmp_to_key,
    **operators.OVERRIDES,
    cast(Any, collections)._count_elements: sequences.call_count_elements,
    sys.exc_info: own.call_exc_info,
    sys.exception: own.call_exception,
    sys.getrecursionlimit: own.call_state(sys.getrecursionlimit),
    copy.copy: own.call_inside(shallow_copy),
    copy.deepcopy: own.call_deepcopy,
    dataclasses.fields: own.call_fields,
    dataclasses.is_dataclass: own.call_is_dataclass,
    torch.is_tensor: own.call_is_tensor,
    torch.is_grad_enabled: own.call_plain(torch.is_grad_enabled),
    torch.compiler.is_compiling: is_compiling,
    torch.compiler.is_dynamo_compiling: is_dynamo_compiling,
    asked.is_compiling: own.answer(True),
    asked.graph_break: break_graph,
    torch.compiler.is_exporting: own.answer(False),
    cast(Any, torch).jit.is_scripting: own.answer(False),
    cast(Any, torch).jit.is_tracing: own.answer(False),
    cast(Any, torch)._jit_internal.is_scripting: own.answer(False),
    torch._C._get_tracing_state: own.answer(None),
    checkpoint: call_checkpoint,
    exception_comes: leave_to_eager,
    torch.func.functional_call: call_functional,
    **labels.HANDLERS,
    **data_checks.HANDLERS,
    torch.set_grad_enabled.__enter__: own.call_context_slot("__enter__"),
    cast(Any, torch.autograd.Function.apply).__func__: own.call_autograd_function,
    re.compile: own.call_plain(re.compile),
    logging.getLogger: own.call_known(logging.getLogger),
}
