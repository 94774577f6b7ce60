"""The compiler in one evening: from bytecode to machine code in one file, for a handful of operators.

    python docs/from_scratch.py

Read it from top to bottom. Each section does for a few cases what one room of `src/lampwork` does for all of them; it
names the room and says what is left out here. The last section compiles a small network, prints every stage, and
compares answers and times with eager PyTorch.
"""

from __future__ import annotations

import ctypes
import dis
import inspect
import math
import operator
import time
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import llvmlite.binding as llvm
import torch
import torch.nn.functional as F
from llvmlite import ir
from torch import Tensor, nn

# --- 1. The graph -----------------------------------------------------------------------------------------------------
# What a function does to tensors: a list of operations, each on the results of earlier ones. A node knows the shape of
# its result, because the operation was tried on tensors of the device "meta", which have shapes but no data.
#
# The room: graph/. There the operations are ATen's, views and writes are made explicit, and sizes may stay open.


@dataclass(eq=False)
class Node:
    """One operation. `target`: the function of PyTorch, or None for an input, whose one argument is its source."""

    target: Any
    args: tuple[Any, ...]
    meta: Tensor
    name: str

    def __repr__(self) -> str:
        return self.name

    def __str__(self) -> str:
        args = ", ".join(map(repr, self.args))
        return f"{self.name}: {list(self.meta.shape)} = {getattr(self.target, '__name__', 'input')}({args})"


def same(left: Any, right: Any) -> bool:
    return left is right or (type(left) is type(right) is not Node and left == right)


@dataclass
class Graph:
    nodes: list[Node] = field(default_factory=list)
    output: Node | None = None

    def call(self, target: Any, *args: Any) -> Node:
        """A node for `target(*args)`: a new one, or the one that computes the same already."""
        for node in self.nodes:
            if node.target is target and len(node.args) == len(args) and all(map(same, node.args, args)):
                return node
        return self._add(target, args, target(*[arg.meta if isinstance(arg, Node) else arg for arg in args]))

    def input(self, source: str, tensor: Tensor) -> Node:
        return self._add(None, (source,), torch.empty_like(tensor, device="meta"))

    def _add(self, target: Any, args: tuple[Any, ...], meta: Tensor) -> Node:
        self.nodes.append(Node(target, args, meta, f"v{len(self.nodes)}"))
        return self.nodes[-1]

    def live(self) -> list[Node]:
        """The nodes that the output needs, in order."""
        needed = {self.output}
        for node in reversed(self.nodes):
            needed.update(arg for arg in node.args if node in needed and isinstance(arg, Node))
        return [node for node in self.nodes if node in needed]


# --- 2. Capture: from bytecode to a graph and its guards --------------------------------------------------------------
# The function is not called. Its bytecode is interpreted here, with the caller's own objects but with nodes in place of
# tensors: numbers are computed, branches on them are taken, callees are entered, and an operation on a node is added
# to the graph. The graph holds for this call; the guards say for which others. Whatever comes from outside (arguments,
# globals, attributes) passes through `read`, which adds a test of it, so that no test can be forgotten.
#
# The room: capture/. It knows every opcode of three Pythons, side effects, generators and exceptions. Where it cannot
# go on, it runs one operation in eager and resumes behind it, a graph break. Here a break gives up the whole call.


class Break(Exception):
    """Something that is not captured. The call runs in eager."""


@dataclass(frozen=True)
class Method:
    function: Any
    owner: Any


NULL = object()  # what bytecode pushes beside a callable, in the place of a method's object
PURE: set[Any] = {len, min, max, abs, int, float, math.sqrt}  # called while capturing
METHODS = {
    name: getattr(torch, name)
    for name in ("exp", "sigmoid", "relu", "sqrt", "rsqrt", "sum", "mean", "amax", "softmax")
}
OPERATORS: dict[str, Any] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "@": operator.matmul,
    "//": operator.floordiv, "%": operator.mod, "<": operator.lt, ">": operator.gt, "==": operator.eq,
}  # fmt: skip
CAPTURED: set[Any] = {*METHODS.values(), *list(OPERATORS.values())[:5], F.silu, F.relu, F.softmax, F.linear}


