"""The protocol of a backend: a name, a verdict on each node, and a way to compile a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, ClassVar, Protocol, cast, runtime_checkable

from torch import Tensor, fx

from lampwork import config
from lampwork.backends.native.symbolic import SymbolicProgram
from lampwork.backends.observer import NOBODY, Observer
from lampwork.backends.operators import operators_of
from lampwork.config import Config
from lampwork.errors import OptionError
from lampwork.plugins.context import BackendPasses
from lampwork.plugins.registry import Place
from lampwork.records import record
from lampwork.runtime.program import Program
from lampwork.serial.own_code import read_early
from lampwork.verdict import No, Verdict, Yes

__all__ = ["Backend", "CompileOptions", "Compiled", "No", "Traits", "Verdict", "Yes"]

Compiled = Program | SymbolicProgram | Callable[..., Sequence[Tensor]]
"""What `compile` returns: a Program, a SymbolicProgram (which serves all sizes of a graph with symbols), or a function
from the graph's placeholders, in order, to its outputs."""


def _nothing() -> None:
    """The graph is what the passes made of it."""


@record
class CompileOptions:
    """`mutations`: pairs (placeholder number, output number); after the call, that output must be copied into the
    tensor of that placeholder. A backend with `writes_inputs = True` copies it itself; for all others Lampwork does.
    `views`: pairs (output number, placeholder number); callers are to have that output as a view of the new content of
    that placeholder, so a backend that copies mutations itself may give it as a view of the placeholder's tensor.
    `observer`: whom a backend may tell what it made, by `observer.compiled(texts, counts, seconds)`; NOBODY if nobody
    looks.
    `bound`: the values of the bound placeholders, in order, for a backend with `bakes_weights = True`.
    `waits`: machine code must be there when `compile` returns; else it may be when the Program is run.
    `ready`: has to be called before `restore` looks at the graph: until then it may be what the passes are yet to run
    over."""

    config: Config = field(default_factory=Config)
    mutations: tuple[tuple[int, int], ...] = ()
    observer: Observer = NOBODY
    bound: tuple[Tensor, ...] = ()
    waits: bool = True
    ready: Callable[[], None] = _nothing
    views: tuple[tuple[int, int], ...] = ()


@runtime_checkable
class Backend(Protocol):
    """Compiles subgraphs. A backend is stateless: one object serves all graphs and threads.

        class Shouting:
            name = "shouting"

            def supports(self, node):
                return Yes() if node.target is torch.ops.aten.relu.default else No("only relu")

            def compile(self, graph, example_inputs, options):
                print("compiling", graph)
                return lambda *tensors: run_graph(graph, tensors)

        register_backend(Shouting())

    Optional attributes; see `Traits` for the defaults:

    * `bakes_weights: bool`: the compiled callable contains the values of the bound placeholders, `options.bound`, and
      is called with the inputs only. When a weight changes, the graph is compiled again. `options.bound` shares memory
      with the weights: to write to it is an error.
    * `min_block_size: int`: parts with fewer nodes go to the next backend.
    * `keep_ops`: operators (`torch.ops.aten.gelu`, or "aten.gelu") that no pass may replace.
    * `decompose: str`: "core": this backend is asked about torch's core ATen operators only. Others are taken apart
      where it takes some of their pieces, and stay whole for the next backend where it takes none.
    * `passes`: (pass, `Place`) pairs: passes that only this backend wants, each placed by a pass of the pipeline or by
      an earlier one of these. They run on whole graphs, whenever this backend is among those that are given.
    * `clusters(graph)`: groups of nodes that the backend takes as a whole or not at all.
    * `cost(nodes)`: estimated seconds of a call that runs these nodes. If several backends that support a node have an
      estimate, the one with the lowest gets the node.
    * `prepare()`: something is about to be captured, and compiled after that, under the options in force: what takes
      time and needs no graph may begin.
    * `writes_inputs: bool`: the backend copies `CompileOptions.mutations` itself.
    * `keeps_constants: bool`: the backend itself computes, once per set of weights, what depends only on bound tensors.
      For all other backends Lampwork does, and passes them the results as bound placeholders.
    * `trusted: bool`: its results are not checked, and it compiles in the caller's thread without example inputs.
    * `key_parts(graph, options)`, `save(compiled)`, `restore(content, graph, options)`, all three or none: what it
      compiles is kept in the cache folder for other processes. `key_parts` gives texts by name: all that makes a
      difference to what it compiles and is neither in the graph nor in the options nor in its own code, such as the
      machine; None for what is not to be kept. `save` gives bytes, or raises SerialError for what cannot be written.
      `restore` gives what `compile` gave for an equal graph in another process, and tells `options.observer` as much;
      a graph that it looks at is there after `options.ready()`;
      it raises SerialError for bytes that it does not understand, and the graph is compiled then.
    """

    name: ClassVar[str]

    def supports(self, node: fx.Node) -> Verdict | bool:
        """Whether this backend takes a call_function node; `No` gives the reason. `meta["val"]` is a node's spec."""
        ...

    def compile(self, graph: fx.Graph, example_inputs: Sequence[Tensor], options: CompileOptions) -> Compiled:
        """Compile a functional ATen graph of nodes that `supports` took.

        The placeholders are the inputs, then the bound tensors (`meta["bound"]`); the output is a flat tuple.
        `example_inputs` has one tensor for each argument of the compiled callable, with the sizes, strides and dtype of
        the placeholder; the values are arbitrary, those of the bound tensors too.

        Raises:
            Exception: the graph cannot be compiled after all; it goes to the next backend.
        """
        ...


