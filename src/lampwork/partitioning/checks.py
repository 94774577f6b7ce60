"""What a backend compiled, held to its graph: the outputs it owes, the inputs it must not touch, memory it shares."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, fx
from torch.nn import Parameter

from lampwork import pristine
from lampwork.errors import BackendResultError, BackendWriteError
from lampwork.graph.spec import TensorSpec
from lampwork.partitioning.compiling import Made
from lampwork.partitioning.unwritten import versions_of
from lampwork.records import record
from lampwork.rewriting.apply.aliasing import storage_root


@record
class Expected:
    """`layouts`: shape, strides, dtype and device of each output. `roots`: for each output, the number of the
    placeholder whose memory it shares, else -1 and less, equal for outputs that share theirs."""

    layouts: tuple[tuple[tuple[int, ...], tuple[int, ...], torch.dtype, torch.device], ...]
    roots: tuple[int, ...]

    @staticmethod
    def of(graph: fx.Graph) -> Expected:
        """What the outputs of a graph without symbols are like."""
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        numbers = {node: i for i, node in enumerate(placeholders)}
        outputs = cast("tuple[fx.Node, ...]", next(iter(reversed(graph.nodes))).args[0])
        specs = [cast(TensorSpec, node.meta["val"]) for node in outputs]
        roots: list[int] = []
        for node in outputs:
            root = storage_root(node)
            roots.append(numbers.setdefault(root, -1 - len(numbers)))
        layouts = tuple((spec.shape, spec.strides, spec.dtype, spec.device) for spec in specs)
        return Expected(layouts, tuple(roots))


def fit(results: Any, expected: Expected, copies: frozenset[int], name: str) -> list[Tensor]:
    """The outputs in the layout that the graph says.

    Raises:
        BackendResultError: their number, a shape, a dtype or a device is wrong, or something is no plain tensor.
    """
    if not isinstance(results, (tuple, list)):
        results = (results,)
    outputs = list(cast("Sequence[Any]", results))
    if len(outputs) != len(expected.layouts):
        raise _wrong(f"backend {name} returned {len(outputs)} outputs, the graph has {len(expected.layouts)}")
    for number, (shape, strides, dtype, device) in enumerate(expected.layouts):
        output = outputs[number]
        if type(output) is not Tensor and type(output) is not Parameter:
            raise _wrong(
                f"backend {name} returned {type(output).__name__} as output {number}, expected a tensor"
            )
        if output.shape != shape or output.dtype is not dtype:
            raise _wrong(
                f"backend {name} returned {_text(output.dtype, output.shape)} as output {number}, "
                f"expected {_text(dtype, shape)}"
            )
        if output.device != device:
            raise _wrong(f"backend {name} returned output {number} on {output.device}, expected {device}")
        if output.requires_grad:
            output = output.detach()
        if output.is_neg() or output.is_conj():
            output = output.resolve_neg().resolve_conj()  # others read the memory as it is
        # Others have been compiled for the layout of eager PyTorch's result, and the caller can see it.
        same = output.stride() == strides
        if number in copies or not (same or _same_layout(output, strides)):
            output = _laid_out(output, strides)
        elif not same:
            output = output.as_strided(shape, strides)
        outputs[number] = output
    return outputs


def _same_layout(output: Tensor, strides: Sequence[int]) -> bool:
    """Strides differ only where there is no second element."""
    if output.numel() == 0:
        return True
    return all(
        size == 1 or have == want
        for size, have, want in zip(output.shape, output.stride(), strides, strict=True)
    )


def _laid_out(output: Tensor, strides: tuple[int, ...]) -> Tensor:
    """A copy with exactly these strides, whatever they are. Of elements that share a place one is taken: those that
    the graph puts in one place are equal."""
    shape = output.shape
    repeated = [
        dim for dim, (size, stride) in enumerate(zip(shape, strides, strict=True)) if size and not stride
    ]
    for dim in repeated:  # torch refuses to write to what is expanded
        output = output.narrow(dim, 0, 1)
    memory = pristine.empty_strided(output.shape, strides, dtype=output.dtype, device=output.device)
    return memory.copy_(output).as_strided(shape, strides)


def _text(dtype: torch.dtype, shape: Sequence[int]) -> str:
    return f"{str(dtype).removeprefix('torch.')}{list(shape)}"


def _wrong(text: str) -> BackendResultError:
    return BackendResultError(text, fix="return all outputs of the graph, in order, as its specs say")


def checked_run(
    made: Made,
    call: Callable[[Sequence[Tensor]], Any],
    tensors: Sequence[Tensor],
    expected: Expected,
    n_inputs: int,
    name: str,
) -> list[Tensor]:
    """Run on copies of the inputs, and look at all that later runs take for granted.

    What comes after the first `n_inputs` tensors are weights, which are large: the first run only has copies of them.

    An output in memory that is not its own (an input's, another output's, one that the function uses again) where the
    graph gives it its own is copied, on this and all later runs.

    Raises:
        BackendResultError: as `fit`.
        BackendWriteError: an input has another value than before, or a setting of this thread, which is put back.
        Exception: what `call` raises.
    """
    copied = len(tensors) if not made.seen else n_inputs
    copies = [*map(_copy, tensors[:copied]), *tensors[copied:]]
    before, settings = versions_of(copies), _settings()
    try:
        results = call(copies)
    finally:
        left = _settings()
        _restore(settings)
    if left != settings:
        raise BackendWriteError(
            f"backend {name} changed torch's settings in a call: {_changed(settings, left)}",
            fix="have it put back what it sets, or use a context manager such as torch.no_grad()",
        )
    if versions_of(copies) != before or not all(map(_same, copies[:copied], tensors)):
        raise BackendWriteError(
            f"backend {name} wrote to its inputs", fix="have it copy what it writes to: graphs are functional"
        )
    outputs = fit(results, expected, frozenset(), name)
    shared = frozenset(_shared(outputs, copies, made.seen, expected))
    made.copies |= shared
    made.checks -= 1
    made.seen = tuple(outputs) if made.checks else ()
    # They may lie in the copies, or in what the second run shows to be used again.
    return fit([output.clone() for output in outputs], expected, frozenset(), name)


def _settings() -> dict[str, Any]:
    """What torch is told in this thread, and programs would notice."""
    return {
        "grad mode": pristine.is_grad_enabled(),
        "the number of threads": pristine.get_num_threads(),
        "autocast on the CPU": pristine.is_autocast_enabled("cpu"),
    }


def _restore(settings: Mapping[str, Any]) -> None:
    if settings != _settings():
        torch._C._set_grad_enabled(settings["grad mode"])
        pristine.set_num_threads(settings["the number of threads"])
        pristine.set_autocast_enabled("cpu", settings["autocast on the CPU"])


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    return ", ".join(f"{k} is {after[k]}, was {v}" for k, v in before.items() if after[k] != v)


def _copy(tensor: Tensor) -> Tensor:
    """A tensor of the same values, sizes and strides in memory of its own."""
    if tensor.numel() == 0:
        return tensor.detach().clone()
    source = tensor.detach()
    extent = 1 + sum((n - 1) * s for n, s in zip(source.shape, source.stride(), strict=True))
    return source.as_strided((extent,), (1,)).clone().as_strided(source.shape, source.stride())


def _same(copy: Tensor, original: Tensor) -> bool:
    """Equal, where nan equals nan."""
    if pristine.equal(copy, original):
        return True
    return bool(((copy == original) | ((copy != copy) & (original != original))).all())


def _shared(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], earlier: Sequence[Tensor], expected: Expected
) -> list[int]:
    """The numbers of the outputs in memory that the graph does not put them in."""
    owners: dict[int, int | None] = {_memory(tensor): None for tensor in earlier}
    owners.update({_memory(tensor): number for number, tensor in enumerate(inputs)})
    found: list[int] = []
    for number, output in enumerate(outputs):
        if output.numel() == 0:
            continue
        root = expected.roots[number]
        if owners.setdefault(_memory(output), root) != root:
            found.append(number)
    return found


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