class Capture:
    """The graph of one call of `root`, and its guards: Python expressions over `args` and the names in `objects`."""

    def __init__(self, root: Any) -> None:
        self.graph = Graph()
        self.guards: dict[str, None] = {}  # an ordered set
        self.objects: dict[str, Any] = {
            "root": root,
            "torch": torch,
            "Tensor": Tensor,
            "Parameter": nn.Parameter,
        }
        self.sources: dict[int, str] = {id(root): "root"}  # where guards find an object, by its id
        self.inputs: dict[int, Node] = {}

    def read(self, source: str, value: Any) -> Any:
        """`value`, found at `source`, with the guard that pins it. A tensor becomes an input of the graph."""
        if isinstance(value, Tensor):
            self._guard_tensor(source, value)
            return self.inputs.setdefault(
                id(value), self.inputs.get(id(value)) or self.graph.input(source, value)
            )
        if isinstance(value, types.MethodType):
            return Method(
                self.read(f"{source}.__func__", value.__func__),
                self.read(f"{source}.__self__", value.__self__),
            )
        if type(value) in (
            int,
            float,
            bool,
            str,
            type(None),
        ):  # repr tells 0.0 from -0.0, and nan equals itself
            self.guard(f"type({source}) is {self.name(type(value))} and repr({source}) == {repr(value)!r}")
            return value
        self.guard(f"{source} is {self.name(value)}")
        self.sources.setdefault(id(value), source)
        return value

    def guard(self, test: str) -> None:
        self.guards[test] = None

    def name(self, value: Any) -> str:
        known = (name for name, other in self.objects.items() if other is value)
        return next(known, None) or self._named(value)

    def _named(self, value: Any) -> str:
        self.objects[f"object{len(self.objects)}"] = value
        return f"object{len(self.objects) - 1}"

    def _guard_tensor(self, source: str, tensor: Tensor) -> None:
        tests = [
            f"type({source}) in (Tensor, Parameter)",
            f"{source}.shape == {tuple(tensor.shape)} and {source}.is_contiguous()",
            f"{source}.dtype is torch.float32 and {source}.is_cpu",
            f"not ({source}.requires_grad and torch.is_grad_enabled())",
        ]
        for test in tests:
            if not eval(test.replace(source, "value"), self.objects | {"value": tensor}):
                raise Break(f"a tensor for which this does not hold: {test}")
            self.guard(test)

    def attribute(self, owner: Any, name: str) -> Any:
        if isinstance(owner, Node):
            if name not in METHODS and name != "shape":
                raise Break(f"the attribute {name} of a tensor")
            return Method(METHODS[name], owner) if name in METHODS else owner.meta.shape
        if id(owner) not in self.sources:
            raise Break(f"the attribute {name} of an object that no guard covers")
        return self.read(f"{self.sources[id(owner)]}.{name}", getattr(owner, name))

    def call(self, fn: Any, args: list[Any]) -> Any:
        """What `fn(*args)` returns, with nodes for tensors."""
        if isinstance(fn, Method):
            fn, args = fn.function, [fn.owner, *args]
        if any(isinstance(arg, Node) for arg in args) and fn in CAPTURED:
            return self.graph.call(fn, *args)
        if fn in PURE and not any(isinstance(arg, Node) for arg in args):
            return fn(*args)
        if isinstance(fn, nn.Module) and not (fn._forward_hooks or fn._forward_pre_hooks):
            source = self.sources[id(fn)]
            self.guard(f"not ({source}._forward_hooks or {source}._forward_pre_hooks)")
            return self.call(self.attribute(fn, "forward"), args)
        if isinstance(fn, types.FunctionType):
            code = fn.__code__
            others = code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS | inspect.CO_GENERATOR)
            if code.co_argcount == len(args) and not code.co_kwonlyargcount and not others:
                self.guard(f"{self.sources[id(fn)]}.__code__ is {self.name(code)}")
                return Frame(self, fn, args).run()
        raise Break(f"a call of {fn}")


