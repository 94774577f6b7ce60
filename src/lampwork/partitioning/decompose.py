"""The pass `decompose-core`, for backends that ask for core ATen operators."""

from __future__ import annotations

from typing import Any, ClassVar, cast

from torch import fx

from lampwork.backends.core_aten import decomposition_of
from lampwork.backends.protocol import Backend, Traits
from lampwork.errors import BackendError
from lampwork.graph.concrete import scope_of
from lampwork.graph.copying import copy_graph
from lampwork.partitioning.assign import Answers
from lampwork.partitioning.core_forms import CoreForms
from lampwork.plugins.context import PassContext
from lampwork.plugins.registry import Place
from lampwork.records import record
from lampwork.rewriting.apply.aliasing import may_stand_for, view_base
from lampwork.rewriting.apply.apply import share_alike
from lampwork.rewriting.apply.edit import Editor, replace
from lampwork.rewriting.apply.layout import adopt_strides, propagate_strides
from lampwork.rewriting.schema import packet_name
from lampwork.standard import operator
from lampwork.verdict import No, Verdict, Yes

DECOMPOSING = Place("algebra")
"""Where the pass runs: before those of backends that look at what goes to others."""


@record
class DecomposeCore:
    """Take apart what a backend with `decompose = "core"` takes pieces of, into torch's core ATen operators.

    The backends are asked about a copy of the graph in which everything is taken apart. An operator of whose pieces
    such a backend takes none that computes something stays whole, as the next ones have kernels for it; so does what a
    backend before it takes, what is random, and what `keep_ops` names.

    before:  %y = linear(%x, %w, %b)                     the backend takes addmm
    after:   %t = permute(%w, [1, 0]), %y = addmm(%b, %x, %t)
    """

    backends: tuple[Backend, ...]
    name: ClassVar[str] = "decompose-core"

    def run(self, graph: fx.Graph, ctx: PassContext) -> None:
        asking = [number for number, each in enumerate(self.backends) if Traits.of(each).decompose]
        if not asking:
            return
        earlier = Answers(graph, self.backends[: asking[0]], _later).assign().chosen
        candidates = [
            node.name
            for node, taker in earlier.items()
            if taker == asking[0]
            and node.target not in ctx.kept
            and decomposition_of(node.target) is not None
        ]
        forms = CoreForms(scope_of(graph))
        trial = _Decomposition(copy_graph(graph), forms, ctx)
        pieces = {name: trial.apart(name) for name in candidates}
        trial.settle()
        chosen = Answers(trial.graph, self.backends, _later).assign().chosen
        real = _Decomposition(graph, forms, ctx)
        for name, found in pieces.items():
            node = real.named[name]
            if node._erased:
                continue
            if isinstance(found, No):
                ctx.refuse(self.name, f"{packet_name(node.target)}: {found.reason}")
            elif not any(chosen.get(piece) in asking for piece in found if _computes(piece)):
                node.meta["core_pieces"] = ", ".join(sorted({packet_name(p.target) for p in found}))
                ctx.refuse(self.name, f"{packet_name(node.target)}: no backend takes a piece of it")
            elif ctx.spend(self.name, node):
                real.apart(name)
        real.settle()


class _Decomposition:
    """One graph whose nodes are taken apart, by name."""

    def __init__(self, graph: fx.Graph, forms: CoreForms, ctx: PassContext) -> None:
        self.graph = graph
        self.named = {node.name: node for node in graph.nodes}
        self._forms = forms
        self._ctx = ctx
        self._restrided: list[fx.Node] = []

    def apart(self, name: str) -> list[fx.Node] | No:
        """The pieces that stand for a node from here on; or why it stays."""
        node = self.named[name]
        if node._erased:
            return No("nothing needs it")
        editor = self._ctx.editor(self.graph, node)
        made = self._forms.put(node, editor)
        verdict = made if isinstance(made, No) else self._put(node, made, editor)
        if isinstance(verdict, No):
            editor.discard()
            return verdict
        return [piece for piece in editor.made if not piece._erased]

    def _put(self, node: fx.Node, made: Any, editor: Editor) -> Verdict:
        """Have all uses of a node read what was made for it, where the caller cannot tell."""
        pairs = [(node, cast(fx.Node, made))]
        if isinstance(made, tuple):
            items = list(node.users)
            if not all(user.target is operator.getitem for user in items):
                return No("it is used as a whole")
            pairs = [(user, cast("tuple[Any, ...]", made)[cast(int, user.args[1])]) for user in items]
        verdict = share_alike([old for old, _ in pairs], [new for _, new in pairs])
        for old, new in pairs:
            verdict = verdict and may_stand_for(new, old)
            if new not in editor.made and new.meta["val"] != old.meta["val"]:
                verdict = No("its decomposition gives an operand as it is")
        if isinstance(verdict, No):
            return verdict
        for old, new in pairs:
            was = old.meta["val"]
            replace(self.graph, old, new)
            if adopt_strides(new, was):
                self._restrided.append(new)
        return Yes()

    def settle(self) -> None:
        """Bring the strides of all that follows up to date."""
        propagate_strides(self.graph, self._ctx.infer, self._restrided)
        self._restrided.clear()


def _computes(node: fx.Node) -> bool:
    return node.target is not operator.getitem and view_base(node) is None


def _later(error: BackendError, instead: str, *, calling: bool = False) -> None:
    """A wrong answer is reported once, when the graph is cut."""
