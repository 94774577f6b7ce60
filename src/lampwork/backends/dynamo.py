"""`torch.compile(model, backend="lampwork")`: Lampwork behind torch's own front door.

TorchDynamo captures the Python and hands over FX graphs of torch calls; each is compiled as any function is. Parameters
arrive as graph inputs; those that Dynamo marks as static are bound, so that weights are packed here too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from torch import Tensor, fx, nn
from torch._dynamo.exc import ShortenTraceback
from torch.fx._lazy_graph_module import _LazyGraphModule

from lampwork.errors import OptionError


def lampwork_backend(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """A TorchDynamo backend, found through the `torch_dynamo_backends` entry point.

    Args:
        gm: the captured graph, over torch functions.
        example_inputs: one per placeholder: tensors (fake or real) and ints.
        mode, options: those given to `torch.compile`; they mean what they mean to `lampwork.compile`.

    Raises:
        OptionError: one of these is wrong, at the first call, as torch.compile does not look at them before.
    """
    from lampwork.api import compile

    # Dynamo's modules make their Python code when first called; it is what we capture, so it has to be there.
    _LazyGraphModule.force_recompile(gm)
    static = _static_inputs(gm)
    # `forward`, not the module: a GraphModule's own __call__ only adds error reports.
    target = cast(Callable[..., Any], gm.forward if not static else _Bound(gm, static))
    try:
        inner = compile(target, mode=mode, options=options)
    except OptionError as error:
        raise _RefusedOption(error) from None
    if not static:
        return inner
    numbers = [i for i in range(len(example_inputs)) if i not in static]
    expected = tuple(static.items())

    def call(*inputs: Any) -> Any:
        for number, tensor in expected:
            if inputs[number] is not tensor:
                return gm(*inputs)
        return inner(*[inputs[i] for i in numbers])

    return call


class _RefusedOption(OptionError, ShortenTraceback):
    """An OptionError that TorchDynamo hands on as it is, where it would wrap any other in one of its own."""

    def __init__(self, error: OptionError) -> None:
        self.code, self.cause, self.fix, self.location = error.code, error.cause, error.fix, error.location
        # The frame is where a traceback would be cut.
        ShortenTraceback.__init__(self, str(self), first_useful_frame=None)


def _static_inputs(gm: fx.GraphModule) -> dict[int, Tensor]:
    """Placeholder number -> the parameter or buffer that is passed there on every call, by Dynamo's own marks."""
    found: dict[int, Tensor] = {}
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    for number, node in enumerate(placeholders):
        argument = node.meta.get("grapharg")
        example = getattr(argument, "example", None)
        if isinstance(example, Tensor) and hasattr(example, "_dynamo_static_input_type"):
            found[number] = example
    return found


class _Bound(nn.Module):
    """`gm` with some of its inputs filled in."""

    def __init__(self, gm: fx.GraphModule, static: dict[int, Tensor]) -> None:
        super().__init__()
        self.gm = gm
        self.static = static
        self.total = sum(node.op == "placeholder" for node in gm.graph.nodes)

    def forward(self, *inputs: Any) -> Any:
        rest = iter(inputs)
        full = [self.static[i] if i in self.static else next(rest) for i in range(self.total)]
        return self.gm.forward(*full)