class Frame:
    """One function being interpreted. A method per opcode, named after it; it returns where to jump to, if anywhere."""

    def __init__(self, capture: Capture, fn: types.FunctionType, args: list[Any]) -> None:
        self.capture, self.fn, self.source = capture, fn, capture.sources[id(fn)]
        self.names = dict(zip(fn.__code__.co_varnames, args, strict=False))
        self.stack: list[Any] = []

    def run(self) -> Any:
        code = list(dis.get_instructions(self.fn))
        position = {instruction.offset: number for number, instruction in enumerate(code)}
        number = 0
        while code[number].opname not in ("RETURN_VALUE", "RETURN_CONST"):
            opcode = getattr(self, code[number].opname, None)
            if opcode is None:
                raise Break(f"the opcode {code[number].opname}")
            target = opcode(code[number])
            number = number + 1 if target is None else position[target]
        return self.stack.pop() if code[number].opname == "RETURN_VALUE" else code[number].argval

    def RESUME(self, op: dis.Instruction) -> None:
        pass

    NOP = PRECALL = RESUME

    def LOAD_FAST(self, op: dis.Instruction) -> None:
        for name in op.argval if isinstance(op.argval, tuple) else [op.argval]:
            self.stack.append(self.names[name])

    LOAD_FAST_LOAD_FAST = LOAD_FAST  # 3.13

    def STORE_FAST(self, op: dis.Instruction) -> None:
        for name in op.argval if isinstance(op.argval, tuple) else [op.argval]:
            self.names[name] = self.stack.pop()

    STORE_FAST_STORE_FAST = STORE_FAST  # 3.13

    def STORE_FAST_LOAD_FAST(self, op: dis.Instruction) -> None:  # 3.13
        self.names[op.argval[0]] = self.stack.pop()
        self.stack.append(self.names[op.argval[1]])

    def LOAD_CONST(self, op: dis.Instruction) -> None:
        self.stack.append(op.argval)

    def LOAD_GLOBAL(self, op: dis.Instruction) -> None:
        scope = "__globals__"
        if op.argval not in self.fn.__globals__:
            self.capture.guard(f"{op.argval!r} not in {self.source}.__globals__")
            scope = "__builtins__"
        value = getattr(self.fn, scope)[op.argval]
        self._push(op, self.capture.read(f"{self.source}.{scope}[{op.argval!r}]", value))

    def LOAD_ATTR(self, op: dis.Instruction) -> None:
        self._push(op, self.capture.attribute(self.stack.pop(), op.argval))

    def LOAD_METHOD(self, op: dis.Instruction) -> None:  # 3.11
        self.LOAD_ATTR(op)
        self.stack.append(NULL)

    def _push(self, op: dis.Instruction, value: Any) -> None:
        """Pushes `value`, and where a call follows NULL: below it up to Python 3.12, above it from 3.13 on."""
        parts = op.argrepr.split(" + ")
        self.stack += [value] if len(parts) == 1 else [NULL if "NULL" in part else value for part in parts]

    def PUSH_NULL(self, op: dis.Instruction) -> None:
        self.stack.append(NULL)

    def CALL(self, op: dis.Instruction) -> None:
        start = len(self.stack) - op.argval
        (fn,) = [value for value in self.stack[start - 2 : start] if value is not NULL]
        self.stack[start - 2 :] = [self.capture.call(fn, self.stack[start:])]

    def BINARY_OP(self, op: dis.Instruction) -> None:
        right, left = self.stack.pop(), self.stack.pop()
        fn = OPERATORS.get(op.argrepr.removeprefix("bool(").removesuffix(")"))
        has_node = isinstance(left, Node) or isinstance(right, Node)
        if fn is None or (has_node and fn not in CAPTURED):  # += writes to a tensor, > would need its data
            raise Break(f"the operator {op.argrepr}")
        self.stack.append(self.capture.graph.call(fn, left, right) if has_node else fn(left, right))

    COMPARE_OP = BINARY_OP

    def BINARY_SUBSCR(self, op: dis.Instruction) -> None:
        key, shape = self.stack.pop(), self.stack.pop()
        if not isinstance(shape, torch.Size):
            raise Break("an index into something that no guard covers")
        self.stack.append(shape[key])

    def POP_JUMP_IF_FALSE(self, op: dis.Instruction) -> int | None:
        condition = self.stack.pop()
        if type(condition) not in (bool, int, float):
            raise Break("a branch on something else than a number")
        return None if condition else op.argval

    POP_JUMP_FORWARD_IF_FALSE = POP_JUMP_IF_FALSE  # 3.11


