"""The table of graph breaks and refusals: each has a stable code, a cause and a fix."""

from __future__ import annotations

from lampwork.records import record


@record
class Code:
    """`cause` is a template of str.format; `fix` says what the user can do."""

    code: str
    title: str
    cause: str
    fix: str


CODES: dict[str, Code] = {
    entry.code: entry
    for entry in (
        Code(
            "LW101",
            "data-dependent branch",
            "the truth of a tensor decides which code runs, and its data exists only at run time",
            "use torch.where or keep the decision out of the compiled function",
        ),
        Code(
            "LW102",
            "tensor data needed",
            "{detail}",
            "keep the value a tensor, or move this line out of the compiled function",
        ),
        Code(
            "LW103",
            "unknown native function",
            "{detail} is not known to be free of side effects",
            "move the call out of the compiled function; it runs in plain Python here",
        ),
        Code(
            "LW104",
            "input or output",
            "{detail} does input or output, or reads state that differs from call to call",
            "remove the call, or guard it with `if not torch.compiler.is_compiling()`",
        ),
        Code(
            "LW105",
            "torch function with effects",
            "{detail} changes state of torch that a graph cannot hold",
            "call it outside of the compiled function",
        ),
        Code(
            "LW106",
            "operation without functional form",
            "{detail}",
            "rewrite the line with out-of-place operations",
        ),
        Code(
            "LW107",
            "tensor subclass",
            "{detail} is a tensor subclass, whose Python code a graph would not run",
            "convert it to a plain tensor before the call",
        ),
        Code(
            "LW108",
            "generator or coroutine",
            "{detail} is a generator or coroutine made outside of the compiled function",
            "make it inside the function, or pass a list",
        ),
        Code(
            "LW109",
            "import inside the function",
            "importing {detail} runs the module's code",
            "import at the top of the file",
        ),
        Code(
            "LW110",
            "class defined inside the function",
            "the body of {detail} would run while the function is captured",
            "define the class at module level",
        ),
        Code(
            "LW111",
            "object from outside used opaquely",
            "{detail}",
            "read plain values out of the object first",
        ),
        Code(
            "LW112",
            "backward hooks",
            "{detail} has backward hooks, which need autograd's own graph",
            "remove the backward hooks before compiling",
        ),
        Code(
            "LW113",
            "disabled function",
            "{detail} is marked as not to be compiled",
            "remove the mark to have it compiled",
        ),
        Code(
            "LW114",
            "custom autograd function",
            "{detail} defines its own backward",
            "use operators with a built-in derivative, or run it in eager",
        ),
        Code(
            "LW115",
            "refused instruction",
            "the instruction {detail} is not supported",
            "rewrite the line without it",
        ),
        Code(
            "LW116",
            "gradient inside the function",
            "{detail} runs autograd inside the region",
            "leave it, as both sides of it are compiled, or move it out of the compiled function",
        ),
        Code(
            "LW117",
            "exception caught in the function",
            "{detail} is raised and caught here, and the very exception that eager raises is needed: it is in use at a "
            "graph break, or torch raised it",
            "handle the exception without a graph break, or test for its cause beforehand",
        ),
        Code(
            "LW118",
            "iterator from outside",
            "{detail} was made outside of the region, so each of its items is taken in plain Python",
            "pass a list or a tuple",
        ),
        Code(
            "LW120",
            "warning",
            "the call issues a warning ({detail}), which eager issues again on every call",
            "fix what the warning is about",
        ),
        Code(
            "LW121",
            "object with a finalizer",
            "{detail} is made here, and its destruction has a side effect that is due as soon as nothing refers to it, "
            "so the whole function runs eager",
            "make the object outside of the compiled function",
        ),
        Code(
            "LW122",
            "long computation in Python",
            "{detail} computes for long without an operator of torch, which takes much longer to interpret than to run",
            "compute it outside of the compiled function, or with tensors",
        ),
        Code(
            "LW123",
            "part of a training step",
            "{detail} works on gradients, parameters or what is kept of them, so it runs between two compiled parts",
            "nothing to do: the break costs less than a microsecond, and what has a compiled form runs as that",
        ),
        Code(
            "LW124",
            "calls nested too deep to be captured",
            "{detail} is called where the thread's stack has no room to capture it: a call takes about 3 KB of it "
            "while it is captured, and 128 KB stay free",
            "call the function less deep, or in a thread with a larger stack (threading.stack_size, ulimit -s)",
        ),
        Code(
            "LW131",
            "break where the frame cannot be rebuilt",
            "a graph break at {detail} leaves something live that cannot be rebuilt, so the whole function runs eager",
            "fix that break, or move it out of the try, with or for block",
        ),
        Code(
            "LW132",
            "not a Python function",
            "{detail} has no Python bytecode to capture",
            "compile the Python function or module that calls it",
        ),
        Code(
            "LW133",
            "generator or coroutine function",
            "{detail} is a generator or coroutine function",
            "compile the functions that it calls",
        ),
        Code(
            "LW134",
            "result cannot be rebuilt",
            "{detail} is made by the function and cannot be rebuilt from the outputs of a graph",
            "return tensors, numbers, and containers of them",
        ),
        Code(
            "LW137",
            "generator in use at a break",
            "a generator of {detail} is still in use at a graph break, so it is made in plain Python",
            "exhaust it before the graph break, or make a list of it",
        ),
        Code(
            "LW138",
            "object in use at a break",
            "{detail} is still in use where the region ends and cannot be rebuilt, so it is made in plain Python",
            "read what is needed out of the object first",
        ),
        Code(
            "LW139",
            "graph break asked for",
            "{detail} asks for a graph break here",
            "remove the call to have both sides in one graph",
        ),
        Code(
            "LW136",
            "inspection of the calling frame",
            "{detail} inspects the frame that calls it, so the whole function runs eager",
            "move the call into a function of its own",
        ),
        Code(
            "LW135",
            "mutated inputs overlap",
            "{detail} is written to and shares memory with another input",
            "pass tensors that do not overlap, or clone one of them",
        ),
    )
}
