"""From the values of a region to the steps that rebuild them on each call."""

from __future__ import annotations

import collections
import contextlib
import enum
import gc
import re
import types
import warnings
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch

from lampwork import pristine
from lampwork.capture.model.errors import Break, FrameRefused, Unbuildable
from lampwork.capture.model.frame import Frame
from lampwork.capture.model.region import Step, StepKind, Unwritten
from lampwork.capture.model.values import (
    IDENTITIES,
    NULL,
    Appended,
    Callback,
    Generator,
    Lazy,
    StandsFor,
    is_constant,
)
from lampwork.capture.semantics.symbolic import fixed, has_symbols
from lampwork.capture.state.classes import is_allocated_by
from lampwork.capture.state.contexts import Contexts
from lampwork.capture.state.environment import Environment
from lampwork.capture.state.native_methods import bind_native, native_descriptor
from lampwork.graph.distributed import connected, has_mask, is_dtensor, make_dtensor
from lampwork.graph.islands import from_local
from lampwork.graph.opinfo import op_info
from lampwork.graph.symbols import SymbolicInt
from lampwork.graph.symnode import from_torch
from lampwork.graph.tracetensor import Storage, TraceTensor, ViewStep, make_trace_tensor
from lampwork.graph.writes import detached_by
from lampwork.standard import functools, itertools, operator

aten = torch.ops.aten

_REDUCED: frozenset[type] = frozenset(
    {
        type(iter([])),
        type(iter(())),
        type(iter(range(0))),
        type(iter("")),
        type(reversed([])),
        type(iter({})),
        type(iter({}.values())),
        type(iter({}.items())),
        type(reversed({})),
        type(reversed({}.values())),
        type(reversed({}.items())),
        type(iter(set())),
        type(iter(b"")),
        itertools.chain,
        itertools.islice,
        itertools.count,
        itertools.repeat,
        itertools.cycle,
        itertools.product,
        itertools.permutations,
        itertools.combinations,
        itertools.accumulate,
        itertools.zip_longest,
        itertools.starmap,
        itertools.takewhile,
        itertools.dropwhile,
        itertools.filterfalse,
        itertools.compress,
        enumerate,
        zip,
        map,
        filter,
        operator.itemgetter,
        operator.attrgetter,
        operator.methodcaller,
    }
)


# Views that programs do not hand out as aliases: they are made again, in eager, of what a program does hand out.
_EAGER_VIEWS: dict[Any, Any] = {
    aten.as_strided.default: aten.as_strided.default,
    aten.view.dtype: aten.view.dtype,
    aten.view_as_real.default: aten.view_as_real.default,
    aten.view_as_complex.default: aten.view_as_complex.default,
    aten._conj_physical.default: aten._conj.default,
    aten.neg.default: aten._neg_view.default,
}