# --- 3. Rewrites ------------------------------------------------------------------------------------------------------
# A rewrite is two functions of PyTorch: where the graph has the first, it gets the second. Both are captured like any
# other function.
#
# The rooms: rewriting/ and transforms/. There patterns match whatever the spelling, have choices and conditions, are
# found by the thousand at once by an automaton, and are checked against float64.

RULES: list[tuple[Graph, Graph]] = []


def rewrite(*sides: Callable[..., Tensor]) -> None:
    """Registers a rewrite from the first function to the second. Both take the same tensors."""
    graphs: list[Graph] = []
    for fn in sides:
        capture = Capture(fn)
        inputs = [capture.graph.input(name, torch.empty(2, 2)) for name in inspect.signature(fn).parameters]
        capture.graph.output = capture.call(fn, list(inputs))
        graphs.append(capture.graph)
    RULES.append((graphs[0], graphs[1]))


def match(pattern: Any, value: Any, found: dict[str, Node]) -> bool:
    """Whether `value` is what `pattern` describes. `found` gets the nodes that stand for the pattern's inputs."""
    if not isinstance(pattern, Node) or not isinstance(value, Node):
        return same(pattern, value)
    if pattern.target is None:
        return found.setdefault(pattern.args[0], value) is value
    alike = pattern.target is value.target and len(pattern.args) == len(value.args)
    return alike and all(match(p, v, found) for p, v in zip(pattern.args, value.args, strict=True))


def copy(source: Graph, into: Graph, known: dict[Node, Node], rules: list[tuple[Graph, Graph]]) -> Node:
    """Adds what `source` computes to the graph `into`, each node rewritten. `known`: what stands for its inputs."""
    for node in source.live():
        if node.target is not None:
            known[node] = into.call(
                node.target, *[known[arg] if isinstance(arg, Node) else arg for arg in node.args]
            )
        for before, after in rules:
            found: dict[str, Node] = {}
            if match(before.output, known[node], found):
                inputs = {inner: found[inner.args[0]] for inner in after.nodes if inner.target is None}
                known[node] = copy(after, into, inputs, [])
    return known[source.output]  # type: ignore[index]


def rewritten(graph: Graph) -> Graph:
    """before: `mul(x, sigmoid(x))`; after: `silu(x)`."""
    result = Graph()
    inputs = {node: result.input(node.args[0], node.meta) for node in graph.live() if node.target is None}
    result.output = copy(graph, result, inputs, RULES)
    return result


rewrite(lambda x: x * torch.sigmoid(x), lambda x: F.silu(x))
rewrite(lambda x: F.softmax(x, -1), lambda x: torch.softmax(x, -1))
rewrite(
    lambda x: torch.softmax(x, -1),
    lambda x: (
        torch.exp(x - torch.amax(x, -1, True)) / torch.sum(torch.exp(x - torch.amax(x, -1, True)), -1, True)
    ),
)


# --- 4. Loops ---------------------------------------------------------------------------------------------------------
# What one element of a node is, as an expression of its index. The rule of an operator asks for elements of its
# arguments, and so on upwards: that is fusion, for nothing in between is stored. Stored are the output, the results of
# reductions, which are read once per element of a row, and what PyTorch's own kernels (matrix products) read and write.
#
# The rooms: lower/ and loops/. There every operator has a rule, a row is reduced and used in one nest, a schedule tiles
# loops and splits them among threads and vector lanes, and every access is proven to stay in bounds.

