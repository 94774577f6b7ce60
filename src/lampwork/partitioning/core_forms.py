"""Calls of operators in terms of core ATen: `CoreForms.put` writes one into a graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from torch import fx

from lampwork import pristine
from lampwork.backends.core_aten import decomposition_of
from lampwork.capture.state.contexts import beyond_function_modes
from lampwork.differentiation.joint import input_of
from lampwork.errors import text_of
from lampwork.graph.layouts import same_strides
from lampwork.graph.nested import leaves, replaced
from lampwork.graph.record import Recorder
from lampwork.graph.spec import TensorSpec
from lampwork.graph.symbols import Scope
from lampwork.records import record
from lampwork.rewriting.apply.edit import Editor, spec_change
from lampwork.rewriting.apply.layout import is_dense, restrided
from lampwork.rewriting.schema import is_pinned
from lampwork.runtime.tape import below_autocast
from lampwork.standard import operator
from lampwork.verdict import No


@record
class Form:
    """What one call is in terms of others. `graph`: from its tensors, in the order in which it names them, each once,
    to its results. `several`: it gives a tuple, of which `absent` are None."""

    graph: fx.Graph
    several: bool
    absent: frozenset[int]


@dataclass(slots=True)
class CoreForms:
    """Decompositions of the calls of one graph. Calls alike are recorded once."""

    scope: Scope | None = None
    known: dict[str, Form | None] = field(default_factory=dict[str, "Form | None"])

    def put(self, node: fx.Node, editor: Editor) -> Any:
        """New nodes that compute what `node` does: one, or a tuple of them for its results; or a No.

        Pieces that cannot be taken apart any further stay as they are.
        """
        if is_pinned(node):
            return No("it is random, or has an effect")
        if node.meta.get("operands") is not None:
            return No("it looks at memory")
        return self._taken_apart(node, node.args, dict(node.kwargs), editor, ())

    def _expanded(
        self, target: Any, args: Any, kwargs: Mapping[str, Any], editor: Editor, above: tuple[Any, ...]
    ) -> Any:
        """The results of a call in core form; None if it has none. `above`: the operators that it is a piece of."""
        form = None if target in above else self._form(target, args, kwargs)
        if form is None:
            return None
        values: dict[fx.Node, Any] = {}
        given = iter(_tensors((args, kwargs)))
        for node in form.graph.nodes:
            if node.op == "placeholder":
                values[node] = next(given)
            elif node.op == "output":
                results = iter(values[item] for item in cast("tuple[fx.Node, ...]", node.args[0]))
                if not form.several:
                    return next(results)
                count = len(form.absent) + len(node.args[0])
                return tuple(None if number in form.absent else next(results) for number in range(count))
            else:
                values[node] = self._piece(node, values, editor, (*above, target))
        raise AssertionError("a graph without an output")

    def _piece(
        self, node: fx.Node, values: Mapping[fx.Node, Any], editor: Editor, above: tuple[Any, ...]
    ) -> Any:
        args, kwargs = replaced((node.args, dict(node.kwargs)), fx.Node, values.__getitem__)
        if node.target is operator.getitem and isinstance(args[0], tuple):
            return args[0][args[1]]
        made = self._taken_apart(node, args, kwargs, editor, above)
        if not isinstance(made, No):
            return made
        call = editor.call(node.target, *args, **kwargs)
        if "operands" in node.meta:
            call.meta["operands"] = node.meta["operands"]
        return call

    def _taken_apart(
        self, node: fx.Node, args: Any, kwargs: Mapping[str, Any], editor: Editor, above: tuple[Any, ...]
    ) -> Any:
        """What stands for a call of these arguments, in the layouts that `node` has; or a No, and nothing is made."""
        count = len(editor.made)
        try:
            made = self._expanded(node.target, args, kwargs, editor, above)
            if made is None:
                found: Any = No("torch has no decomposition of it")
            elif not _alike(node.meta["val"], made):
                found = No("its decomposition gives another type")
            else:
                found = _laid_out(node.meta["val"], made, editor)
        except Exception as error:  # noqa: BLE001  (torch's decompositions raise anything where they do not apply)
            found = No(text_of(error))
        if isinstance(found, No):
            while len(editor.made) > count:
                editor.graph.erase_node(editor.made.pop())
        return found

    def _form(self, target: Any, args: Any, kwargs: Mapping[str, Any]) -> Form | None:
        function = decomposition_of(target)
        if function is None:
            return None
        tensors = _tensors((args, kwargs))
        if not all(isinstance(node.meta["val"], TensorSpec) for node in tensors):
            return None
        places = {node: f"%{number} {node.meta['val']!r}" for number, node in enumerate(tensors)}
        key = f"{target} {replaced((args, dict(kwargs)), fx.Node, places.__getitem__)!r}"
        if key not in self.known:
            self.known[key] = self._recorded(function, args, kwargs, tensors)
        return self.known[key]

    def _recorded(
        self, function: Any, args: Any, kwargs: Mapping[str, Any], tensors: list[fx.Node]
    ) -> Form | None:
        recorder = Recorder()
        if self.scope is not None:
            recorder.scope = self.scope
        traced = {node: input_of(recorder, f"x{i}", node.meta["val"]) for i, node in enumerate(tensors)}
        try:
            with pristine.no_grad(), below_autocast(), beyond_function_modes(), recorder:
                given, named = replaced((args, dict(kwargs)), fx.Node, traced.__getitem__)
                results = function(*given, **named)
            several = isinstance(results, tuple | list)
            flat = list(cast("tuple[Any, ...]", results)) if several else [results]
            recorded = recorder.finish([result for result in flat if result is not None])
        finally:
            recorder.close()
        calls = [node for node in recorded.graph.nodes if node.op == "call_function"]
        if recorded.mutations or recorded.bound or any(map(is_pinned, calls)):
            return None
        if any(getattr(node.target, "namespace", "aten") != "aten" for node in calls):
            return None  # torch's prims, which are no ATen
        for node in reversed(calls):
            if not node.users:
                recorded.graph.erase_node(node)
        return Form(recorded.graph, several, frozenset(i for i, each in enumerate(flat) if each is None))


def _tensors(arguments: Any) -> list[fx.Node]:
    """The nodes among arguments, each once, in order."""
    return list(dict.fromkeys(leaves(arguments, fx.Node)))


def _alike(val: Any, made: Any) -> bool:
    """Whether results are of the types that `val` says."""
    if isinstance(val, TensorSpec):
        return isinstance(made, fx.Node) and not spec_change(val, made.meta["val"])
    if not isinstance(made, tuple) or len(cast("tuple[Any, ...]", made)) != len(val):
        return False
    pairs = zip(val, cast("tuple[Any, ...]", made), strict=True)
    return all(was is None or (isinstance(new, fx.Node) and _alike(was, new)) for was, new in pairs)


def _laid_out(val: Any, made: Any, editor: Editor) -> Any:
    """The results with the strides that `val` says, copied where they have others; a No where no copy has them."""
    if isinstance(made, tuple):
        pairs = zip(val, cast("tuple[Any, ...]", made), strict=True)
        items = [new if was is None else _laid_out(was, new, editor) for was, new in pairs]
        return next((item for item in items if isinstance(item, No)), tuple(items))
    if same_strides(made.meta["val"], val):
        return made
    return restrided(editor, made, val) if is_dense(val) else No("its decomposition gives other strides")
