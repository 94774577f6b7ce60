"""A compiler in one evening: from bytecode to machine code in one file, for a handful of operators on matrices.

Read it from top to bottom. Each section does for a few cases what a folder of `src/lampwork` does for all of them, and
names that folder. `python docs/from_scratch.py` compiles a small network and prints what every stage made of it.
"""

from __future__ import annotations

import ctypes
import dis
import inspect
import operator
import struct
from collections.abc import Sequence
from contextlib import contextmanager, suppress
from types import FunctionType
from typing import Any

import llvmlite.binding as llvm
import torch
from torch import Tensor

# --- 1. The graph -----------------------------------------------------------------------------------------------------
# What a function does to tensors: a list of operations, each on results of earlier ones. To know the shape of a result,
# the operation is tried on tensors of the device "meta", which have a shape but no data.
# The folder: graph/. There the operations are ATen's, views and writes are made explicit, and sizes may stay open.


class Node:
    """One operation. `target` is a function of PyTorch, or None for an input, whose one argument is its source."""

    def __init__(self, target: Any, args: tuple[Any, ...], meta: Tensor, name: str) -> None:
        self.target, self.args, self.meta, self.name = target, args, meta, name

    def __repr__(self) -> str:
        return self.name


class Graph:
    def __init__(self) -> None:
        self.nodes: dict[Any, Node] = {}  # by what they compute: the same operation is never added twice
        self.output: Any = None

    def node(self, target: Any, *args: Any, shape: tuple[int, ...] = ()) -> Node:
        """The node for `target(*args)`, or for an input of this shape."""
        operands = [arg.meta if isinstance(arg, Node) else arg for arg in args]
        meta = target(*operands) if target else torch.empty(shape, dtype=torch.float32, device="meta")
        key = target, repr(args)  # not args: 0.0 equals -0.0, but x / 0.0 does not equal x / -0.0
        return self.nodes.setdefault(key, Node(target, args, meta, f"v{len(self.nodes)}"))

    def live(self) -> list[Node]:
        """The nodes that the output needs, in order."""
        needed = {self.output}
        for node in reversed(self.nodes.values()):
            needed.update(arg for arg in node.args if node in needed and isinstance(arg, Node))
        return [node for node in self.nodes.values() if node in needed]


# --- 2. Capture: from bytecode to a graph and its guards --------------------------------------------------------------
# The function is not called. Its bytecode is interpreted with the caller's own objects, but with nodes in place of
# tensors: numbers are computed, branches on them taken, callees entered, and an operation on a node joins the graph.
# The graph is right for this call; the guards say for which others. Everything from outside (arguments, globals,
# attributes) passes through `read`, which adds its guards, so that none can be forgotten.
# The folder: capture/. It handles every opcode of three Pythons, modules, side effects, generators and exceptions. At a
# graph break it runs one operation in eager and resumes after it; here, a break gives up the whole call.

NUMBERS = {int, float, bool}
OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
POINTWISE = {*OPERATORS.values(), torch.exp}
REDUCTIONS = {torch.sum, torch.amax}
CAPTURED = {*POINTWISE, *REDUCTIONS, operator.matmul, torch.sigmoid}
OPERATORS |= {"@": operator.matmul, "<": operator.lt, ">": operator.gt}
Break = NotImplementedError  # capture met something that it does not know: the call runs in eager