Place = str | int  # a loop's variable, or 0 along an axis of size one


@dataclass(frozen=True)
class Load:
    node: Node
    index: tuple[Place, ...]

    def __repr__(self) -> str:
        return f"{self.node.name}[{', '.join(map(str, self.index))}]"


@dataclass(frozen=True)
class Apply:
    op: str
    args: tuple[Expr, ...]

    def __repr__(self) -> str:
        return f"{self.op}({', '.join(map(repr, self.args))})"


@dataclass(frozen=True)
class Reduce:
    op: str
    size: int
    body: Expr

    def __repr__(self) -> str:
        return f"{self.op}[r < {self.size}]({self.body})"


Expr = Load | Apply | Reduce | float


def sigmoid(a: Expr, times: Expr = 1.0) -> Expr:
    return Apply("div", (times, Apply("add", (1.0, Apply("exp", (Apply("neg", (a,)),))))))


POINTWISE: dict[Any, Callable[..., Expr]] = {
    operator.add: lambda a, b: Apply("add", (a, b)),
    operator.sub: lambda a, b: Apply("sub", (a, b)),
    operator.mul: lambda a, b: Apply("mul", (a, b)),
    operator.truediv: lambda a, b: Apply("div", (a, b)),
    torch.exp: lambda a: Apply("exp", (a,)),
    torch.sqrt: lambda a: Apply("sqrt", (a,)),
    torch.rsqrt: lambda a: Apply("div", (1.0, Apply("sqrt", (a,)))),
    torch.relu: lambda a: Apply("max", (a, 0.0)),
    F.relu: lambda a: Apply("max", (a, 0.0)),
    torch.sigmoid: sigmoid,
    F.silu: lambda a: sigmoid(a, times=a),
}
REDUCTIONS: dict[Any, str] = {torch.sum: "add", torch.mean: "add", torch.amax: "max"}


@dataclass
class Loops:
    """A nest of loops: `for index in shape: node[index] = value`."""

    node: Node
    index: tuple[str, ...]
    value: Expr

    def __str__(self) -> str:
        loops = [
            f"for {name} < {size}: " for name, size in zip(self.index, self.node.meta.shape, strict=True)
        ]
        return f"{''.join(loops)}{Load(self.node, self.index)} = {self.value}"


def reduces_rows(node: Node) -> bool:
    return node.target in REDUCTIONS and node.args[1:] in ((-1,), (-1, True))


class Lowering:
    """The steps of a program, in `steps`: nests of loops, and nodes that PyTorch runs."""

    def __init__(self, graph: Graph) -> None:
        live = graph.live()
        self.inputs = [node for node in live if node.target is None]
        foreign = [node for node in live if node.target not in (None, *POINTWISE) and not reduces_rows(node)]
        self.stored = {graph.output, *self.inputs, *foreign, *filter(reduces_rows, live)}
        self.stored.update(arg for node in foreign for arg in node.args if isinstance(arg, Node))
        made = [node for node in live if node in self.stored and node.target is not None]
        self.steps = [node if node in foreign else self._loops(node) for node in made]

    def _loops(self, node: Node) -> Loops:
        index = tuple(f"i{axis}" for axis in range(node.meta.ndim))
        return Loops(node, index, self._computed(node, index))

    def _computed(self, node: Node, index: tuple[Place, ...]) -> Expr:
        if not reduces_rows(node):
            return POINTWISE[node.target](*[self._element(arg, index) for arg in node.args])
        operand, _, *keepdim = node.args
        row = index[:-1] if keepdim else index
        size = operand.meta.shape[-1]
        total = Reduce(REDUCTIONS[node.target], size, self._element(operand, (*row, "r")))
        return Apply("div", (total, float(size))) if node.target is torch.mean else total

    def _element(self, value: Any, index: tuple[Place, ...]) -> Expr:
        """The element of `value` for element `index` of a result: an axis of size one is repeated."""
        if not isinstance(value, Node):
            return float(value)
        own = index[len(index) - value.meta.ndim :]
        own = tuple(0 if size == 1 else place for size, place in zip(value.meta.shape, own, strict=True))
        return Load(value, own) if value in self.stored else self._computed(value, own)