def inference_copy(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of a region that left inference mode, as the inference tensor that it is in eager."""
    with pristine.inference_mode():
        return tensor.clone()


# How an iterator of a dict was made.
_DICT_VIEWS: dict[type, Callable[[Any], Any]] = {
    type(iter({})): iter,
    type(iter({}.values())): dict.values,
    type(iter({}.items())): dict.items,
    type(reversed({})): reversed,
    type(reversed({}.values())): lambda table: reversed(table.values()),
    type(reversed({}.items())): lambda table: reversed(table.items()),
}


def moved_iterator(view: Callable[[Any], Any], table: Any, position: int) -> Any:
    """A new iterator over a dict, past its first items."""
    iterator = iter(view(table))
    for _ in range(position):
        next(iterator)
    return iterator


def set_state(obj: Any, state: dict[str, Any]) -> None:
    """Fill the `__dict__` of a rebuilt object."""
    obj.__dict__.update(state)


def make_function(
    code: types.CodeType,
    table: dict[str, Any],
    names: tuple[str, str],
    defaults: tuple[Any, ...] | None,
    kwdefaults: dict[str, Any] | None,
    closure: tuple[types.CellType, ...] | None,
) -> types.FunctionType:
    """A function that the region defined."""
    function = types.FunctionType(code, table, names[0], defaults, closure)
    function.__qualname__ = names[1]
    function.__kwdefaults__ = kwdefaults  # pyright: ignore[reportAttributeAccessIssue]
    return function


# How the native part of an object of a subclass is read, whatever the subclass makes of it.
_PLAIN_BASES: dict[type, Callable[[Any], Any]] = {
    int: int.__int__,
    float: float.__float__,
    complex: complex.__complex__,
    str: str.__str__,
    bytes: bytes.__bytes__,
}


class RecipeBuilder:
    """`value(x)` gives the number of the step that makes x; one object is one step, whoever refers to it.

    `outputs` collects the trace tensors that the graph must return. `raised` says of exceptions that were caught, and
    `births` of other objects that may have to be made in plain Python, which instruction of the root frame made them.
    `stopped`: the root frame, if the region ends at a graph break.
    """

    def __init__(
        self,
        environment: Environment,
        contexts: Contexts,
        inside_cells: Mapping[int, types.CellType],
        inside_functions: Mapping[int, types.FunctionType],
        raised: Mapping[int, int],
        births: Mapping[int, int],
        stopped: Frame | None = None,
    ) -> None:
        self.stopped = stopped
        self.raised = raised
        self.births = births
        self.environment = environment
        self.contexts = contexts
        self.inside_cells = inside_cells
        self.inside_functions = inside_functions
        self.steps: list[Step] = []
        self.outputs: list[TraceTensor] = []
        self._made: dict[int, int] = {}
        self._aliases: dict[tuple[int, ...], int] = {}
        self._keep: list[Any] = []
        self._path: list[Any] = []

    def step(self, kind: StepKind, payload: Any = None, args: tuple[int, ...] = ()) -> int:
        self.steps.append(Step(kind, payload, args))
        return len(self.steps) - 1

    def call(self, function: Any, *args: int) -> int:
        """A call of a fixed function."""
        return self.step("call", None, (self.step("const", function), *args))

    def value(self, value: Any) -> int:
        """The step of a value.

        Raises:
            FrameRefused: LW134 if it is of a kind that cannot be rebuilt.
        """
        found = self._made.get(id(value))
        if found is None:
            self._path.append(value)
            found = self._made[id(value)] = self._build(value)
            self._path.pop()
            self._keep.append(value)
        return found

    def _build(self, value: Any) -> int:
        kind = type(value)
        if kind is Lazy:
            if type(value.source) is Unwritten:
                stop = value.source.value
                raise Unbuildable("a text of a tensor", stop.step, stop)
            return self.step("source", value.source)
        if kind is Appended:
            return self.call(getattr, self.value(value.items), self.value("append"))
        if kind is TraceTensor:
            return self._tensor(value)
        if is_dtensor(kind):
            return self._dtensor(value)
        if kind is torch.SymFloat:
            return self.step("const", fixed(value))
        if kind is torch.SymInt:
            return self._number(value)
        if kind is torch.Size and has_symbols(value):
            return self.call(torch.Size, self.step("tuple", None, tuple(self.value(v) for v in value)))
        entry = self.environment.entry(value)
        if entry is not None:
            if entry.known:
                return self.step("const", entry.value)
            return self.step("source", entry.source)
        if isinstance(value, enum.Enum):
            return self._identity(value, kind)
        if is_constant(value) or value is NULL:
            return self.step("const", value)
        if kind is list:
            return self.step("list", None, tuple(self.value(v) for v in value))
        if kind is tuple:
            return self.step("tuple", None, tuple(self.value(v) for v in value))
        if kind is dict:
            return self.step("dict", None, tuple(self.value(v) for pair in value.items() for v in pair))
        if kind in (set, frozenset):
            return self.call(kind, self.value(list(value)))
        if kind is slice:
            return self.call(slice, self.value(value.start), self.value(value.stop), self.value(value.step))
        if kind in _REDUCED:
            return self._reduced(value)
        return self._object(value, kind)

    def _number(self, value: torch.SymInt) -> int:
        """A symbolic int: the value of its index on each call."""
        number = from_torch(value)
        if isinstance(number, SymbolicInt):
            return self.step("symbol", self.environment.recorder.scope.canonical(number.index))
        return self.step("const", number)

    def _tensor(self, tensor: TraceTensor) -> int:
        lifted = self.environment.lifting.of_trace.get(id(tensor))
        if lifted is not None:
            return self.step("const", lifted.real) if lifted.bound else self.step("source", lifted.source)
        if tensor.is_cut:
            raise FrameRefused("LW134", "a view that a no_grad block took of a tensor that requires grad")
        base, chain = tensor.base, tensor.chain
        if (
            chain
            and base.requires_grad
            and base.versions != tensor.seen_versions
            and not self.contexts.grad_enabled
            and all(step.op is not aten.detach.default for step in chain)
        ):
            # Autograd forbids to use it: it is made in eager, before the write.
            raise FrameRefused(
                "LW134", "a view taken without gradients of what requires grad and was written since"
            )
        if getattr(tensor, "_is_param", False):
            data = make_trace_tensor(tensor.spec, tensor.node, base, chain)
            return self.call(_make_parameter, self.value(data), self.value(tensor.requires_grad))
        if tensor.is_stray:
            raise FrameRefused("LW134", "a detached tensor to which a value that requires grad was written")
        if base.sealed and detached_by(tensor) is None:
            raise FrameRefused("LW134", "a view of a tensor that was detached in place since")
        eager = (i for i, step in enumerate(chain) if step.op in _EAGER_VIEWS or step.own_version)
        start = next(eager, len(chain))
        whole = max((i + 1 for i, step in enumerate(chain) if step.in_place), default=0)
        if self._becomes_inference(base):
            start = 0
        elif whole or _content_is_view(base):
            # What eager's views are of is no tensor that the graph computes: it is made first, views of it in eager.
            start = min(start, whole)
        elif start == len(chain):
            return self._piece(tensor, self._output(tensor))
        made = self._alias(base, chain[:start])
        for step in chain[start:]:
            view = aten.data.default if step.own_version else _EAGER_VIEWS.get(step.op, step.op)
            run: Any = functools.partial(view, **step.kwargs)
            if self.contexts.grad_enabled and not pristine.is_grad_enabled():
                # The region ends in a no_grad block. Views that the block took of what requires grad are no results.
                run = functools.partial(_with_gradients, run)
            made = self.call(run, made, *map(self.value, step.args))
        return self._piece(tensor, made)

    def _dtensor(self, tensor: Any) -> int:
        """A DTensor, around the local tensor that the program gives.

        Raises:
            FrameRefused: LW134 if it is a result that only its own reduction understands, or an outside DTensor that
                is sharded otherwise now.
        """
        lifted = self.environment.distributed.of_stand_in.get(id(tensor))
        if has_mask(tensor):
            raise FrameRefused("LW134", "a DTensor of partial results with a mask")
        if lifted is not None:
            if not lifted.is_as_lifted:
                raise FrameRefused("LW134", "a DTensor from outside that was sharded otherwise in place")
            return self.step("const", lifted.real) if lifted.bound else self.step("source", lifted.source)
        local, make = tensor._local_tensor, make_dtensor
        if tensor.requires_grad and self.environment.recorder.tracks_gradients:
            local, make = connected(self.environment.recorder, local), from_local
        return self.call(make, self.value(local), self.step("const", tensor._spec))

    def _piece(self, tensor: TraceTensor, made: int) -> int:
        """The tensor's step, `made`, on which autograd refuses writes if one operator gave it among several views."""
        return self.call(_forbid_writes, made) if tensor.is_piece and pristine.is_grad_enabled() else made

    def _output(self, tensor: TraceTensor) -> int:
        self.outputs.append(tensor)
        return self.step("output", len(self.outputs) - 1)

    def _becomes_inference(self, base: Storage) -> bool:
        """Whether memory that the graph allocates belongs to an inference tensor, which the graph does not know of."""
        return base.source != "input" and base.inference and not self.contexts.inference

    def _alias(self, base: Storage, chain: tuple[ViewStep, ...]) -> int:
        """The memory `base` seen through `chain`; one step each, so that views of it share it."""
        if base.source == "input" and not chain:
            found = next(
                lifted for lifted in self.environment.lifting.lifted.values() if lifted.trace.base is base
            )
            return self.value(found.trace)
        key = (id(base), len(chain), *map(id, chain))
        made = self._aliases.get(key)
        if made is None:
            spec = chain[-1].spec if chain else base.spec
            tensor = make_trace_tensor(spec, self.environment.recorder.seen(base.node, chain), base, chain)
            if chain and chain[-1].in_place:
                tensor.is_whole = True
                tensor.node.meta["whole"] = chain[-1].op is not aten.detach.default
            made = self._output(tensor)
            if self._becomes_inference(base):
                made = self.call(inference_copy, made)
            self._aliases[key] = made
        return made

    def _object(self, value: Any, kind: type) -> int:
        if id(value) in self.inside_functions:
            return self._function(value)
        if kind is types.MethodType and type(value.__self__) is TraceTensor:
            return self.call(getattr, self.value(value.__self__), self.value(value.__name__))
        if kind is types.MethodWrapperType:
            return self._native_method(value)
        if kind is types.MethodType:
            return self.call(types.MethodType, self.value(value.__func__), self.value(value.__self__))
        if kind is types.CellType:
            return self._cell(value)
        if kind is functools.partial:
            bound = self.value(dict(value.keywords))
            return self.call(_make_partial, self.value(value.func), self.value(value.args), bound)
        if kind is Callback:
            return self.value(value.function)
        if isinstance(value, StandsFor):
            if value.is_begun:
                raise Unbuildable(f"an iterator over a {type(value.value).__name__}", self._born(value))
            return self.value(value.value)
        if id(value) in self.contexts.made:
            return self._context(value)
        if isinstance(value, (*IDENTITIES, types.WrapperDescriptorType, types.MethodDescriptorType)):
            return self._identity(value, kind)
        if isinstance(value, re.Pattern) or _is_constant_match(value):
            return self.step("const", value)
        if isinstance(value, BaseException):
            if id(value) in self.raised:
                raise Unbuildable(kind.__name__, self.raised[id(value)], Break("LW117", kind.__name__))
            return self._exception(value, kind)
        if isinstance(value, tuple):
            items = self.step("tuple", None, tuple(self.value(v) for v in cast(tuple[Any, ...], value)))
            if hasattr(kind, "n_fields"):
                return self.call(kind, items)  # torch.return_types and their like
            return self._allocated(value, kind, tuple, items)
        if isinstance(value, Generator):
            # A `with` block always asks its manager to end.
            managed = any(isinstance(held, contextlib.AbstractContextManager) for held in self._path)
            if self.stopped is not None and not managed:
                value.check_break(self.stopped)
            name = value.frame.function.__qualname__
            raise Unbuildable(f"a generator of {name}", self._born(value), Break("LW137", name))
        if isinstance(value, super):
            view = cast(Any, value)
            return self.call(super, self.value(view.__thisclass__), self.value(view.__self__))
        return self._instance(value, kind)

    def _identity(self, value: Any, kind: type) -> int:
        """An object that is itself wherever it comes from, unless the region made it: then each call makes its own."""
        bound_to = value.__self__ if isinstance(value, types.BuiltinFunctionType) else None
        if bound_to is not None and not isinstance(bound_to, (types.ModuleType, type)):
            return self._native_method(value)
        if isinstance(value, types.CodeType):
            return self.step("const", value)
        # A native function of a class is bound whenever it is looked up, and an enumeration makes its members.
        maker = kind if isinstance(value, enum.Enum) else value if bound_to is None else bound_to
        if not self.environment.births.made(maker):
            return self.step("const", value)
        if isinstance(value, torch.nn.Module):
            return self._instance(value, kind)
        name = getattr(value, "__qualname__", None) or getattr(value, "__name__", kind.__qualname__)
        raise Unbuildable(f"the {kind.__qualname__} {name}", self._born(value))

    def _native_method(self, value: Any) -> int:
        found = native_descriptor(value)
        if found is None:
            return self.call(getattr, self.value(value.__self__), self.value(value.__name__))
        return self.call(bind_native, self.step("const", found), self.value(value.__self__))

    def _born(self, value: Any) -> int | None:
        """The instruction of the root frame that made a value, or made what it is being built for."""
        return next(
            (self.births[id(v)] for v in (value, *reversed(self._path)) if id(v) in self.births), None
        )

    def _exception(self, error: BaseException, kind: type) -> int:
        """An exception that was never raised."""
        arguments = [self.value(argument) for argument in error.args]
        if isinstance(kind.__init__, types.FunctionType) or isinstance(kind.__new__, types.FunctionType):
            native = next(base for base in kind.__mro__ if base.__module__ == "builtins")
            made = self.call(native.__new__, self.step("const", kind), *arguments)
        else:
            made = self.call(kind, *arguments)
        self._made[id(error)] = made
        if error.__dict__:
            self.call(set_state, made, self.value(dict(error.__dict__)))
        for name in ("__cause__", "__context__", "__suppress_context__"):
            if getattr(error, name):
                self.call(setattr, made, self.step("const", name), self.value(getattr(error, name)))
        return made

    def _allocated(self, value: Any, kind: type, base: type, *content: int) -> int:
        """An object of a Python class, made by what its native base has for `__new__`, not by the class's own.

        Raises:
            Unbuildable: that `__new__` does not make objects of this class.
        """
        if not is_allocated_by(base, kind):
            raise Unbuildable(f"an object of {kind.__module__}.{kind.__qualname__}", self._born(value))
        made = self._made[id(value)] = self.call(base.__new__, self.step("const", kind), *content)
        if content:
            self._fill_state(value, kind, made)
        return made

    def _instance(self, value: Any, kind: type) -> int:
        """An object of a Python class: allocated, then filled, so that it may refer to itself."""
        plain = next((b for b in _PLAIN_BASES if isinstance(value, b)), None)
        if plain is not None:
            return self._allocated(value, kind, plain, self.step("const", _PLAIN_BASES[plain](value)))
        if isinstance(value, frozenset):
            return self._allocated(value, kind, frozenset, self.value(list(frozenset.__iter__(value))))
        base = next((b for b in (dict, list, set, collections.deque) if isinstance(value, b)), object)
        if collections.OrderedDict in kind.__mro__:
            base = collections.OrderedDict
        if kind is bytearray:
            return self.call(kind, self.step("const", bytes(value)))
        if kind is types.SimpleNamespace:
            made = self._made[id(value)] = self.call(kind)
            self.call(set_state, made, self.value(dict(vars(value))))
            return made
        made = self._allocated(value, kind, base)
        if isinstance(value, collections.defaultdict):
            self.call(collections.defaultdict.__init__, made, self.value(value.default_factory))
        if isinstance(value, dict):
            setter = self.step("const", cast(Any, base).__setitem__)
            for key, item in cast(dict[Any, Any], value).items():
                self.step("call", None, (setter, made, self.value(key), self.value(item)))
        elif base is collections.deque:
            deque = cast("collections.deque[Any]", value)
            self.call(collections.deque.__init__, made, self.value(list(deque)), self.value(deque.maxlen))
        elif base is not object:
            fill = list.extend if base is list else set.update
            self.call(fill, made, self.value(list(value)))
        self._fill_state(value, kind, made)
        return made

    def _fill_state(self, value: Any, kind: type, made: int) -> None:
        """What an object of a Python class holds in its dict and in slots."""
        state = getattr(value, "__dict__", None)
        if state:
            self.call(set_state, made, self.value(dict(state)))
        for cls in kind.__mro__:
            for name in _slots(cls):
                if hasattr(value, name):
                    item = self.value(getattr(value, name))
                    self.call(object.__setattr__, made, self.value(name), item)

    def _function(self, function: types.FunctionType) -> int:
        cells = function.__closure__
        made = self.call(
            make_function,
            self.step("const", function.__code__),
            self.step("const", function.__globals__),
            self.step("const", (function.__name__, function.__qualname__)),
            self.value(function.__defaults__),
            self.value(function.__kwdefaults__),
            self.step("const", None)
            if cells is None
            else self.step("tuple", None, tuple(self.value(cell) for cell in cells)),
        )
        self._made[id(function)] = made
        if function.__dict__:
            self.call(set_state, made, self.value(dict(function.__dict__)))
        return made

    def _cell(self, cell: types.CellType) -> int:
        if id(cell) not in self.inside_cells:
            return self.step("const", cell)
        made = self.call(types.CellType)
        self._made[id(cell)] = made
        try:
            contents = cell.cell_contents
        except ValueError:
            return made
        self.call(set_cell_contents, made, self.value(contents))
        return made

    def _context(self, context: Any) -> int:
        """torch.no_grad() and its like: made anew, and entered again if we are inside of it."""
        _, cls, args, kwargs = self.contexts.made[id(context)]
        entered = context in self.contexts.entered
        if entered:
            # It remembers the grad mode it finds, and puts it back when it is left.
            self.call(torch._C._set_grad_enabled, self.step("const", self.contexts.modes[id(context)]))
        origin = self.contexts.origins.get(id(context))
        if origin is not None:
            made = self.value(origin)
        else:
            made = self.call(functools.partial(cls, **kwargs), *[self.value(a) for a in args])
        if entered:
            self.call(cls.__enter__, made)
        return made

    def _reduced(self, iterator: Any) -> int:
        """A half-used iterator, as pickle would rebuild it. Those of dicts are made anew of the same dict and moved on:
        they notice when it changes."""
        view = _DICT_VIEWS.get(type(iterator))
        if view is not None:
            table = next((obj for obj in gc.get_referents(iterator) if isinstance(obj, dict)), None)
            try:
                _reduce(iterator)
            except RuntimeError as changed:
                raise FrameRefused("LW134", "an iterator of a dict that has changed since") from changed
            if table is not None:
                position = len(cast(dict[Any, Any], table)) - operator.length_hint(iterator)
                return self.call(
                    moved_iterator, self.step("const", view), self.value(table), self.value(position)
                )
        function, args, *state = _reduce(iterator)
        made = self.call(function, *[self.value(a) for a in args])
        if state and state[0] is not None:
            kind = type(iterator)
            set_state = kind.__setstate__ if kind.__module__ == "builtins" else _set_state
            self.call(set_state, made, self.value(state[0]))
        return made


def _reduce(iterator: Any) -> tuple[Any, ...]:
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # those of itertools cannot be pickled from 3.14 on
        return iterator.__reduce__()


def _set_state(iterator: Any, state: Any) -> None:
    """Of an iterator of itertools, which warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        iterator.__setstate__(state)


def _is_constant_match(value: Any) -> bool:
    """Whether a value is a match of a regular expression in text that cannot change."""
    return isinstance(value, re.Match) and type(cast(Any, value).string) in (str, bytes)


def _content_is_view(base: Storage) -> bool:
    """Whether the content of memory is a view of another value of the graph: what was written put it together so, or it
    is a copy in another shape."""
    target = base.node.target
    if base.node.meta.get("whole"):
        return True
    if base.source != "fresh" or not base.written or not isinstance(target, torch._ops.OpOverload):
        return False
    return op_info(target).kind == "view"


def _with_gradients(view: Callable[..., torch.Tensor], *args: Any) -> torch.Tensor:
    with pristine.enable_grad():
        return view(*args)


def _forbid_writes(view: torch.Tensor) -> torch.Tensor:
    if view._is_view():
        autograd = cast(Any, torch)._C._autograd
        autograd._set_creation_meta(view, autograd.CreationMeta.MULTI_OUTPUT_NODE)
    return view


def _make_parameter(data: torch.Tensor, requires_grad: bool) -> torch.nn.Parameter:
    return torch.nn.Parameter(data, requires_grad)


def set_cell_contents(cell: types.CellType, value: Any) -> None:
    """Fill a rebuilt cell."""
    cell.cell_contents = value


def _make_partial(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return functools.partial(function, *args, **kwargs)


def _slots(cls: type) -> tuple[str, ...]:
    slots = cls.__dict__.get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))
