"""`lampwork.place`: run each part of a model on the device where the whole is fastest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from lampwork import pristine
from lampwork.api import arguments_of, check_keywords, check_model, make_function, original_of
from lampwork.capture.model.region import Region
from lampwork.compiled.function import Function
from lampwork.compiled.stages import Stages
from lampwork.errors import GraphBreakError, LampworkError, OptionError, text_of
from lampwork.graph.spec import TensorSpec
from lampwork.placement.backend import Placed, Seen, Watching, calls_of, operators_of
from lampwork.placement.choosing import Call, choose
from lampwork.placement.devices import Device, resolve_devices
from lampwork.placement.execution import Placing
from lampwork.placement.pieces import cut
from lampwork.placement.plan import PlacementPlan
from lampwork.placement.reasons import plan_of
from lampwork.swapping.difference import compare


class PlacedModel:
    """A model on the devices of its `plan`. Calls are those of the model; no gradients are recorded."""

    def __init__(self, model: Callable[..., Any], compiled: Callable[..., Any], plan: PlacementPlan) -> None:
        self.model = model
        self.plan = plan
        self._compiled = compiled
        self._module = model if isinstance(model, nn.Module) else None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The model's result, on the device where the model itself would give it.

        Raises:
            OptionError: the model is in training mode.
        """
        if self._module is not None and self._module.training:
            raise _training()
        if not pristine.is_grad_enabled():
            return self._compiled(*args, **kwargs)
        with pristine.no_grad():
            return self._compiled(*args, **kwargs)

    def __str__(self) -> str:
        return str(self.plan)

    def __repr__(self) -> str:
        return f"PlacedModel({self.plan!r})"


def place(
    model: Callable[..., Any],
    inputs: Any,
    devices: Sequence[str | torch.device | Device] = ("cpu", "cuda"),
    *,
    options: Mapping[str, Any] | None = None,
) -> PlacedModel:
    """Find out by measurement which device should run which part of a model, and run it that way.

    The model is captured as one graph and cut into parts at narrow places. Each part is compiled for each device and
    timed there, and so are copies between the devices. The cheapest assignment of parts to devices is compared with
    each device alone, on whole calls, and the faster one is kept. `str()` of the result says what runs where, and why.

    The model's tensors stay as they are, where they are: weights that are needed elsewhere are copied, once. It is
    called some dozens of times, so hooks run, and what forward counts in attributes counts on. Inputs come from
    the caller's device and results go there; those copies count. When a weight has changed, it is copied again; inputs
    of other sizes run with the same assignment.

    Args:
        model: a module in evaluation mode or a function, for inference.
        inputs: the arguments of a typical call, on the device of the model: a tensor, a tuple or list of arguments, a
            mapping of keyword arguments.
        devices: "cpu", "cuda", "cuda:1", "cpu:4 threads", or objects of the class `Device`. What this machine lacks is
            left out, and the plan says so.
        options: those of `lampwork.compile`, for each part.

    Raises:
        OptionError: an unknown device; none that is there; a model that is in training mode, lies on several devices,
            writes to its own buffers or cannot run on any of the devices; inputs that do not fit it.
        GraphBreakError: the model cannot be captured as one graph.
    """
    check_model(model, "place")
    model = original_of(model)
    if isinstance(model, nn.Module) and any(module.training for module in model.modules()):
        raise _training()
    found, absent = resolve_devices(devices, options)
    check_keywords(options=options)
    args, kwargs = arguments_of(inputs)
    with torch.random.fork_rng(_generators(found)), pristine.no_grad():
        pristine.manual_seed(0)
        seen, expected = _seen(model, *_cloned((args, kwargs)))
        home = _home(seen, found)
        pieces = tuple(cut(seen.graph, _owners(model, seen.weights), home.where))
        placing = Placing(seen.graph, seen.weights, pieces, tuple(found), home)

        def serve(assignment: tuple[int, ...]) -> Call:
            served = _served(model, placing, assignment)
            given, named = _cloned((args, kwargs))
            return Call(served, lambda: served(*given, **named))

        choice = choose(placing, seen.inputs, serve)
        pristine.manual_seed(0)
        given, named = _cloned((args, kwargs))
        differences = compare(expected, choice.model(*given, **named))
    difference = max((each.relative for each in differences), default=0.0)
    return PlacedModel(model, choice.model, plan_of(placing, choice, tuple(absent), difference))