def loads(value: Expr) -> list[Load]:
    if isinstance(value, Load):
        return [value]
    parts = value.args if isinstance(value, Apply) else (value.body,) if isinstance(value, Reduce) else ()
    return [load for part in parts for load in loads(part)]


# --- 5. Machine code --------------------------------------------------------------------------------------------------
# LLVM is a library in this process. A nest of loops becomes one function in LLVM's language, plain and scalar, which
# LLVM's own passes then vectorize where they can.
#
# The room: codegen/. There the schedule says what is a vector, `exp` and its kin are vector code of our own, and matrix
# products come from templates with tiles in registers.

llvm.initialize_native_target()
llvm.initialize_native_asmprinter()
FLOAT, INT, POINTER = ir.FloatType(), ir.IntType(64), ir.PointerType()


class Emitter:
    """Writes the function `name(result, operand, ...)` of a nest. `nodes`: whose memory its arguments are."""

    def __init__(self, module: ir.Module, name: str, nest: Loops) -> None:
        self.module, self.nest = module, nest
        self.nodes = list(dict.fromkeys([nest.node, *(load.node for load in loads(nest.value))]))
        function = ir.Function(module, ir.FunctionType(ir.VoidType(), [POINTER] * len(self.nodes)), name)
        self.pointers = dict(zip(self.nodes, function.args, strict=True))
        self.builder = ir.IRBuilder(function.append_basic_block())
        self.indices: dict[Place, Any] = {0: INT(0)}
        self._axes(0)
        self.builder.ret_void()

    def _axes(self, axis: int) -> None:
        if axis == len(self.nest.index):
            self.builder.store(
                self._emit(self.nest.value), self._address(Load(self.nest.node, self.nest.index))
            )
        else:
            self._loop(
                self.nest.index[axis], self.nest.node.meta.shape[axis], 0.0, lambda _: self._axes(axis + 1)
            )

    def _loop(self, variable: str, size: int, start: float, body: Callable[[Any], Any]) -> Any:
        """A loop that carries a number: `body` is given it and returns the next. Returns the last one."""
        before, head = self.builder.block, self.builder.append_basic_block()
        self.builder.branch(head)
        self.builder.position_at_end(head)
        index, carried = self.builder.phi(INT), self.builder.phi(FLOAT)
        self.indices[variable] = index
        result = body(carried) or carried
        following = self.builder.add(index, INT(1))
        for phi, first, then in ((index, INT(0), following), (carried, FLOAT(start), result)):
            phi.add_incoming(first, before)
            phi.add_incoming(then, self.builder.block)
        after = self.builder.append_basic_block()
        self.builder.cbranch(self.builder.icmp_signed("<", following, INT(size)), head, after)
        self.builder.position_at_end(after)
        return result

    def _emit(self, value: Expr) -> Any:
        if isinstance(value, Load):
            return self.builder.load(self._address(value), typ=FLOAT)
        if isinstance(value, Apply):
            return self._apply(value.op, [self._emit(arg) for arg in value.args])
        if isinstance(value, Reduce):
            if value.op == "add":  # in any order, so that it can be done in vectors
                add = self.builder.fadd
                return self._loop(
                    "r", value.size, 0.0, lambda now: add(now, self._emit(value.body), flags=["reassoc"])
                )
            return self._loop(
                "r", value.size, -math.inf, lambda now: self._apply("max", [now, self._emit(value.body)])
            )
        return FLOAT(value)

    def _apply(self, op: str, args: list[Any]) -> Any:
        if op == "exp":
            return self._exp(args[0])
        if op in ("add", "sub", "mul", "div", "neg"):
            return getattr(self.builder, f"f{op}")(*args)
        name = "maximum" if op == "max" else op  # `maximum` hands nan on, as PyTorch does
        return self._intrinsic(f"llvm.{name}", FLOAT, *args)

    def _exp(self, x: Any) -> Any:
        """e^x = 2^n * e^r, where n is the integer nearest to x / ln 2, and |r| <= ln 2 / 2. LLVM has no vectors of it.

        The sum for e^r ends where its terms fall below the precision of float32; 2^n is written into the exponent.
        Results below 1e-38 are 0.
        """
        x = self._intrinsic(
            "llvm.minimum", FLOAT, self._intrinsic("llvm.maximum", FLOAT, x, FLOAT(-87.0)), FLOAT(89.0)
        )
        n = self._intrinsic("llvm.roundeven", FLOAT, self.builder.fmul(x, FLOAT(1 / math.log(2))))
        high, low = FLOAT(-0.693359375), FLOAT(2.12194440e-4)  # -ln 2 in two parts: n * high is exact
        r = self._intrinsic("llvm.fma", FLOAT, n, low, self._intrinsic("llvm.fma", FLOAT, n, high, x))
        power = FLOAT(1 / math.factorial(7))
        for k in reversed(range(7)):
            power = self._intrinsic("llvm.fma", FLOAT, power, r, FLOAT(1 / math.factorial(k)))
        exponent = self.builder.add(
            self._intrinsic("llvm.fptosi.sat", ir.IntType(32), n), ir.IntType(32)(126)
        )
        half = self.builder.bitcast(
            self.builder.shl(exponent, ir.IntType(32)(23)), FLOAT
        )  # 2^128 would overflow
        return self.builder.fmul(self.builder.fmul(power, half), FLOAT(2.0))

    def _intrinsic(self, name: str, result: ir.Type, *args: Any) -> Any:
        types = [FLOAT] if result == FLOAT else [result, FLOAT]
        function = self.module.declare_intrinsic(name, types, ir.FunctionType(result, [FLOAT] * len(args)))
        return self.builder.call(function, args)

    def _address(self, load: Load) -> Any:
        flat = INT(0)
        for place, size in zip(load.index, load.node.meta.shape, strict=True):
            flat = self.builder.add(self.builder.mul(flat, INT(size)), self.indices[place])
        return self.builder.gep(self.pointers[load.node], [flat], source_etype=FLOAT)


