"""`lampwork.partition(model, inputs, backends)`: which backend would take which part of a model, without compiling."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import fx

from lampwork.api import BackendChoice, arguments_of, check_keywords, check_model, make_function, original_of
from lampwork.backends.eager import EagerBackend
from lampwork.capture.model.region import Region
from lampwork.compiled.function import Function
from lampwork.compiled.pipeline import build_entry
from lampwork.compiled.stages import Stages
from lampwork.graph.copying import copy_graph
from lampwork.partitioning.foreign import pass_context
from lampwork.partitioning.partition_plan import PartitionPlan
from lampwork.transforms.pipeline import run_passes


def partition(
    model: Callable[..., Any],
    inputs: Any,
    backends: BackendChoice | Sequence[BackendChoice],
    *,
    options: Mapping[str, Any] | None = None,
) -> PartitionPlan:
    """Show how `compile(model, backend=backends)` would divide a model, and why: `partition(...).dry_run()`.

    The model is captured, the passes run on its graphs, and it runs once in eager PyTorch; no backend compiles.

    Args:
        model: as for `compile`.
        inputs: the arguments of a call: a tuple or list of them, a mapping of keyword arguments, or a single argument.
        backends: one backend or a list, as for the keyword `backend` of `compile`.
        options: as for `compile`.

    Raises:
        OptionError: as for `compile`.
        Exception: the model raised it.
    """
    check_model(model, "partition")
    keywords = check_keywords(
        dynamic=False, backend=backends, options={**(options or {}), "strict": False, "dump": ""}
    )
    graphs: list[tuple[str, fx.Graph]] = []
    function = make_function(original_of(model), keywords, quiet=True)

    def build(region: Region, owner: Function, stages: Stages) -> Any:
        if region.graph is not None:
            graph = copy_graph(region.graph)
            run_passes(graph, owner.config, ctx=pass_context(owner.config, keywords.backends))
            graphs.append((stages.name, graph))
        return build_entry(region, owner, stages, (EagerBackend(),))

    function.build = build
    args, kwargs = arguments_of(inputs)
    function.compiled(*args, **kwargs)
    records = [record for each in function.tree() for record in each.records]
    return PartitionPlan.of(graphs, keywords.backends, records)