class Capture:
    """The call `root(*args)`: its graph, and its guards, Python expressions over `args` and the names in `scope`."""

    def __init__(self, root: FunctionType, args: Sequence[Any]) -> None:
        self.graph = Graph()
        self.guards = [f"len(args) == {len(args)}"]
        self.sources = {id(root): "root"}  # by the id of an object: the expression that finds it
        self.pinned: list[Any] = []  # the objects that later calls must find again
        self.scope = {"root": root, "pinned": self.pinned, "torch": torch, "Tensor": Tensor}
        self.graph.output = self.call(root, [self.read(f"args[{i}]", arg) for i, arg in enumerate(args)])

    def read(self, source: str, value: Any) -> Any:
        """`value`, found at `source`, with the guards that pin it. A tensor becomes an input of the graph."""
        if isinstance(value, Tensor):
            self.guards += [
                f"type({source}) is Tensor and {source}.is_cpu and {source}.dtype is torch.float32",
                f"{source}.ndim == 2 and {source}.shape == {tuple(value.shape)} and {source}.is_contiguous()",
                f"not ({source}.requires_grad and torch.is_grad_enabled())",
            ]
            return self.graph.node(None, source, shape=value.shape)
        if type(value) in NUMBERS:
            self.guards.append(f"type({source}) is {type(value).__name__} and repr({source}) == '{value!r}'")
        elif source not in self.sources.values():
            self.guards.append(f"{source} is pinned[{len(self.pinned)}]")
            self.pinned.append(value)
            self.sources[id(value)] = source
        return value

    def attribute(self, owner: Any, name: str) -> Any:
        if id(owner) not in self.sources:
            raise Break(f"the attribute {name} of {owner!r}")
        return self.read(f"{self.sources[id(owner)]}.{name}", getattr(owner, name))

    def call(self, fn: Any, args: list[Any]) -> Any:
        """What `fn(*args)` returns, with nodes for tensors."""
        if isinstance(fn, FunctionType):
            return self.interpret(fn, args)
        types = {type(arg) for arg in args}
        if types <= NUMBERS and fn in OPERATORS.values():
            return fn(*args)
        if fn not in CAPTURED or Node not in types or not types <= {Node, *NUMBERS}:
            raise Break(f"a call of {fn}")
        if fn in REDUCTIONS and args[1:] != [-1, True]:
            raise Break("a reduction of something other than rows")
        return self.graph.node(fn, *args)

    def interpret(self, fn: FunctionType, args: list[Any]) -> Any:
        code = self.attribute(fn, "__code__")
        if code.co_argcount != len(args) or code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS):
            raise Break(f"the signature of {fn}")
        variables = dict(zip(code.co_varnames, args, strict=False))
        stack, target = [], 0  # `target`: where the last jump leads to, which is forwards
        for op in dis.get_instructions(code):
            if op.offset < target:
                continue
            match op.opname:
                case "RESUME" | "NOP" | "PRECALL" | "PUSH_NULL" | "TO_BOOL" | "RETURN_VALUE":
                    pass
                case "LOAD_CONST" | "RETURN_CONST":  # the latter in Python 3.12 and 3.13
                    stack.append(op.argval)
                case "LOAD_FAST":
                    stack.append(variables[op.argval])
                case "LOAD_FAST_LOAD_FAST":  # from Python 3.13 on
                    stack += [variables[name] for name in op.argval]
                case "STORE_FAST":
                    variables[op.argval] = stack.pop()
                case "LOAD_GLOBAL":
                    if op.argval not in fn.__globals__:
                        raise Break(f"the builtin {op.argval}")
                    source = f"{self.sources[id(fn)]}.__globals__[{op.argval!r}]"
                    stack.append(self.read(source, fn.__globals__[op.argval]))
                case "LOAD_ATTR" | "LOAD_METHOD":
                    stack.append(self.attribute(stack.pop(), op.argval))
                case "BINARY_OP" | "COMPARE_OP":
                    symbol = op.argrepr.removeprefix("bool(").removesuffix(")")
                    if symbol not in OPERATORS:  # such as +=, which writes to a tensor
                        raise Break(f"the operator {symbol}")
                    stack[-2:] = [self.call(OPERATORS[symbol], stack[-2:])]
                case "CALL":
                    start = len(stack) - op.argval - 1
                    stack[start:] = [self.call(stack[start], stack[start + 1 :])]
                case "POP_JUMP_IF_FALSE" | "POP_JUMP_FORWARD_IF_FALSE":
                    if type(stack[-1]) not in NUMBERS:
                        raise Break("a branch on something other than a number")
                    target = target if stack.pop() else op.argval
                case other:
                    raise Break(f"the opcode {other}")
            if op.opname.startswith("RETURN_"):
                break
        return stack.pop()


# --- 3. Rewrites ------------------------------------------------------------------------------------------------------
# A rewrite is two functions, captured like any other: what the first one does is replaced by what the second one does.
# The folders: rewriting/ and transforms/. There a pattern also finds other spellings of the same thing and may have
# choices and conditions, and an automaton looks for a thousand patterns at once.