class Kernels:
    """Machine code for nests of loops: `run[k](addresses)`, given the memory of `nodes[k]`."""

    def __init__(self, nests: list[Loops]) -> None:
        module = ir.Module()
        self.nodes = [Emitter(module, f"kernel{number}", nest).nodes for number, nest in enumerate(nests)]
        machine = llvm.Target.from_default_triple().create_target_machine(
            cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3
        )
        parsed = llvm.parse_assembly(str(module))
        parsed.verify()
        options = llvm.create_pipeline_tuning_options(speed_level=3)
        passes = llvm.create_pass_builder(machine, options)
        passes.getModulePassManager().run(parsed, passes)
        self.assembly = machine.emit_assembly(parsed)
        self.engine = llvm.create_mcjit_compiler(parsed, machine)  # owns the code
        addresses = [self.engine.get_function_address(f"kernel{number}") for number in range(len(nests))]
        types = [ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * len(nodes)) for nodes in self.nodes]
        self.run = [signature(address) for signature, address in zip(types, addresses, strict=True)]


# --- 6. The guarded call ----------------------------------------------------------------------------------------------
# An entry is a program and the guards under which it holds. A call takes the first entry whose guards pass; where none
# does, it is captured again.
#
# The rooms: runtime/ and csrc/, and function.py. There guards and program run in C++ in a microsecond, memory is
# planned, weights are packed once, every recompilation has a reason, and nothing is kept alive that eager would free.

LIMIT = 8  # entries of one function; after that it runs in eager


