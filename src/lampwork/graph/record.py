"""`Recorder`: runs a program on `TraceTensor`s and keeps every ATen operator as one node of a functional graph.

    with Recorder() as rec:
        x = rec.input(tensor, "x")
        y = torch.relu(x) @ rec.input(weight, "weight", bound=True)
    recorded = rec.finish([y])

before:  y = torch.zeros(4); y[1:] += x; y.relu_()
after:   zeros = aten.zeros([4]); slice = aten.slice(zeros, 0, 1); add = aten.add(slice, x);
         slice_scatter = aten.slice_scatter(zeros, add, 0, 1); relu = aten.relu(slice_scatter)

The mode works below autograd, where operators that torch composes of others still arrive whole.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from operator import getitem
from typing import Any, cast

import torch
from torch import fx
from torch.utils._python_dispatch import TorchDispatchMode

from lampwork import logs, pristine
from lampwork.errors import DataDependentError, InvalidGraphError, UnsupportedOpError
from lampwork.frames import Unwatched
from lampwork.graph import canonical, canonical_on_cards, canonical_random, collectives, writes
from lampwork.graph.concrete import canonical_sizes
from lampwork.graph.devices import Places
from lampwork.graph.distributed import passes_on
from lampwork.graph.functional_twin import functional_twin
from lampwork.graph.functionalize import in_layout, replay, scatter_back, spec_of
from lampwork.graph.int64 import confine_to_int64
from lampwork.graph.known import ask, compute, known_value, note_known, of_numbers
from lampwork.graph.layouts import note_layouts
from lampwork.graph.nodes import add_call
from lampwork.graph.opinfo import TAKE_UNDEFINED, UNINITIALIZED, OpInfo, OpKind, needed_keywords, op_info
from lampwork.graph.origin import NOWHERE, Place, place_of
from lampwork.graph.overlap import check_apart, check_drawn, check_overlap, check_writable
from lampwork.graph.printing import format_graph
from lampwork.graph.probed import check_taken, probed
from lampwork.graph.recorded import (
    Input,
    Recorded,
    call_specs,
    check_input,
    fresh_versions,
    is_chain,
    replace_view,
    specs_of,
    with_grad,
    without_grad,
)
from lampwork.graph.shapes import eager_takes, infer, own_rule
from lampwork.graph.spec import TensorSpec
from lampwork.graph.symbols import Scope
from lampwork.graph.symnode import from_torch, to_torch
from lampwork.graph.tracetensor import Storage, TraceTensor, ViewStep, make_trace_tensor, shares_version
from lampwork.graph.within import Again, Autocast, may_be_cast_inside

aten = torch.ops.aten

_NOT_IN_NAMES = re.compile(r"\W")

# Operators that give the number in a tensor.
_SCALARS = frozenset({aten.item.default, aten._local_scalar_dense.default})

# Whose operators run no code of the program's.
_OF_TORCH = frozenset({"aten", "prim", "prims"})


def _unwatched(handler: Callable[..., Any], func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What an operator of the program's own does and infers, in Python maybe, is asked for as any operator's is."""
    with Unwatched():
        return handler(func, args, kwargs)


def below_views() -> Any:
    """A guard without which every view would be registered with autograd's view tracking."""
    return torch._C._ExcludeDispatchKeyGuard(  # pyright: ignore
        torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)  # pyright: ignore
    )