def graph_of(fn: FunctionType) -> Graph:
    return Capture(fn, [torch.empty(2, 2)] * fn.__code__.co_argcount).graph


RULES = [
    (graph_of(lambda x: torch.sigmoid(x)), graph_of(lambda x: 1 / (1 + torch.exp(0 - x)))),
    (graph_of(lambda x, y: x * (1 / y)), graph_of(lambda x, y: x / y)),
]


def match(pattern: Any, value: Any, found: dict[str, Node]) -> bool:
    """Whether `value` is what `pattern` describes. `found` gets the nodes that stand for the pattern's inputs."""
    if not isinstance(pattern, Node) or not isinstance(value, Node):
        return repr(pattern) == repr(value)
    if pattern.target is None:
        return found.setdefault(pattern.args[0], value) is value
    pairs = zip(pattern.args, value.args, strict=False)
    return pattern.target is value.target and all(match(inner, arg, found) for inner, arg in pairs)


def copy(graph: Graph, into: Graph, inputs: dict[str, Node]) -> Node:
    """Adds `graph` to `into`, with `inputs` for its inputs, rewriting each node at once. Returns its output."""
    copied: dict[Any, Node] = {}
    for node in graph.live():
        args = [copied.get(arg, arg) for arg in node.args]
        copied[node] = inputs.get(args[0]) or into.node(node.target, *args, shape=node.meta.shape)
        for before, after in RULES:
            found: dict[str, Node] = {}
            if match(before.output, copied[node], found):
                copied[node] = copy(after, into, found)
    return copied[graph.output]


# --- 4. Loops ---------------------------------------------------------------------------------------------------------
# An element of a result is an expression of elements of the operands, which are expressions in turn. That is fusion:
# nothing in between is stored, and what is used twice is computed twice. Stored are only the output, the results of
# reductions (every element of a row reads them), and what PyTorch's own kernels read and write.
# The folders: lower/ and loops/. There every common operator has a rule, a row is reduced and used in one kernel, loops
# are tiled and split among threads and vector lanes, and every access is proven to stay in bounds.


def lower(graph: Graph) -> dict[Node, Any]:
    """The program: the nodes that are stored, in order, each with an expression of its element [i, j], or None for an
    input and for what PyTorch computes. An expression is a number, ("load", node, row, column), (operation, *operands)
    or (reduction, size, expression with the variable r)."""
    nodes = graph.live()
    foreign = [node for node in nodes if node.target not in (*POINTWISE, *REDUCTIONS)]
    needed = {graph.output, *foreign, *(arg for node in foreign for arg in node.args)}
    stored = [node for node in nodes if node in needed or node.target in REDUCTIONS]

    def computed(node: Node, row: Any, column: Any) -> Any:
        """The element of `node` at `row` and `column`, which are variables of loops, or 0."""
        if node.target in REDUCTIONS:
            return node.target, node.args[0].meta.shape[1], element(node.args[0], row, "r")
        return node.target, *[element(arg, row, column) for arg in node.args]

    def element(operand: Any, row: Any, column: Any) -> Any:
        """The element of an operand: loaded where that is stored, computed on the spot where it is not."""
        if not isinstance(operand, Node):
            return float(operand)
        if operand not in stored:
            return computed(operand, row, column)
        rows, columns = operand.meta.shape  # a single row or column is repeated
        return "load", operand, row if rows != 1 else 0, column if columns != 1 else 0

    return {node: None if node in foreign else computed(node, "i", "j") for node in stored}


def show(node: Node, value: Any = None) -> str:
    def text(value: Any) -> str:
        match value:
            case ("load", node, row, column):
                return f"{node}[{row}, {column}]"
            case (operation, *args):
                return f"{getattr(operation, '__name__', 'input')}({', '.join(map(text, args))})"
        return str(value)

    rows, columns = node.meta.shape
    if value is None:
        return f"{node}: {rows} x {columns} = {text((node.target, *node.args))}"
    return f"for i < {rows}: for j < {columns}: {node}[i, j] = {text(value)}"