class Entry:
    def __init__(self, root: Any, args: tuple[Any, ...]) -> None:
        capture = Capture(root)
        capture.guard(f"len(args) == {len(args)}")
        result = capture.call(root, [capture.read(f"args[{place}]", arg) for place, arg in enumerate(args)])
        if not isinstance(result, Node):
            raise Break("a result that is not one tensor")
        self.captured = Graph(capture.graph.nodes, result)
        self.graph = rewritten(self.captured)
        self.program = Lowering(self.graph)
        self.kernels = Kernels([step for step in self.program.steps if isinstance(step, Loops)])
        self.guards = list(capture.guards)
        sources = ", ".join(node.args[0] for node in self.program.inputs)
        self._passes = eval(
            f"lambda args: {' and '.join(f'({test})' for test in self.guards)}", capture.objects
        )
        self._bound = eval(f"lambda args: [{sources}]", capture.objects)

    def accepts(self, args: tuple[Any, ...]) -> bool:
        try:
            return self._passes(args)
        except (AttributeError, LookupError):  # what a guard reads is no longer there
            return False

    def __call__(self, args: tuple[Any, ...]) -> Tensor:
        memory: dict[Any, Tensor] = dict(zip(self.program.inputs, self._bound(args), strict=True))
        kernels = zip(self.kernels.run, self.kernels.nodes, strict=True)
        for step in self.program.steps:
            if isinstance(step, Loops):
                memory[step.node] = torch.empty(step.node.meta.shape)
                run, nodes = next(kernels)
                run(*[memory[node].data_ptr() for node in nodes])
            else:
                memory[step] = step.target(*[memory.get(arg, arg) for arg in step.args]).contiguous()
        return memory[self.graph.output]


class Compiled:
    """Runs `root` compiled where that is known to be right, and in eager everywhere else."""

    def __init__(self, root: Any) -> None:
        self.root = root
        self.entries: list[Entry] = []
        self.refusal: str | None = None  # why it runs in eager from now on

    def __call__(self, *args: Any) -> Any:
        for entry in self.entries:
            if entry.accepts(args):
                return entry(args)
        if self.refusal is None and len(self.entries) < LIMIT:
            try:
                self.entries.append(Entry(self.root, args))
                return self.entries[-1](args)
            except Break as reason:
                self.refusal = str(reason)
        return self.root(*args)


# --- 7. What it comes to ----------------------------------------------------------------------------------------------


class Block(nn.Module):
    """A small network with a norm and an activation written out, a branch, and a softmax."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.eps, self.gated = 1e-5, True
        self.up, self.down = nn.Linear(size, size), nn.Linear(size, size)

    def norm(self, x: Tensor) -> Tensor:
        centered = x - x.mean(-1, True)
        return centered * torch.rsqrt((centered * centered).mean(-1, True) + self.eps)

    def forward(self, x: Tensor) -> Tensor:
        h = self.up(self.norm(x))
        if self.gated:
            h = h * torch.sigmoid(h)
        return torch.softmax(self.down(h) / math.sqrt(x.shape[-1]), -1) + x


def fastest(fn: Callable[..., Any], x: Tensor) -> float:
    """Microseconds of the fastest of fifty calls."""
    return min(-time.perf_counter() + (fn(x), time.perf_counter())[1] for _ in range(50)) * 1e6


@torch.no_grad()
def main() -> None:
    block, x = Block(64), torch.randn(4096, 64)
    compiled = Compiled(block)
    torch.testing.assert_close(compiled(x), block(x))
    assert compiled.refusal is None, compiled.refusal
    (entry,) = compiled.entries
    print("The graph, as captured:", *entry.captured.live(), sep="\n  ")
    print("\nThe guards:", *entry.guards, sep="\n  ")
    print("\nThe graph, rewritten:", *entry.graph.live(), sep="\n  ")
    print("\nThe program:", *entry.program.steps, sep="\n  ")
    vectors = [line.strip() for line in entry.kernels.assembly.splitlines() if "ymm" in line or "zmm" in line]
    print(f"\nMachine code: {len(vectors)} vector instructions, such as {vectors[-1].expandtabs(1)}")
    print(f"\nA call: {fastest(compiled, x):.0f} us, in eager {fastest(block, x):.0f} us")
    block.gated = False
    torch.testing.assert_close(compiled(x), block(x))
    print(f"block.gated = False: {len(compiled.entries)} entries, and the answer is right again")


if __name__ == "__main__":
    main()