class Recorder(TorchDispatchMode):
    """Records what happens between `__enter__` and `__exit__`. One recorder records one graph.

    `where`, if set, gives the place that each new node comes from. `scope` holds the symbols that sizes are made of.
    `place_of(tensor, period)`, if set, says where in its storage an input begins, in bytes modulo `period`, and sees to
    it that all calls agree; else nothing depends on it. `address_of` says the same of an input's address. `counted`:
    random numbers are recorded as computed ones. `draws_on_cards`: those of CUDA devices are, as eager draws them.
    """

    def __init__(self, *, counted: bool = False, draws_on_cards: bool = False) -> None:
        super().__init__()
        self.counted = counted
        self.draws_on_cards = draws_on_cards
        self.draws = 0  # operators that have drawn random numbers, so far
        self.taken: dict[torch.device, canonical_on_cards.Taken] = {}
        self.graph = fx.Graph()
        self.where: Callable[[], Place] | None = None
        self.scope = Scope()
        self.place_of: Callable[[torch.Tensor, int], int] | None = None
        self.address_of: Callable[[torch.Tensor, int], int | None] | None = None
        self.inputs: list[Input] = []
        self.bound: list[Input] = []
        self._stamps = count()
        self.writes = 0  # to memory, so far
        self.started: list[Storage] = []  # what collectives write
        self._outside: dict[int, TraceTensor] = {}
        self._guards: list[Any] = []
        self._grad_outside = False
        self._input_written = False
        self._handlers: dict[Any, Callable[..., Any]] = {}
        self.distributes = False
        self.autocast = Autocast()
        self.places = Places()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Otherwise torch wraps __torch_dispatch__ so that its first call imports torch._dynamo, sympy and more.
        return False

    def __enter__(self) -> Recorder:
        for guard in self._below():
            guard.__enter__()
            self._guards.append(guard)
        self._grad_outside = pristine.is_grad_enabled()
        super().__enter__()
        return self

    def _below(self) -> Sequence[Any]:
        """Guards that take out of the way what would come before the recorder."""
        return torch._C._AutoDispatchBelowAutograd(), below_views()  # pyright: ignore

    def __exit__(self, *exc: Any) -> None:
        super().__exit__(*exc)
        self._release()

    def leave(self) -> None:
        """End the recording for certain: the handler of a signal may have raised while it was entered or left."""
        modes = [torch._C._get_dispatch_stack_at(i) for i in range(torch._C._len_torch_dispatch_stack())]
        if any(mode is self for mode in modes):
            while torch._C._pop_torch_dispatch_stack(None) is not self:
                pass
        self._release()

    def _release(self) -> None:
        while self._guards:
            self._guards.pop().__exit__(None, None, None)

    def close(self) -> None:
        """Let go of the tensors from outside. What is left of a recording is a cycle of references."""
        for table in (self.inputs, self.bound, self._outside):
            table.clear()

    # --- placeholders -------------------------------------------------------------------------------------------

    def input(
        self, tensor: torch.Tensor, name: str, bound: bool = False, spec: TensorSpec | None = None
    ) -> TraceTensor:
        """A trace tensor for a tensor from outside; `bound`: a parameter or buffer, the same object on every call.

        `spec`: the tensor's, with symbols of `scope` for sizes and strides that may differ.

        Raises:
            UnsupportedOpError: the tensor is sparse, quantized, on no device, or of a foreign subclass.
        """
        check_input(tensor)
        if self._input_written:
            writes.check_shared(tensor, name, None, (*self.inputs, *self.bound))
        spec = TensorSpec.of(tensor) if spec is None else spec
        node = self._placeholder(name, bound)
        node.meta["val"] = spec
        node.meta["bound"] = bound
        base = Storage(node, spec, next(self._stamps), "input", node, spec.requires_grad)
        result = make_trace_tensor(spec, node, base, ())
        if getattr(tensor, "_is_param", False) or isinstance(tensor, torch.nn.Parameter):
            # isinstance(x, nn.Parameter) asks for this.
            result._is_param = True  # pyright: ignore
        (self.bound if bound else self.inputs).append(Input(node, tensor, name, bound, base))
        return result

    def _placeholder(self, name: str, bound: bool) -> fx.Node:
        """A new placeholder behind those of its kind: inputs first, then bound tensors."""
        if bound and self.bound:
            before = self.bound[-1].node.next
        elif self.inputs:
            before = self.inputs[-1].node.next
        else:
            before = self.graph._root.next  # pyright: ignore
        text = _NOT_IN_NAMES.sub("_", name)
        with self.graph.inserting_before(before):
            return self.graph.create_node("placeholder", text, (), {}, name=text)

    def lift(self, tensor: torch.Tensor) -> TraceTensor:
        """The trace tensor of a real tensor met as an argument: bound, one placeholder for each tensor object."""
        known = self._outside.get(id(tensor))
        if known is None:
            known = self.input(tensor, f"outside_{len(self._outside)}", bound=True)
            self._outside[id(tensor)] = known
        return known

    def constant(self, tensor: torch.Tensor) -> TraceTensor:
        """A literal of the program (`torch.tensor([1., 2.])`) as a bound placeholder; handed out only as a copy."""
        result = self.input(tensor, "constant", bound=True)
        result.base.source = "constant"
        return result

    # --- nodes --------------------------------------------------------------------------------------------------

    def emit(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> fx.Node:
        """Append `op(*args)` over nodes; its spec is inferred from theirs."""
        if self.scope.hints:
            args, kwargs = from_torch(args), from_torch(kwargs or {})
        specs = specs_of(args)
        kwargs = kwargs or {}
        val = infer(op, specs, specs_of(kwargs))
        if any(isinstance(s, TensorSpec) and s.requires_grad for s in specs):
            if pristine.is_grad_enabled():
                val = with_grad(val) if op_info(op).differentiable else val
            elif self._grad_outside:
                args = tuple(self.cut(a) if isinstance(a, fx.Node) else a for a in args)
                val = without_grad(val)
        return self._node(op, args, kwargs, val)

    def cut(self, node: fx.Node) -> fx.Node:
        """The node's value, through which no gradient flows where the graph is run under autograd."""
        spec = spec_of(node)
        if not spec.requires_grad:
            return node
        return self._node(aten.detach.default, (node,), {}, replace(spec, requires_grad=False))

    def _node(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], val: Any) -> fx.Node:
        name = op._opname if hasattr(op, "_opname") else op.__name__
        place = self.where() if self.where is not None else NOWHERE
        node = add_call(self.graph, op, args, kwargs, name, place)
        node.meta["val"] = val
        return node

    def read(self, tensor: TraceTensor) -> fx.Node:
        """The node with the present content of a tensor."""
        base = tensor.base
        if base.pending:
            collectives.wait(self, base)
        if base.strays:
            writes.check_stray(tensor)
        if tensor.stamp != base.stamp:
            node = self.seen(base.node, tensor.chain)
            tensor.node = node
            tensor.stamp = base.stamp
        return tensor.node

    def seen(self, content: fx.Node, chain: Sequence[ViewStep]) -> fx.Node:
        """`content` seen through the chain, in any block as outside of it: it is read once, for all its uses, and those
        in a no_grad block are cut off where they are."""
        with pristine.enable_grad() if self._grad_outside else contextlib.nullcontext():
            return replay(self, content, chain)

    def renew(self, base: Storage, node: fx.Node) -> None:
        """The content of the memory is `node` from here on; aliases read it again."""
        base.node = node
        base.stamp = next(self._stamps)

    @property
    def tracks_gradients(self) -> bool:
        """Whether the region began with gradients enabled."""
        return self._grad_outside

    def write(self, tensor: TraceTensor, value: fx.Node, requires_grad: bool = False) -> None:
        """The tensor's content is `value` (of its shape and dtype) from here on, for it and for its aliases."""
        base = tensor.base
        for spec in (base.spec, *(step.spec for step in tensor.chain), tensor.spec):
            check_writable(spec)
        if tensor.is_piece and pristine.is_grad_enabled() and (tensor.requires_grad or requires_grad):
            raise UnsupportedOpError("one of several views that one operator gave is written in place")
        if base.source != "input":
            writes.check_dense(base.spec)
        if base.source == "input":
            mine = next(i for i in (*self.inputs, *self.bound) if i.base is base)
            self._input_written = True
            writes.check_shared(mine.tensor, mine.name, base, (*self.inputs, *self.bound))
            if self._grad_outside and base.spec.requires_grad:
                # Autograd goes on from the tensor itself, which a functional graph replaces.
                raise UnsupportedOpError(f"{mine.name} requires grad and is written in place")
        detached = writes.detached_by(tensor)
        if requires_grad and detached is not None:
            # The gradient is the detached tensor's, not its memory's.
            base.strays = (*base.strays, detached)
            value, requires_grad = self.cut(value), False
        content = scatter_back(self, base.node, tensor.chain, value) if tensor.chain else value
        content = in_layout(self, content, base.spec)
        if self._grad_outside:
            writes.check_tracked(tensor, content)
        if base.source == "input" and self._grad_outside and spec_of(content).requires_grad:
            raise UnsupportedOpError("a tensor from outside takes on a value that requires grad")
        self.renew(base, content)
        self.writes += 1
        base.requires_grad = base.requires_grad or requires_grad
        writes.note_content(tensor, value, content)
        if not tensor.chain or spec_of(value).strides == tensor.spec.strides:
            tensor.node = value if tensor.chain else content
            tensor.stamp = base.stamp

    def result(self, val: TensorSpec, node: fx.Node) -> TraceTensor:
        """A tensor in memory of its own, with the content `node`."""
        return make_trace_tensor(
            val, node, Storage(node, val, next(self._stamps), requires_grad=val.requires_grad), ()
        )

    def view(
        self,
        tensor: TraceTensor,
        op: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        own_version: bool = False,
    ) -> TraceTensor:
        """`op(tensor, *args)` as an alias of the tensor; see `ViewStep` for `own_version`."""
        if self.scope.hints:
            args, kwargs = from_torch(args), from_torch(kwargs)
        cuts = self.hides_gradient(tensor) and op is not aten.detach.default
        if cuts:
            tensor = self.view(tensor, aten.detach.default, (), {})
        self._check_cut(tensor)
        node = self.read(tensor)
        spec = cast(TensorSpec, infer(op, (tensor.spec, *args), kwargs))
        wanted = tensor.requires_grad and pristine.is_grad_enabled() and op_info(op).differentiable
        if wanted:
            self._check_grad_outside()
        if spec.requires_grad is not wanted:
            spec = replace(spec, requires_grad=wanted)
        made = self._view(tensor, node, ViewStep(op, args, kwargs, spec, own_version))
        made.is_cut = cuts
        return made

    def _view(self, tensor: TraceTensor, node: fx.Node, step: ViewStep) -> TraceTensor:
        made = self._node(step.op, (node, *step.args), step.kwargs, step.spec)
        note_known(made, op_info(step.op))
        view = make_trace_tensor(step.spec, made, tensor.base, (*tensor.chain, step))
        view.is_piece = tensor.is_piece and not view.is_whole
        return view

    # --- operators ----------------------------------------------------------------------------------------------

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if passes_on(self, func, types):
            return NotImplemented
        handler = self._handlers.get(func) or self._handlers.setdefault(func, self._handler(func))
        kwargs = kwargs or {}
        if self.scope.hints:
            args, kwargs = from_torch(args), from_torch(kwargs)
        return handler(func, args, kwargs)

    def _handler(self, func: Any) -> Callable[..., Any]:
        if (communicating := collectives.handler_of(func)) is not None:
            return partial(communicating, self)
        record = self._plain_handler(func)
        tensors = [
            i for i, a in enumerate(func._schema.arguments) if str(a.type) == "Tensor" and not a.kwarg_only
        ]

        def given(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            # None is a tensor too, for torch's C++: one that is not defined.
            for i in tensors:
                if i < len(args) and args[i] is None and func not in TAKE_UNDEFINED:
                    raise UnsupportedOpError(f"{func} is given None for a tensor")
            return record(func, args, kwargs)

        handler = self._checking_overlap(func, given if tensors else record)
        return handler if func.namespace in _OF_TORCH else partial(_unwatched, handler)

    def _checking_overlap(self, func: Any, record: Callable[..., Any]) -> Callable[..., Any]:
        composed = canonical.handler_of(func) is None and op_info(func).kind == "decompose"
        # What torch composes of others is checked where those write.
        if not func._schema.is_mutable or composed:
            return record
        names = [argument.name for argument in func._schema.arguments]
        targets = [
            argument.alias_info is not None and argument.alias_info.is_write
            for argument in func._schema.arguments
        ]

        def checked(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            given = [*args, *(kwargs.get(name) for name in names[len(args) :])]
            # What cannot be recorded at all says so first.
            result = record(func, args, kwargs)
            pairs = list(zip(given, targets, strict=True))
            check_overlap(
                func, [a for a, written in pairs if written], [a for a, written in pairs if not written]
            )
            return result

        return checked

    def _plain_handler(self, func: Any) -> Callable[..., Any]:
        special = canonical.handler_of(func)
        info = op_info(func)
        if special is not None:

            def handler(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
                return special(self, func, args, kwargs)

        else:
            handler = self._handler_of_kind(info.kind)
        if info.kind == "pure" and may_be_cast_inside(func):
            handler = self._unless_autocast(handler)
        # What has no rule of ours for its shape is run by torch anyway; a view is a matter of sizes and strides.
        seen = special is None and info.kind == "pure" and own_rule(func) is None
        if seen or info.kind not in ("pure", "inplace") or torch.Tag.inplace_view in func.tags:
            return handler

        return probed(handler, self.scope, is_special=special is not None)

    def _handler_of_kind(self, kind: OpKind) -> Callable[..., Any]:
        return {
            "pure": self._record_pure,
            "view": self._record_view,
            "views": self._refuse,
            "inplace": self._record_inplace,
            "out": self._record_out,
            "decompose": self._decompose,
            "data": self._refuse_data,
        }[kind]

    def record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record `func` as it is, as a pure operator."""
        return self._record_pure(func, args, kwargs)

    def _record_pure(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        info = op_info(func)
        node, val, wants_grad = self._compute(func, info, args, kwargs)
        return self._results(node, val, wants_grad)

    def _compute(
        self, func: Any, info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[fx.Node, Any, bool]:
        """Append the node of a functional operator. Returns it, its specs, and whether results require grad."""
        if of_numbers(func, args):
            result = compute(func, args, kwargs)
            func, args = aten.full.default, (list(result.shape), result.item())
            kwargs = {"dtype": result.dtype, "device": result.device}
        if info.name in UNINITIALIZED and pristine.are_deterministic_algorithms_enabled():
            raise UnsupportedOpError(f"{func} may fill its memory in deterministic mode")
        if info.random and any(isinstance(v, torch.Generator) for v in (*args, *kwargs.values())):
            raise UnsupportedOpError(f"{func} draws from a generator of its own")
        if info.random and self.counted:
            func, args, kwargs = canonical_random.counted(self, func, args, kwargs)
            info = op_info(func)
        if info.random and self.draws_on_cards:
            func, args, kwargs = canonical_on_cards.counted(self, func, args, kwargs)
            info = op_info(func)
        if self._grad_outside and not pristine.is_grad_enabled():
            args, kwargs = self._without_gradient(args), self._without_gradient(kwargs)
        nodes, specs, grad = self._encode(args)
        node_kwargs: dict[str, Any] = {}
        if kwargs:
            if kwargs.get("pin_memory"):
                raise UnsupportedOpError(f"{func} asks for pinned memory")
            kwargs = {k: v for k, v in kwargs.items() if v is not None or k in needed_keywords(func)}
            kwargs.pop("pin_memory", None)
            if kwargs.get("device") is not None:
                kwargs["device"] = self.places.of(kwargs["device"])
            names, spec_kwargs, grad_kwargs = self._encode_dict(kwargs)
            node_kwargs = names
            grad = grad or grad_kwargs
        else:
            spec_kwargs = kwargs
        wants_grad = grad and info.differentiable and pristine.is_grad_enabled()
        if wants_grad:
            self._check_grad_outside()
            writes.note_differentiated((*args, *kwargs.values()))
        val = infer(func, specs, spec_kwargs)
        if wants_grad:
            val = with_grad(val, info.detached)
        if isinstance(val, TensorSpec) and val.device.type == "meta":
            raise UnsupportedOpError(f"{func} makes a tensor without data, on the device meta")
        if "device" in node_kwargs and "dtype" not in node_kwargs and isinstance(val, TensorSpec):
            # What a creation gives must not depend on the default dtype at run time.
            node_kwargs["dtype"] = val.dtype
        node = self._node(func, nodes, node_kwargs, val)
        if info.random and canonical.is_random(info.name, func, args, kwargs):
            node.meta["random"] = True
            self.draws += 1
        note_known(node, info)
        return node, val, wants_grad

    def _check_grad_outside(self) -> None:
        """A region that began without gradients runs without autograd to its end."""
        if not self._grad_outside:
            raise UnsupportedOpError("gradients are wanted in a region that began without them")

    def hides_gradient(self, tensor: TraceTensor) -> bool:
        """Whether a no_grad block inside the region hides the tensor from autograd."""
        return self._grad_outside and not pristine.is_grad_enabled() and tensor.requires_grad

    def _check_cut(self, tensor: TraceTensor) -> None:
        """Refuse such a view outside of its block, where eager would begin a gradient of its own at it; and a tensor
        that has a gradient which its memory has not."""
        if tensor.base.strays:
            writes.check_stray(tensor)
        if tensor.is_cut and pristine.is_grad_enabled():
            raise UnsupportedOpError(
                "a view that a no_grad block took of what requires grad is used outside of it"
            )

    def _without_gradient(self, value: Any) -> Any:
        """Arguments as a no_grad block sees them: the graph, run under autograd, must not differentiate here.

        before: mul(x, 2)  in no_grad    after: mul(detach(x), 2)
        """
        if isinstance(value, TraceTensor):
            if self.hides_gradient(value):
                return self.view(value, aten.detach.default, (), {})
            return value
        if isinstance(value, (tuple, list)):
            items = [self._without_gradient(item) for item in cast("list[Any]", value)]
            return tuple(items) if isinstance(value, tuple) else items
        if isinstance(value, dict):
            return {k: self._without_gradient(v) for k, v in cast("dict[str, Any]", value).items()}
        return value

    def _results(self, node: fx.Node, val: Any, wants_grad: bool) -> Any:
        if isinstance(val, TensorSpec):
            return self.result(val, node)
        results: list[TraceTensor | None] = []
        for i, spec in enumerate(val):
            if spec is None:
                results.append(None)
                continue
            item = add_call(self.graph, getitem, (node, i), {}, f"{node.name}_{i}", place_of(node))
            item.meta["val"] = spec
            results.append(self.result(spec, item))
        returns = node.target._schema.returns  # pyright: ignore
        return results if str(returns[0].type) == "List[Tensor]" and len(returns) == 1 else tuple(results)

    def _record_view(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensor = args[0]
        if not isinstance(tensor, TraceTensor):
            tensor = self.lift(tensor)
        return self.view(tensor, func, args[1:], kwargs)

    def _record_inplace(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        info = op_info(func)
        if info.functional is None:
            return self._record_by_twin(func, args, kwargs)
        target = args[0]
        if torch.Tag.inplace_view in func.tags:
            return self._reshape_in_place(func, info.functional, args, kwargs)
        if info.written != (0,) or not isinstance(target, torch.Tensor):
            raise UnsupportedOpError(f"{func} writes to several tensors")
        tensor = target if isinstance(target, TraceTensor) else self.lift(target)
        if info.random:
            check_drawn(func, tensor.spec)
        node, val, wants_grad = self._compute(info.functional, info, (tensor, *args[1:]), kwargs)
        self.assign(tensor, node, val, wants_grad)
        return target if target is tensor else tensor

    def _record_by_twin(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An operator that writes to arguments of any number and place."""
        if op_info(func).random:
            # A functional twin of torch may lay its results out, and draw for them, in another order.
            for value in args:
                if isinstance(value, TraceTensor):
                    check_drawn(func, value.spec)
        twin = functional_twin(func)
        if twin is None:
            raise UnsupportedOpError(f"{func} changes a tensor in a way that has no functional form")
        given = [canonical.argument(func, args, kwargs, a.name) for a in func._schema.arguments]
        tensors = {i: t if isinstance(t := given[i], TraceTensor) else self.lift(t) for i in twin.written}
        if len({id(tensor.base) for tensor in tensors.values()}) < len(tensors):
            raise UnsupportedOpError(f"{func} writes to tensors that share memory")
        if pristine.is_grad_enabled() and any(isinstance(v, torch.Tensor) and v.requires_grad for v in given):
            raise UnsupportedOpError(f"{func} writes to a tensor under autograd")
        made = self._record_pure(twin.op, tuple(given), {})
        results = list(made) if isinstance(made, (tuple, list)) else [made]
        values = results[len(results) - len(tensors) :]
        for tensor, value in zip(tensors.values(), values, strict=True):
            self.assign(tensor, self.read(value), value.spec)
        fresh = iter(results)
        answers = tuple(next(fresh) if place is None else tensors[place] for place in twin.returned)
        return answers if len(answers) > 1 else answers[0] if answers else None

    def _reshape_in_place(
        self, func: Any, functional: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """unsqueeze_, t_, ...: the tensor object itself becomes the view."""
        tensor = args[0]
        if (
            not isinstance(tensor, TraceTensor)
            or op_info(functional).kind != "view"
            or tensor.base.source != "fresh"
        ):
            raise UnsupportedOpError(f"{func} changes the shape of a tensor from outside")
        if self.hides_gradient(tensor):
            raise UnsupportedOpError(f"{func} changes the shape of a tensor behind the back of its gradient")
        made = self._record_view(functional, args, kwargs)
        self.become(tensor, made)
        tensor.base.versions += 1
        writes.note_version(tensor)
        return tensor

    def become(self, tensor: TraceTensor, view: TraceTensor) -> None:
        """Make the tensor object the view that was taken of it."""
        chain = (*view.chain[:-1], replace(view.chain[-1], in_place=tensor.is_whole))
        replace_view(tensor, view.node, view.stamp, view.spec, chain)

    def assign(self, tensor: TraceTensor, node: fx.Node, val: TensorSpec, wants_grad: bool = False) -> None:
        """Write a computed value to a tensor as in-place operators do: cast to its dtype; shapes must agree."""
        if tensor.requires_grad and pristine.is_grad_enabled() and tensor.is_leaf:
            raise UnsupportedOpError("a leaf that requires grad is written in place")
        if val.device != tensor.spec.device:
            raise UnsupportedOpError(
                f"an in-place result on {val.device} for a tensor on {tensor.spec.device}"
            )
        if val.shape != tensor.spec.shape:
            raise UnsupportedOpError(f"an in-place result of shape {list(val.shape)} for {tensor.spec}")
        if val.dtype is not tensor.spec.dtype:
            if not pristine.can_cast(val.dtype, tensor.spec.dtype) and val.dtype is not torch.bool:
                raise UnsupportedOpError(f"an in-place result of {val.dtype} for {tensor.spec}")
            node = self.emit(aten._to_copy.default, (node,), {"dtype": tensor.spec.dtype})
        noticed = shares_version(tensor)
        if not noticed and self._grad_outside:
            writes.check_unnoticed(tensor)
        before = tensor.base.node
        self.write(tensor, node, wants_grad)
        if noticed:
            tensor.base.versions += 1
            # The content is this memory's alone, at this version, from `node` on. By name, as metadata is copied.
            tensor.base.node.meta["overwrites"] = (before.name, node.name)
        else:
            tensor.base.unnoticed = True

    def _record_out(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        info = op_info(func)
        rest = {k: v for k, v in kwargs.items() if k not in info.written_names}
        outs = [kwargs[name] for name in info.written_names]
        tensors = [t if isinstance(t, TraceTensor) else self.lift(t) for t in outs]
        check_apart(func, tensors, (*args, *rest.values()))
        node, val, wants_grad = self._compute(info.functional, info, args, rest)
        if wants_grad:
            raise UnsupportedOpError(f"{func} is given an out= under autograd")
        vals = (val,) if isinstance(val, TensorSpec) else tuple(val)
        if any(spec.shape != t.spec.shape for spec, t in zip(vals, tensors, strict=True)):
            raise UnsupportedOpError(f"{func} would resize its out= argument")
        check_taken(func, call_specs(args), call_specs(kwargs))
        values = [node] if isinstance(val, TensorSpec) else [r.node for r in self._results(node, val, False)]
        for tensor, value, spec in zip(tensors, values, vals, strict=True):
            self.assign(tensor, value, spec)
        return outs[0] if len(outs) == 1 else tuple(outs)

    def _unless_autocast(self, record: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if self.autocast.casts_inside(func):
                raise UnsupportedOpError(f"{func} under autocast, which casts within it")
            return record(func, args, kwargs)

        return recorded

    def _decompose(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # torch's C++ composition; `func.decompose` prefers decompositions in Python, which eager does not use.
        if self.scope.hints:
            args, kwargs = to_torch(args), to_torch(kwargs)
        try:
            with self.autocast.inside(func), self.again():
                return func._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)  # pyright: ignore
        except RuntimeError as error:
            # It may be that the composition reads memory, or takes sizes as numbers only.
            if eager_takes(func, call_specs(from_torch(args)), call_specs(from_torch(kwargs))):
                reason = str(error).partition("\n")[0]
                raise UnsupportedOpError(
                    f"{func} is composed of more than can be recorded: {reason}"
                ) from error
            raise

    def again(self) -> Any:
        """The mode itself, for operators called while one is being recorded."""
        return Again(self)

    def _refuse(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        raise UnsupportedOpError(f"{func} gives views that cannot be recorded")

    def _refuse_data(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensor = args[0] if args else None
        if func in _SCALARS and isinstance(tensor, TraceTensor):
            known = known_value(self.read(tensor))
            if known is not None:
                return ask(known, "item")
        raise DataDependentError(
            f"{func} needs the data of a tensor, which exists only at run time",
            fix="keep the value a tensor, or move this line out of the compiled function",
        )

    # --- arguments ----------------------------------------------------------------------------------------------

    def _encode(self, values: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...], bool]:
        """Arguments as nodes, as specs, and whether one of them requires grad."""
        nodes: list[Any] = []
        specs: list[Any] = []
        grad = False
        for value in values:
            kind = type(value)
            if kind is TraceTensor:
                self._check_cut(value)
                nodes.append(value.node if value.stamp == value.base.stamp else self.read(value))
                specs.append(value.spec)
                grad = grad or value.spec.requires_grad or (value.base.requires_grad and value.requires_grad)
            elif kind is list or kind is tuple:
                inner_nodes, inner_specs, inner_grad = self._encode(value)
                nodes.append(list(inner_nodes) if kind is list else inner_nodes)
                specs.append(list(inner_specs) if kind is list else inner_specs)
                grad = grad or inner_grad
            elif isinstance(value, torch.Tensor):
                lifted = self.lift(value)
                nodes.append(lifted.node)
                specs.append(lifted.spec)
                grad = grad or lifted.spec.requires_grad
            else:
                nodes.append(value)
                specs.append(value)
        return tuple(nodes), tuple(specs), grad

    def _encode_dict(self, values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], bool]:
        nodes, specs, grad = self._encode(tuple(values.values()))
        return dict(zip(values, nodes, strict=True)), dict(zip(values, specs, strict=True)), grad

    # --- the end ------------------------------------------------------------------------------------------------

    def finish(self, outputs: Sequence[TraceTensor]) -> Recorded:
        """The graph, returning the present contents of `outputs`. Outputs that share memory stay aliases.

        Raises:
            InvalidGraphError: an output belongs to another recorder.
        """
        values: list[fx.Node] = []
        for base in self.started:
            if base.pending:
                collectives.wait(self, base)
        for tensor in outputs:
            if tensor.base.node.graph is not self.graph:
                raise InvalidGraphError("an output is no tensor of this recording")
            values.append(self._output(tensor))
        placeholders = [*self.inputs, *self.bound]
        mutations: list[tuple[int, int]] = []
        versions: list[int] = []
        for i, placeholder in enumerate(placeholders):
            base = placeholder.base
            if base.source == "input" and base.node is not base.origin:
                mutations.append((i, len(values)))
                values.append(base.node)
                versions.append(base.versions)
        self.graph.output(tuple(values))
        note_layouts(self.graph)
        if self.scope.equal:
            canonical_sizes(self.graph, self.scope)
        if self.scope.hints:
            confine_to_int64(self.graph, self.scope)
        if logs.enabled("graph"):
            logs.emit("graph", format_graph(self.graph))
        return Recorded(
            self.graph,
            tuple(range(len(outputs))),
            tuple(mutations),
            tuple(self.inputs),
            tuple(self.bound),
            tuple(versions),
            tuple(
                number
                for number, tensor in enumerate(outputs)
                if tensor.is_whole and values[number].op != "placeholder"
            ),
            tuple(number for number, tensor in enumerate(outputs) if tensor.is_piece),
            fresh_versions(outputs),
        )

    def _output(self, tensor: TraceTensor) -> fx.Node:
        base = tensor.base
        if base.source == "input" and base.origin is not None:
            # What is written to the input shows through the alias, so the alias is one of the input itself.
            return self.read(tensor) if base.node is base.origin else self.seen(base.origin, tensor.chain)
        if base.source == "constant" and base.node is base.origin:
            base.node = self.emit(aten.clone.default, (base.node,))
            base.stamp = next(self._stamps)
        node = self.read(tensor)
        if tensor.chain and base.written and not is_chain(node, tensor.chain, base.node):
            # A written view may keep the written value as its node; the result must be a view of the memory again.
            node = self.seen(base.node, tensor.chain)
        return node
