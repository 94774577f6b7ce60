"""Operators that are not recorded as they come: a handler each, which records simpler ones instead.

A handler is called as `handler(rec, op, args, kwargs)` and returns what the operator returns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from lampwork import pristine
from lampwork.errors import DataDependentError, UnsupportedOpError
from lampwork.graph.canonical_attention import (
    attention,
    attention_with_lengths,
    native_multi_head_attention,
    transformer_encoder_layer,
)
from lampwork.graph.canonical_resize import RESIZE
from lampwork.graph.canonical_strided import as_strided
from lampwork.graph.functionalize import spec_of
from lampwork.graph.known import note_known
from lampwork.graph.opinfo import op_info
from lampwork.graph.overlap import check_drawn, start_of
from lampwork.graph.shapes_common import (
    ShapeError,
    format_strides,
    infer_size,
    is_channels_last,
    is_channels_last_strided,
    wrap_dim,
)
from lampwork.graph.shapes_views import view_strides
from lampwork.graph.symnode import to_torch
from lampwork.graph.tracetensor import TraceTensor

if TYPE_CHECKING:
    from lampwork.graph.record import Recorder

aten = torch.ops.aten
Handler = Callable[["Recorder", Any, tuple[Any, ...], dict[str, Any]], Any]


def argument(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """The value that a call gives to the parameter `name` of its schema, or the parameter's default."""
    if name in kwargs:
        return kwargs[name]
    for i, parameter in enumerate(op._schema.arguments):
        if parameter.name == name:
            return args[i] if i < len(args) else parameter.default_value
    raise KeyError(name)


_ATTENTIONS = frozenset(
    {
        "scaled_dot_product_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_cudnn_attention",
    }
)