def _generators(devices: Sequence[Device]) -> list[int]:
    """The CUDA devices whose generators are in use, which seeding reaches."""
    used = torch.cuda.is_initialized() or any(device.where.type == "cuda" for device in devices)
    return list(range(torch.cuda.device_count())) if used else []


def _cloned(value: Any) -> Any:
    """Models may write into their arguments."""
    return pytree.tree_map_only(Tensor, lambda tensor: tensor.detach().clone(), value)


def _training() -> OptionError:
    return OptionError("place() is for inference, and the model is in training mode", fix="call model.eval()")


def _seen(model: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Seen, Any]:
    """The model's graph, its weights, and what reaches the graph in a call; and eager's result."""
    watching = Watching()
    regions: list[Region] = []
    function = _function(model, watching, fullgraph=True)
    build = function.build

    def build_and_note(region: Region, owner: Function, stages: Stages) -> Any:
        regions.append(region)
        return build(region, owner, stages)

    function.build = build_and_note
    try:
        result = function.compiled(*args, **kwargs)
    except GraphBreakError as error:
        raise GraphBreakError(
            f"place() needs the model as one graph: {error.cause}",
            fix=error.fix or "place the modules before and after it one by one",
            location=error.location,
            code=error.code,
        ) from error
    except LampworkError:
        raise
    except Exception as error:
        raise OptionError(
            f"inputs do not fit the model, which raised {text_of(error)}",
            fix="pass what the model is called with: a tensor, a tuple of arguments, a mapping of keyword arguments",
        ) from error
    if len(watching.seen) != 1 or not calls_of(watching.seen[0].graph):
        raise OptionError(
            "the model computes nothing with tensors that could be placed", fix="pass a module that does"
        )
    _refuse_writes(regions[-1])
    return watching.seen[0], result


def _function(model: Callable[..., Any], backend: Any, *, fullgraph: bool = False) -> Function:
    keywords = check_keywords(fullgraph=fullgraph, dynamic=False, backend=backend)
    return make_function(model, keywords, quiet=True)


def _refuse_writes(region: Region) -> None:
    written = [target - len(region.inputs) for target, _ in region.mutations]
    names = [region.bound_names[number] for number in written if number >= 0]
    if names:
        raise OptionError(
            f"the model writes to {', '.join(names)} on each call, so copies on other devices would go stale",
            fix="pass that state as an argument and return it, or place the modules that do not write",
        )


def _home(seen: Seen, devices: Sequence[Device]) -> Device:
    """The device that has the model's tensors."""
    specs = [cast(TensorSpec, node.meta["val"]) for node in seen.graph.nodes if node.op == "placeholder"]
    # Numbers on the CPU go with tensors of all devices.
    places = dict.fromkeys(spec.device for spec in specs if spec.shape) or dict.fromkeys(
        s.device for s in specs
    )
    if len(places) > 1:
        raise OptionError(
            f"the model's tensors lie on several devices: {', '.join(map(str, places))}",
            fix="move the model and its inputs to one of them; place() copies what it needs elsewhere",
        )
    where = next(iter(places), torch.device("cpu"))
    return next((d for d in devices if d.memory == str(where)), Device(str(where), where))


def _owners(model: object, weights: Mapping[fx.Node, Tensor]) -> dict[fx.Node, str]:
    """For each bound placeholder, the name of the module that has the tensor; "" for the root and other tensors."""
    names: dict[int, str] = {}
    if isinstance(model, nn.Module):
        for prefix, module in model.named_modules():
            for tensor in (*module._parameters.values(), *module._buffers.values()):
                if tensor is not None:
                    names.setdefault(tensor.data_ptr(), prefix)
    return {node: names.get(tensor.data_ptr(), "") for node, tensor in weights.items()}


def _served(model: Callable[..., Any], placing: Placing, assignment: tuple[int, ...]) -> Callable[..., Any]:
    """What runs the model by an assignment."""
    first = placing.devices[assignment[0]]
    if len(set(assignment)) == 1 and first.memory == placing.home.memory:
        whole = first.compile_whole(model)
        if whole is not None:
            return whole
    calls = calls_of(placing.graph)
    owner = {node: number for number, piece in enumerate(placing.pieces) for node in piece.nodes}
    backend = Placed(
        (*placing.devices, placing.home),
        operators_of(calls),
        tuple(owner.get(node, -1) for node in calls),
        assignment,
    )
    return _function(model, backend).compiled