# --- 5. Machine code --------------------------------------------------------------------------------------------------
# LLVM is a library in this process. Each pair of loops becomes a function in LLVM's language, plain and scalar; LLVM's
# own passes keep its variables in registers and turn its inner loop into vector instructions where they can.
# The folder: codegen/. There a schedule chooses the vectors, exp and its like are vector code of our own, and templates
# whose tiles fill the registers compute matrix products.

TEMPLATES = {
    operator.add: "fadd float {}, {}", operator.sub: "fsub float {}, {}", operator.mul: "fmul float {}, {}",
    operator.truediv: "fdiv float {}, {}", torch.exp: "call float @llvm.exp.f32(float {})",
    torch.amax: "call float @llvm.maximum.f32(float {}, float {})",  # of two; keeps nan, as PyTorch does
    torch.sum: "fadd reassoc float {}, {}",  # of two; in any order, so that LLVM can add in vectors
}  # fmt: skip


class Emitter:
    """Writes the function that computes `node` in two loops. Its arguments point to what is stored."""

    def __init__(self, node: Node, value: Any, program: dict[Node, Any]) -> None:
        self.lines = [f"define void @compute_{node}({', '.join(f'ptr %{other}' for other in program)}) {{"]
        self.lines += ["%i = alloca i64", "%j = alloca i64", "%r = alloca i64", "%total = alloca float"]
        with self.loop("i", node.meta.shape[0]), self.loop("j", node.meta.shape[1]):
            self.lines.append(f"store float {self.value(value)}, ptr {self.address(node, 'i', 'j')}")
        self.text = "\n".join([*self.lines, "ret void", "}"])

    def let(self, expression: str) -> str:
        """A new name for the value of an LLVM expression."""
        self.lines.append(f"%t{len(self.lines)} = {expression}")
        return f"%t{len(self.lines) - 1}"

    @contextmanager
    def loop(self, name: str, size: int) -> Any:
        """`for name in range(size)` around what is written within the `with` statement."""
        self.lines += [f"store i64 0, ptr %{name}", f"br label %test_{name}", f"test_{name}:"]
        more = self.let(f"icmp slt i64 {self.let(f'load i64, ptr %{name}')}, {size}")
        self.lines += [f"br i1 {more}, label %body_{name}, label %after_{name}", f"body_{name}:"]
        yield
        following = self.let(f"add i64 {self.let(f'load i64, ptr %{name}')}, 1")
        self.lines += [f"store i64 {following}, ptr %{name}", f"br label %test_{name}", f"after_{name}:"]

    def address(self, node: Node, *place: Any) -> str:
        row, column = [self.let(f"load i64, ptr %{at}") if at else "0" for at in place]
        return self.let(f"getelementptr [{node.meta.shape[1]} x float], ptr %{node}, i64 {row}, i64 {column}")

    def value(self, value: Any) -> str:
        """The name of the value of an expression, or a number as LLVM writes it."""
        match value:
            case ("load", node, row, column):
                return self.let(f"load float, ptr {self.address(node, row, column)}")
            case (torch.sum | torch.amax as reduction, size, body):
                start = self.value(0.0 if reduction is torch.sum else float("-inf"))
                self.lines.append(f"store float {start}, ptr %total")
                with self.loop("r", size):
                    so_far = self.let("load float, ptr %total")
                    total = self.let(TEMPLATES[reduction].format(so_far, self.value(body)))
                    self.lines.append(f"store float {total}, ptr %total")
                return self.let("load float, ptr %total")
            case (operation, *args):
                return self.let(TEMPLATES[operation].format(*map(self.value, args)))
        # LLVM reads a float32 from the bits of the float64 that equals it.
        return f"0x{struct.pack('>d', ctypes.c_float(value).value).hex()}"