def is_random(name: str, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether this call of an operator that may draw from a generator does."""
    if name in ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"):
        return bool(args[2]) and args[1] != 0
    if name in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
        return bool(argument(op, args, kwargs, "train")) and argument(op, args, kwargs, "dropout") != 0
    if name in _ATTENTIONS:
        return argument(op, args, kwargs, "dropout_p") != 0
    return True


def _traced(rec: Recorder, value: Any) -> TraceTensor:
    return value if isinstance(value, TraceTensor) else rec.lift(value)


# --- views -----------------------------------------------------------------------------------------------------------


def _detach_(rec: Recorder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The tensor object goes on as its own detached alias; others are as they were. Eager refuses it for views."""
    tensor = _traced(rec, args[0])
    if tensor.base.source == "input" or not tensor.is_whole or getattr(tensor, "_is_param", False):
        raise UnsupportedOpError("detach_() of a view, or of a tensor from outside")
    if tensor.requires_grad:
        rec.become(tensor, rec.view(tensor, aten.detach.default, (), {}))
        tensor.base.sealed = True
    return args[0]


def _data(rec: Recorder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """tensor.data: detached, with a version counter of its own."""
    return rec.view(_traced(rec, args[0]), aten.detach.default, (), {}, own_version=True)


def _view(rec: Recorder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """view, _unsafe_view, _reshape_alias: sizes with their -1 filled in, so that equal views look equal."""
    tensor = _traced(rec, args[0])
    shape = list(infer_size(args[1], tensor.spec.numel))
    unsafe = op is aten._unsafe_view.default
    if unsafe and rec.autocast.is_composing and tensor.base.source == "fresh" and not tensor.chain:
        return _whole_view(rec, tensor, shape)
    made = rec.view(tensor, aten.view.default, (shape,), {})
    made.is_whole = unsafe
    return made


def _whole_view(rec: Recorder, tensor: TraceTensor, shape: list[int]) -> TraceTensor:
    """All that is ever seen of the memory of `tensor`, which nothing else has: eager does not call it a view."""
    node = rec.emit(aten.view.default, (rec.read(tensor), shape))
    node.meta["whole"] = True
    note_known(node, op_info(aten.view.default))
    return rec.result(spec_of(node), node)


def _reshape(rec: Recorder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A view where one is possible, else a view of a row-major copy."""
    tensor = _traced(rec, args[0])
    shape = list(infer_size(args[1], tensor.spec.numel))
    if view_strides(tensor.spec, shape) is not None:
        return rec.view(tensor, aten.view.default, (shape,), {})
    copy = rec.record(aten.clone.default, (tensor,), {"memory_format": torch.contiguous_format})
    return _whole_view(rec, copy, shape)


def _pieces(rec: Recorder, op: Any, tensor: TraceTensor, sizes: Sequence[int], dim: int) -> list[TraceTensor]:
    unsafe = op in (aten.unsafe_split.Tensor, aten.unsafe_split_with_sizes.default)
    start = 0
    pieces: list[TraceTensor] = []
    for size in sizes:
        piece = rec.view(tensor, aten.slice.Tensor, (dim, start, start + size), {})
        piece.is_whole, piece.is_piece = unsafe, not unsafe
        piece.chain = (*piece.chain[:-1], replace(piece.chain[-1], unsafe=unsafe))
        pieces.append(piece)
        start += size
    return pieces


def _split(rec: Recorder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor = _traced(rec, args[0])
    size: int = args[1]
    dim = wrap_dim(argument(op, args, kwargs, "dim"), len(tensor.spec.shape))
    extent = tensor.spec.shape[dim]
    if size < 0 or (size == 0 and extent != 0):
        raise ShapeError(f"split of {tensor.spec} into pieces of {size}")
    sizes = [min(size, extent - at) for at in range(0, extent, size)] if size else []
    return _pieces(rec, op, tensor, sizes or [extent], dim)


def _split_with_sizes(rec: Recorder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor = _traced(rec, args[0])
    dim = wrap_dim(argument(op, args, kwargs, "dim"), len(tensor.spec.shape))
    if sum(args[1]) != tensor.spec.shape[dim] or any(size < 0 for size in args[1]):
        raise ShapeError(f"split of {tensor.spec} into {list(args[1])}")
    return _pieces(rec, op, tensor, args[1], dim)


def _unsafe_chunk(rec: Recorder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """torch's own composition, which takes sizes as numbers only."""
    tensor = _traced(rec, args[0])
    chunks: int = argument(op, args, kwargs, "chunks")
    dim = wrap_dim(argument(op, args, kwargs, "dim"), len(tensor.spec.shape))
    if not tensor.spec.shape or chunks <= 0:
        raise ShapeError(f"{chunks} chunks of {tensor.spec}")
    extent = tensor.spec.shape[dim]
    if extent == 0:
        return _pieces(rec, aten.unsafe_split_with_sizes.default, tensor, [0] * chunks, dim)
    return _split(rec, aten.unsafe_split.Tensor, (tensor, -(-extent // chunks), dim), {})


def _unbind(rec: Recorder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor = _traced(rec, args[0])
    dim = wrap_dim(argument(op, args, kwargs, "dim"), len(tensor.spec.shape))
    if not tensor.spec.shape:
        raise ShapeError("unbind() of a tensor without dimensions")
    pieces = [rec.view(tensor, aten.select.int, (dim, i), {}) for i in range(tensor.spec.shape[dim])]
    for piece in pieces:
        piece.is_piece = True
    return pieces


# --- copies and casts ------------------------------------------------------------------------------------------------


def _to(rec: Recorder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """before: to.dtype(x, float32), x: float32 → x itself;  else _to_copy(x, dtype=...)."""
    tensor = _traced(rec, args[0])
    given = {p.name: argument(op, args, kwargs, p.name) for p in op._schema.arguments[1:]}
    other = given.get("other")
    dtype = given.get("dtype") or (other.dtype if other is not None else None) or tensor.spec.dtype
    device = given.get("device") or (other.device if other is not None else None) or tensor.spec.device
    device = rec.places.of(device)
    if given.get("layout") not in (None, torch.strided):
        raise UnsupportedOpError(f"{op} gives a tensor another layout")
    if device != tensor.spec.device:
        return _moved(rec, op, tensor, device, {**given, "dtype": dtype})
    return _copied(rec, tensor, dtype, given.get("memory_format"), bool(given.get("copy")))


_MOVING = frozenset({"cpu", "cuda"})
"""The types of devices that tensors are moved between within a region."""


def _moved(
    rec: Recorder, op: Any, tensor: TraceTensor, device: torch.device, given: Mapping[str, Any]
) -> TraceTensor:
    """before: to.device(x, cuda:0, float64)    after: _to_copy(x, device=cuda:0, dtype=float64)"""
    if not {device.type, tensor.spec.device.type} <= _MOVING:
        raise UnsupportedOpError(f"{op} moves a tensor from {tensor.spec.device} to {device}")
    kwargs: dict[str, Any] = {"device": device}
    if given["dtype"] is not tensor.spec.dtype:
        kwargs["dtype"] = given["dtype"]
    if given.get("non_blocking"):
        kwargs["non_blocking"] = True
    if given.get("memory_format") not in (None, torch.preserve_format):
        kwargs["memory_format"] = given["memory_format"]
    return rec.record(aten._to_copy.default, (tensor,), kwargs)


def _copied(
    rec: Recorder, tensor: TraceTensor, dtype: torch.dtype, memory_format: Any, copy: bool
) -> TraceTensor:
    if dtype is tensor.spec.dtype:
        if not copy and (memory_format in (None, torch.preserve_format) or _suggests(tensor, memory_format)):
            return tensor
        kwargs = {} if memory_format in (None, torch.preserve_format) else {"memory_format": memory_format}
        return rec.record(aten.clone.default, (tensor,), kwargs)
    kwargs = {"dtype": dtype}
    if memory_format not in (None, torch.preserve_format):
        kwargs["memory_format"] = memory_format
    return rec.record(aten._to_copy.default, (tensor,), kwargs)


def _suggests(tensor: TraceTensor, memory_format: torch.memory_format) -> bool:
    """torch's `suggest_memory_format() == memory_format`."""
    if memory_format is torch.contiguous_format:
        return not is_channels_last_strided(tensor.spec)
    return is_channels_last_strided(tensor.spec) and tensor.spec.shape == format_shape(tensor, memory_format)


def _has_format(tensor: TraceTensor, memory_format: torch.memory_format) -> bool:
    if memory_format is torch.contiguous_format:
        return tensor.spec.is_contiguous
    return is_channels_last(tensor.spec) and tensor.spec.shape == format_shape(tensor, memory_format)


def format_shape(tensor: TraceTensor, memory_format: torch.memory_format) -> tuple[int, ...]:
    """The tensor's shape if it has the rank that the memory format is for.

    Raises:
        ShapeError: it has not.
    """
    format_strides(tensor.spec, memory_format)
    return tensor.spec.shape


def _to_copy(rec: Recorder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor = _traced(rec, args[0])
    dtype = kwargs.get("dtype") or tensor.spec.dtype
    device = rec.places.of(kwargs.get("device") or tensor.spec.device)
    if device != tensor.spec.device:
        return _moved(rec, op, tensor, device, {**kwargs, "dtype": dtype})
    return _copied(rec, tensor, dtype, kwargs.get("memory_format"), copy=True)


def _contiguous(rec: Recorder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor = _traced(rec, args[0])
    wanted = argument(op, args, kwargs, "memory_format") or torch.contiguous_format
    if _has_format(tensor, wanted):
        return tensor
    return _copied(rec, tensor, tensor.spec.dtype, wanted, copy=True)


def _dropout(rec: Recorder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    probability, train = args[1], args[2]
    if not train or probability == 0 or args[0].numel() == 0:
        return args[0]
    return rec.record(op, args, kwargs)


def _channel_shuffle(rec: Recorder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor = _traced(rec, args[0])
    if tensor.numel() == 0:
        return rec.view(tensor, aten.alias.default, (), {})
    return rec.record(op, args, kwargs)


def _randint_like(rec: Recorder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The function has no gradient; the operator itself, run under autograd, has one that is not implemented."""
    tensor = _traced(rec, args[0])
    if tensor.requires_grad:
        tensor = rec.view(tensor, aten.detach.default, (), {})
    return rec.record(op, (tensor, *args[1:]), kwargs)


def _lift_fresh(rec: Recorder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A literal: one element becomes `full`, more become a bound constant."""
    tensor: torch.Tensor = args[0]
    if isinstance(tensor, TraceTensor):
        return tensor
    if tensor.numel() == 1 and tensor.device.type in _MOVING and not tensor.is_quantized:
        value = _value_of(tensor)
        return rec.record(
            aten.full.default,
            (list(tensor.shape), value),
            {"dtype": tensor.dtype, "device": tensor.device},
        )
    return rec.constant(tensor)


def _value_of(tensor: torch.Tensor) -> bool | int | float | complex:
    """The number in a real one-element tensor."""
    return tensor.item()


# --- writes ----------------------------------------------------------------------------------------------------------


def _copy_(rec: Recorder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    target, source = _traced(rec, args[0]), _traced(rec, args[1])
    wants_grad = pristine.is_grad_enabled() and source.requires_grad
    node, spec = rec.read(source), source.spec
    if spec.device != target.spec.device:
        source = _moved(
            rec, op, source, target.spec.device, {"dtype": target.spec.dtype, **_hurry(op, args, kwargs)}
        )
        node, spec = rec.read(source), source.spec
    if spec.shape != target.spec.shape:
        node = rec.emit(aten.expand.default, (node, list(target.spec.shape)))
    if spec.dtype is not target.spec.dtype:
        node = rec.emit(aten._to_copy.default, (node,), {"dtype": target.spec.dtype})
    else:
        # The target's memory is its own: without a copy it would be the source's.
        node = rec.emit(aten.clone.default, (node,))
    rec.assign(target, node, node.meta["val"], wants_grad)
    return args[0]


def _hurry(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    return {"non_blocking": op is aten.copy_.default and argument(op, args, kwargs, "non_blocking")}


def _fill_(rec: Recorder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    target = _traced(rec, args[0])
    value: Any = 0 if op is aten.zero_.default else args[1]
    if isinstance(value, torch.Tensor):
        return _copy_(rec, op, (target, value), {})
    node = rec.emit(
        aten.full.default,
        (list(target.spec.shape), value),
        {"dtype": target.spec.dtype, "device": target.spec.device},
    )
    rec.assign(target, node, node.meta["val"])
    return args[0]


def _bernoulli_(rec: Recorder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """bernoulli_(x, p=0.5): unlike this one, the functional operator has no default."""
    target = _traced(rec, args[0])
    check_drawn(op, target.spec)
    rest = {"generator": argument(op, args, kwargs, "generator")}
    value = rec.record(aten.bernoulli.p, (target, argument(op, args, kwargs, "p")), rest)
    rec.assign(target, rec.read(value), value.spec)
    return args[0]


def _mask_of(indices: Sequence[Any]) -> bool:
    return any(isinstance(i, torch.Tensor) and i.dtype in (torch.bool, torch.uint8) for i in indices)


def _index(rec: Recorder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if _mask_of(args[1]):
        raise DataDependentError(
            "indexing with a mask gives a shape that depends on data",
            fix="use torch.where, or move this line out of the compiled function",
        )
    return rec.record(op, args, kwargs)


def _index_put_(rec: Recorder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    target = _traced(rec, args[0])
    with rec.again():
        value = aten.index_put.default(target, *args[1:], **kwargs)
    rec.assign(target, rec.read(value), value.spec, value.spec.requires_grad)
    return args[0]


def _index_put(rec: Recorder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """before: index_put(x, [mask], one value) → where(mask, value, x); other masks need data."""
    tensor, indices, values = _traced(rec, args[0]), args[1], args[2]
    if not _mask_of(indices):
        return rec.record(op, args, kwargs)
    accumulate = argument(op, args, kwargs, "accumulate")
    mask = indices[0]
    single = len(indices) == 1 and values.numel() == 1 and mask.dtype is torch.bool
    if not single or accumulate:
        raise DataDependentError(
            "a masked assignment of several values takes as many as the mask has true elements",
            fix="use torch.where, or move this line out of the compiled function",
        )
    if mask.shape != tensor.shape[: mask.dim()] or values.dtype is not tensor.dtype:
        raise ShapeError(f"a masked assignment of {values.dtype} to {tensor.spec} under {tuple(mask.shape)}")
    with rec.again():
        full_mask = mask.reshape(tuple(mask.shape) + (1,) * (tensor.dim() - mask.dim()))
        return pristine.where(full_mask, values.reshape(()), tensor)


def _one_hot(rec: Recorder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """With the number of classes given the shape is known; whole, it checks the values when the graph runs."""
    if argument(op, args, kwargs, "num_classes") <= 0:
        raise DataDependentError(
            "one_hot() without num_classes takes it from the data",
            fix="pass num_classes, or move this line out of the compiled function",
        )
    return rec.record(op, args, kwargs)


# --- norms with running statistics -----------------------------------------------------------------------------------


def _batch_norm(rec: Recorder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """In training the running statistics are written, which the schema does not tell."""
    x, weight, bias, mean, var, training, momentum, eps = args[:8]
    if not training or mean is None:
        return rec.record(op, args, kwargs)
    mean, var = _traced(rec, mean), _traced(rec, var)
    if len(x.shape) < 2 or 0 in x.shape:
        raise UnsupportedOpError(f"{op} in training of {x.spec}")
    with rec.again():
        out, _, _, new_mean, new_var = aten._native_batch_norm_legit_functional.default(
            x, weight, bias, mean, var, True, momentum, eps
        )
        # Eager writes the statistics behind autograd's back.
        new_mean, new_var = new_mean.detach(), new_var.detach()
    rec.write(mean, rec.read(new_mean))
    rec.write(var, rec.read(new_var))
    return out


def _embedding_bag(rec: Recorder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """before: _embedding_bag_forward_only(weight, ...), weight requires grad    after: _embedding_bag(weight, ...)

    torch chooses by what autograd knows of the weight, of which recording below autograd shows nothing.
    """
    given = (*args, *kwargs.values())
    wanted = any(isinstance(value, torch.Tensor) and value.requires_grad for value in given)
    return rec.record(aten._embedding_bag.default if wanted else op, args, kwargs)


def _ctc_loss(rec: Recorder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """With lengths that are numbers, the shape of the result follows from them."""
    return rec.record(op, args, kwargs)


def _lstsq(rec: Recorder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Whether there are residuals depends on the rank of the matrix for two of the drivers.

    Raises:
        DataDependentError: for these.
    """
    driver = argument(op, args, kwargs, "driver")
    if driver in ("gelss", "gelsd"):
        raise DataDependentError(
            f"{op} with the driver {driver} gives residuals if the matrix has full rank",
            fix="use the driver gelsy or gels",
        )
    return rec.record(op, args, kwargs)


def _polygamma_(rec: Recorder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """before: x.polygamma_(n)    after: x.copy_(polygamma(n, x)), whose arguments have another order"""
    tensor = _traced(rec, args[0])
    made = rec.record(aten.polygamma.default, (argument(op, args, kwargs, "n"), tensor), {})
    rec.assign(tensor, rec.read(made), made.spec, made.requires_grad)
    return args[0]


def _conj(rec: Recorder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Torch's lazy conjugates and negatives: views, whose values the graph computes at once."""
    tensor = _traced(rec, args[0])
    physical = aten._conj_physical.default if op is aten._conj.default else aten.neg.default
    made = rec.view(tensor, physical, (), {})
    if made.spec.strides != tensor.spec.strides:
        raise UnsupportedOpError(f"{op} of a tensor that is not dense")
    return made


def _resolve(rec: Recorder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor = _traced(rec, args[0])
    lazy = tensor.is_conj() if op is aten.resolve_conj.default else tensor.is_neg()
    return rec.record(aten.clone.default, (tensor,), {}) if lazy else tensor


def _view_as_real(rec: Recorder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor = _traced(rec, args[0])
    if tensor.is_conj():
        raise UnsupportedOpError("the real view of a lazily conjugated tensor")
    return rec.view(tensor, op, (), {})


def _view_as_complex(rec: Recorder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Eager refuses memory that begins between two pairs of its storage."""
    tensor = _traced(rec, args[0])
    period, place = 2 * tensor.spec.dtype.itemsize, start_of(tensor)
    if tensor.base.source == "input":
        if rec.place_of is None:
            return rec.view(tensor, op, (), {})
        given = next(each for each in (*rec.inputs, *rec.bound) if each.base is tensor.base)
        place = place + rec.place_of(given.tensor, period)
    if place % period != 0:
        raise UnsupportedOpError(f"{op} of memory with an odd storage_offset")
    return rec.view(tensor, op, (), {})


def _foreach(rec: Recorder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A list of tensors at once: torch's own slow way, one tensor after the other."""
    with rec.again():
        key = torch._C.DispatchKey.CompositeExplicitAutograd
        return op._op_dk(key, *to_torch(args), **to_torch(kwargs))  # pyright: ignore


# --- what autograd records --------------------------------------------------------------------------------------------


def _zeros_without_memory(rec: Recorder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Autograd makes such zeros where a gradient vanishes."""
    return rec.record(aten.zeros.default, args, kwargs)


SPECIAL: Mapping[Any, Handler] = {
    aten.view.default: _view,
    aten._unsafe_view.default: _view,
    aten._reshape_alias.default: _view,
    aten.reshape.default: _reshape,
    aten.as_strided.default: as_strided,
    aten.split.Tensor: _split,
    aten.unsafe_split.Tensor: _split,
    aten.split_with_sizes.default: _split_with_sizes,
    aten.unsafe_split_with_sizes.default: _split_with_sizes,
    aten.unsafe_chunk.default: _unsafe_chunk,
    aten.unbind.int: _unbind,
    aten.to.dtype: _to,
    aten.to.device: _to,
    aten.to.dtype_layout: _to,
    aten.to.other: _to,
    aten._to_copy.default: _to_copy,
    aten.contiguous.default: _contiguous,
    aten.dropout.default: _dropout,
    aten.feature_dropout.default: _dropout,
    aten.alpha_dropout.default: _dropout,
    aten.feature_alpha_dropout.default: _dropout,
    aten.channel_shuffle.default: _channel_shuffle,
    aten.randint_like.default: _randint_like,
    aten.randint_like.low_dtype: _randint_like,
    aten.lift_fresh.default: _lift_fresh,
    aten.lift.default: _lift_fresh,
    aten.detach_.default: _detach_,
    aten.data.default: _data,
    aten.copy_.default: _copy_,
    aten.fill_.Scalar: _fill_,
    aten.fill_.Tensor: _fill_,
    aten.zero_.default: _fill_,
    aten.bernoulli_.float: _bernoulli_,
    aten.index.Tensor: _index,
    aten._unsafe_index.Tensor: _index,
    aten.index_put_.default: _index_put_,
    aten.index_put.default: _index_put,
    aten.one_hot.default: _one_hot,
    aten.batch_norm.default: _batch_norm,
    aten._embedding_bag_forward_only.default: _embedding_bag,
    aten._ctc_loss.default: _ctc_loss,
    aten.linalg_lstsq.default: _lstsq,
    aten.polygamma_.default: _polygamma_,
    aten._conj.default: _conj,
    aten._neg_view.default: _conj,
    aten.resolve_conj.default: _resolve,
    aten.resolve_neg.default: _resolve,
    aten.view_as_real.default: _view_as_real,
    aten.view_as_complex.default: _view_as_complex,
    aten.scaled_dot_product_attention.default: attention,
    aten._scaled_dot_product_flash_attention.default: attention_with_lengths,
    aten._scaled_dot_product_cudnn_attention.default: attention_with_lengths,
    aten._native_multi_head_attention.default: native_multi_head_attention,
    aten._transformer_encoder_layer_fwd.default: transformer_encoder_layer,
    aten._efficientzerotensor.default: _zeros_without_memory,
    **RESIZE,
}


def handler_of(op: Any) -> Handler | None:
    """The handler for `op`, None if it is recorded by what its schema says."""
    if str(op._schema.name).startswith("aten::_foreach_"):
        return _foreach
    return SPECIAL.get(op)
