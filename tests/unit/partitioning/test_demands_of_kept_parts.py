"""What was asked of symbols while a graph was compiled is asked of those of an equal graph that gets its code."""

from __future__ import annotations

from typing import Any, ClassVar, cast

import torch
from torch import fx

from lampwork import config
from lampwork.backends.native.compile import NativeBackend
from lampwork.backends.protocol import CompileOptions
from lampwork.graph.concrete import scope_of
from lampwork.graph.record import Recorder
from lampwork.graph.spec import TensorSpec
from lampwork.graph.symbols import Scope, SymbolicInt
from lampwork.loops.ir.index import Index
from lampwork.partitioning.compiling import compile_graph


class Asking(NativeBackend):
    """Chooses by whether rows are many."""

    name: ClassVar[str] = "asking"

    def compile(self, graph: fx.Graph, example_inputs: Any, options: CompileOptions) -> Any:
        scope = scope_of(graph)
        assert scope is not None
        scope.decide(">=", Index.sym("s0") - 5)
        scope.derive(cast(Any, SymbolicInt(scope, Index.sym("s0"), scope.hints["s0"])) * 0.5)
        return super().compile(graph, example_inputs, options)


def recorded(rows: int) -> tuple[fx.Graph, Scope]:
    recorder = Recorder()
    size: Any = recorder.scope.symbol(rows)
    spec = TensorSpec((size, 3), (3, 1), torch.float32, torch.device("cpu"))
    x = recorder.input(torch.zeros(rows, 3), "x", False, spec)
    with recorder:
        y: Any = x.cosh().sinh().mul(0.123)
    return recorder.finish([y]).graph, recorder.scope


def test_conditions_and_floats_come_along() -> None:
    backend, options = Asking(), CompileOptions(config.current())
    first, scope = recorded(8)
    made = compile_graph(backend, first, options)
    again, other = recorded(9)
    assert compile_graph(backend, again, options) is made
    assert [str(each) for each in other.conditions] == [str(each) for each in scope.conditions]
    assert other.derived.keys() == scope.derived.keys() != set()


def test_code_for_other_sizes_is_not_taken() -> None:
    backend, options = Asking(), CompileOptions(config.current())
    made = compile_graph(backend, recorded(8)[0], options)
    few, scope = recorded(3)
    assert compile_graph(backend, few, options) is not made
    assert "s0 <= 4" in map(str, scope.conditions)


def test_scopes_that_were_asked_otherwise_have_code_of_their_own() -> None:
    backend, options = Asking(), CompileOptions(config.current())
    made = compile_graph(backend, recorded(8)[0], options)
    asked, scope = recorded(8)
    scope.decide("!=", Index.sym("s0") - 6)
    assert compile_graph(backend, asked, options) is not made