def compile_llvm(functions: list[str]) -> tuple[Any, str]:
    """An engine that holds the machine code of the functions, and the same code as assembly."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    host = {"cpu": llvm.get_host_cpu_name(), "features": llvm.get_host_cpu_features().flatten()}
    machine = llvm.Target.from_default_triple().create_target_machine(**host, opt=3)
    module = llvm.parse_assembly("\n".join(functions))
    passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3))
    passes.getModulePassManager().run(module, passes)
    return llvm.create_mcjit_compiler(module, machine), machine.emit_assembly(module)


# --- 6. The guarded call ----------------------------------------------------------------------------------------------
# An entry is a program and the guards under which it is right. A call takes the first entry whose guards all hold;
# where there is none, the function is captured and compiled again.
# The folders: runtime/ and csrc/, and compiled/. There guards and program run in C++ in a microsecond, memory is
# planned, weights are packed once, every recompilation has a reason, and nothing outlives what eager would keep.


class Entry:
    def __init__(self, root: FunctionType, args: tuple[Any, ...]) -> None:
        self.capture, self.graph = Capture(root, args), Graph()
        if not isinstance(self.capture.graph.output, Node) or self.failing_guard(args):
            raise Break(f"a result that is not one tensor, or a guard: {self.failing_guard(args)}")
        self.graph.output = copy(self.capture.graph, self.graph, {})
        self.program = lower(self.graph)
        self.llvm = [Emitter(node, value, self.program).text for node, value in self.program.items() if value]
        self.engine, self.assembly = compile_llvm(self.llvm)

    def failing_guard(self, args: tuple[Any, ...]) -> str | None:
        for guard in self.capture.guards:
            with suppress(AttributeError, KeyError):  # what the guard reads may be gone
                if eval(guard, self.capture.scope, {"args": args}):
                    continue
            return guard
        return None

    def __call__(self, args: tuple[Any, ...]) -> Tensor:
        memory: dict[Any, Tensor] = {}
        signature = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * len(self.program))
        for node, value in self.program.items():
            if node.target is None:
                memory[node] = eval(node.args[0], self.capture.scope, {"args": args})
            elif value is None:
                memory[node] = node.target(*[memory.get(arg, arg) for arg in node.args]).contiguous()
            else:
                memory[node] = torch.empty_like(node.meta, device="cpu")
                run = signature(self.engine.get_function_address(f"compute_{node}"))
                run(*[memory[other].data_ptr() if other in memory else None for other in self.program])
        return memory[self.graph.output]


class Compiled:
    """Runs `root` compiled where that is known to be right, and in eager everywhere else."""

    def __init__(self, root: FunctionType) -> None:
        self.root, self.entries = root, list[Entry]()
        self.refusal: str | None = None  # why the function runs in eager from now on

    def __call__(self, *args: Any) -> Any:
        for entry in self.entries:
            if entry.failing_guard(args) is None:
                return entry(args)
        if self.refusal is None and len(self.entries) < 8:
            try:
                self.entries.append(Entry(self.root, args))
                return self.entries[-1](args)
            except Break as reason:
                self.refusal = str(reason)
        return self.root(*args)


# --- 7. All of it at work ---------------------------------------------------------------------------------------------

SCALE = 0.125


def softmax(x: Tensor) -> Tensor:
    powers = torch.exp(x - torch.amax(x, -1, True))
    return powers / torch.sum(powers, -1, True)


def network(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    h = x @ weight + bias
    h = h * torch.sigmoid(h)
    if SCALE < 1:
        h = h * SCALE
    return softmax(h) + x


def main() -> None:
    global SCALE
    args = torch.randn(128, 64), torch.randn(64, 64), torch.randn(1, 64)
    compiled = Compiled(network)
    torch.testing.assert_close(compiled(*args), network(*args))
    (entry,) = compiled.entries
    stages = {
        "The bytecode": dis.Bytecode(network).dis().splitlines(),
        "The graph, as captured": [show(node) for node in entry.capture.graph.live()],
        "The guards": entry.capture.guards,
        "The graph, rewritten": [show(node) for node in entry.graph.live()],
        "The steps of the program": [show(node, value) for node, value in entry.program.items()],
        "The last of the loops in LLVM's language": entry.llvm[-1].splitlines(),
        "The end of its machine code": entry.assembly.splitlines()[-30:],
    }
    for title, lines in stages.items():
        print(f"{title}:", *lines, sep="\n  ", end="\n\n")
    SCALE = 2.0
    print(f"A guard that fails after SCALE = 2.0: {entry.failing_guard(args)}")
    torch.testing.assert_close(compiled(*args), network(*args))
    print(f"{len(compiled.entries)} entries, and the results equal eager's")


if __name__ == "__main__":
    main()