@record
class Traits:
    """The optional attributes of a backend, validated. Methods are None where it has none."""

    writes_inputs: bool = False
    bakes_weights: bool = False
    keeps_constants: bool = False
    trusted: bool = False
    min_block_size: int = 1
    decompose: str = ""
    keep_ops: frozenset[Any] = frozenset()
    passes: BackendPasses = ()
    clusters: Callable[[fx.Graph], Iterable[Iterable[fx.Node]]] | None = None
    cost: Callable[[Sequence[fx.Node]], float] | None = None
    prepare: Callable[[], None] | None = None
    key_parts: Callable[[fx.Graph, CompileOptions], Mapping[str, str] | None] | None = None
    save: Callable[[Any], bytes] | None = None
    restore: Callable[[bytes, fx.Graph, CompileOptions], Compiled] | None = None

    @staticmethod
    def of(backend: Any) -> Traits:
        """The traits of `backend`.

        Raises:
            OptionError: an attribute has an invalid value.
        """
        flags: dict[str, Any] = {}
        for name in ("writes_inputs", "bakes_weights", "keeps_constants", "trusted"):
            flags[name] = _checked(backend, name, getattr(backend, name, False), bool, "True or False")
        size = _checked(backend, "min_block_size", getattr(backend, "min_block_size", 1), int, "a number")
        if size < 1:
            raise _wrong(backend, "min_block_size", size, "1 or more")
        depth: Any = getattr(backend, "decompose", "")
        if depth not in ("", "core"):
            raise _wrong(backend, "decompose", depth, '"core", or leave it out')
        hooks: dict[str, Any] = {}
        for name in ("clusters", "cost", "prepare", *KEEPING):
            hooks[name] = getattr(backend, name, None)
            if hooks[name] is not None and not callable(hooks[name]):
                raise _wrong(backend, name, hooks[name], "a method")
        missing = [name for name in KEEPING if hooks[name] is None]
        if missing and len(missing) < len(KEEPING):
            raise _wrong(backend, missing[0], None, f"a method, or leave out {', '.join(KEEPING)}")
        return Traits(
            **flags,
            min_block_size=size,
            decompose=depth,
            keep_ops=_operators(backend),
            passes=_passes(backend),
            **hooks,
        )


KEEPING = ("key_parts", "save", "restore")
"""The methods of a backend whose programs are kept in the cache folder."""


def kept_operators(backends: Sequence[Backend]) -> frozenset[Any]:
    """The `keep_ops` of all backends together."""
    return frozenset().union(*(Traits.of(backend).keep_ops for backend in backends))


def prepare(backends: Sequence[Backend]) -> None:
    """Tell all backends that something is about to be captured."""
    if config.current().cache != "off":
        read_early()
    for backend in backends:
        begin = Traits.of(backend).prepare
        if begin is not None:
            begin()


def passes_of(backends: Sequence[Backend]) -> BackendPasses:
    """The `passes` of all of them."""
    return tuple(each for backend in backends for each in Traits.of(backend).passes)


def _checked(backend: Any, name: str, value: Any, expected: type, text: str) -> Any:
    if type(value) is not expected:
        raise _wrong(backend, name, value, text)
    return value


def _wrong(backend: Any, name: str, value: Any, text: str) -> OptionError:
    return OptionError(f"backend {backend.name}: {name} is {value!r}", fix=f"make it {text}")


def _passes(backend: Any) -> BackendPasses:
    given: Any = getattr(backend, "passes", ())
    for each in cast("Iterable[Any]", given) if isinstance(given, Iterable) else [given]:
        step, place = (
            each if isinstance(each, tuple) and len(cast("tuple[Any, ...]", each)) == 2 else (None, None)
        )
        if not (
            isinstance(place, Place) and isinstance(getattr(step, "name", None), str) and hasattr(step, "run")
        ):
            raise _wrong(
                backend, "passes", given, "pairs of a pass with `name` and `run(graph, ctx)` and a Place"
            )
    return tuple(given)


def _operators(backend: Any) -> frozenset[Any]:
    """The overloads that `keep_ops` names; a packet (torch.ops.aten.gelu) stands for all its overloads."""
    given: Any = getattr(backend, "keep_ops", ())
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise _wrong(backend, "keep_ops", given, "a collection of operators")
    try:
        return operators_of(cast("Iterable[Any]", given))
    except OptionError as error:
        raise OptionError(f"backend {backend.name}: keep_ops: {error.cause}", fix=error.fix) from error
