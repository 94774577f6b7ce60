"""Shapes of the operators that networks are made of: products, convolutions, pools, norms, losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, cast

import torch

from lampwork.errors import UnsupportedOpError
from lampwork.graph.shapes_attention import attention, lstm, packed_lstm, packed_rnn, rnn
from lampwork.graph.shapes_common import (
    ShapeError,
    broadcast,
    channels_last_strides,
    is_channels_last_strided,
    iterator_strides,
    like,
    preserved_strides,
    suggested_strides,
)
from lampwork.graph.shapes_cuda import accumulated, is_cuda, keeps_channels_last
from lampwork.graph.shapes_views import squeeze_dim, unsqueeze
from lampwork.graph.spec import TensorSpec, contiguous_strides
from lampwork.graph.symbols import hint_of, is_integer

aten = torch.ops.aten

# --- products --------------------------------------------------------------------------------------------------------


def linear(x: TensorSpec, weight: TensorSpec, bias: TensorSpec | None = None) -> TensorSpec:
    if x.shape[-1:] != weight.shape[-1:] or not x.shape or x.dtype is not weight.dtype:
        raise ShapeError(f"linear of {x} by {weight}")
    if bias is not None and (bias.dtype is not x.dtype or bias.shape not in (weight.shape[:-1], ())):
        raise ShapeError(f"linear of {x} by {weight} with bias {bias}")
    return like(x, (*x.shape[:-1], *weight.shape[:-1]))


def matmul(a: TensorSpec, b: TensorSpec) -> TensorSpec:
    if not a.shape or not b.shape or a.dtype is not b.dtype:
        raise ShapeError(f"matmul of {a} by {b}")
    rows = a.shape[-2:-1]
    columns = b.shape[-1:] if len(b.shape) > 1 else ()
    inner = b.shape[-2:-1] if len(b.shape) > 1 else b.shape
    if a.shape[-1:] != inner:
        raise ShapeError(f"matmul of {a} by {b}")
    return like(a, (*broadcast((a.shape[:-2], b.shape[:-2])), *rows, *columns))


def mm(a: TensorSpec, b: TensorSpec) -> TensorSpec:
    if len(a.shape) != 2 or len(b.shape) != 2:
        raise ShapeError(f"mm of {a} by {b}")
    return matmul(a, b)


def int_mm(a: TensorSpec, b: TensorSpec) -> TensorSpec:
    if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[1] != b.shape[0]:
        raise ShapeError(f"_int_mm of {a} by {b}")
    return like(a, (a.shape[0], b.shape[1]), torch.int32)


def bmm(a: TensorSpec, b: TensorSpec) -> TensorSpec:
    if len(a.shape) != 3 or len(b.shape) != 3 or a.shape[0] != b.shape[0]:
        raise ShapeError(f"bmm of {a} by {b}")
    return matmul(a, b)


def addmm(c: TensorSpec, a: TensorSpec, b: TensorSpec, **_: Any) -> TensorSpec:
    result = mm(a, b)
    if broadcast((c.shape, result.shape)) != result.shape or c.dtype is not result.dtype:
        raise ShapeError(f"addmm of {a} by {b} to {c}")
    return result


def baddbmm(c: TensorSpec, a: TensorSpec, b: TensorSpec, **_: Any) -> TensorSpec:
    result = bmm(a, b)
    if broadcast((c.shape, result.shape)) != result.shape or c.dtype is not result.dtype:
        raise ShapeError(f"baddbmm of {a} by {b} to {c}")
    return result


def mv(a: TensorSpec, b: TensorSpec) -> TensorSpec:
    if len(a.shape) != 2 or len(b.shape) != 1:
        raise ShapeError(f"mv of {a} by {b}")
    return matmul(a, b)


def dot(a: TensorSpec, b: TensorSpec) -> TensorSpec:
    if len(a.shape) != 1 or len(b.shape) != 1:
        raise ShapeError(f"dot of {a} by {b}")
    return matmul(a, b)


# --- convolutions ----------------------------------------------------------------------------------------------------


_LARGEST_SIZE = 1 << 48  # no memory holds more, and products of two such sizes are out of int64's range


def each(value: int | Sequence[int], rank: int) -> tuple[int, ...]:
    """One number for each spatial dimension; a single one stands for all."""
    if not isinstance(value, (list, tuple)):
        return (cast(int, value),) * rank
    if len(value) not in (1, rank):
        raise ShapeError(f"{list(value)} for {rank} dimensions")
    return tuple(value) * rank if len(value) == 1 else tuple(value)


def _spatial(
    sizes: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> tuple[int, ...]:
    found = tuple(
        (size + 2 * pad - step_ * (width - 1) - 1) // step + 1
        for size, width, step, pad, step_ in zip(sizes, kernel, stride, padding, dilation, strict=True)
    )
    if any(size < 0 for size in found):
        raise ShapeError(f"a kernel of {list(kernel)} is larger than {list(sizes)}")
    return found


def _convolved(
    x: TensorSpec,
    weight: TensorSpec,
    shape: tuple[int, ...],
    batched: bool,
    moves: bool,
    groups: int,
    pads_steps: bool = False,
) -> TensorSpec:
    """Channels last if the input or the weight is. What has one spatial dimension is computed with two.

    moves: whether it has a stride or a dilation. pads_steps: whether it pads its output by whole strides.
    """
    if any(not 0 <= hint_of(size) < _LARGEST_SIZE for size in shape):
        raise ShapeError(f"a convolution that gives the sizes {list(shape)}")
    if 0 in shape:
        raise UnsupportedOpError("a convolution that gives nothing")
    strides = contiguous_strides(shape)
    x = x if batched else _unsqueezed(x)
    if is_cuda(x) and not keeps_channels_last(x, weight):
        pass
    elif len(shape) == 3:
        plane = unsqueeze(x if x.is_contiguous else like(x, x.shape), 2)
        if is_channels_last_strided(plane) or is_channels_last_strided(unsqueeze(weight, 2)):
            strides = _line_strides(shape)
    elif (is_channels_last_strided(x) or is_channels_last_strided(weight)) and (
        len(shape) == 4 or is_cuda(x) or (not pads_steps and _onednn_takes(x, weight, moves, groups))
    ):
        strides = channels_last_strides(shape)
    if not batched:
        shape, strides = shape[1:], strides[1:]
    return TensorSpec(shape, strides, x.dtype, x.device)


def _line_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Channels last, of one spatial dimension."""
    batch, channels, _, length = channels_last_strides((*shape[:2], 1, shape[2]))
    return batch, channels, length


def _onednn_takes(x: TensorSpec, weight: TensorSpec, moves: bool, groups: int) -> bool:
    """Whether oneDNN convolves these volumes; torch's own loops give them row-major. What torch's `use_mkldnn` asks:
    the type, and that the work is worth it."""
    if not torch._C._get_mkldnn_enabled():
        return False
    if x.dtype is torch.bfloat16:
        return torch.ops.mkldnn._is_mkldnn_bf16_supported()
    if x.dtype is torch.float16:
        return torch.ops.mkldnn._is_mkldnn_fp16_supported()
    if x.dtype in (torch.float64, torch.complex128):  # complex volumes are convolved by parts
        return False
    batch, height, width = x.shape[0], weight.shape[-2], weight.shape[-1]
    if not (groups > 1 or (height > 3 and width > 3) or batch > 1 or prod(x.shape[:4]) > 20480):
        return False
    if moves or batch >= 16 or (height, width) != (1, 1):
        return True
    raise UnsupportedOpError(
        "a convolution of volumes by single taps: its order is that for the number of threads"
    )


def _unsqueezed(x: TensorSpec) -> TensorSpec:
    outer = x.shape[0] * x.strides[0]
    return TensorSpec((1, *x.shape), (outer, *x.strides), x.dtype, x.device)


def conv(
    x: TensorSpec,
    weight: TensorSpec,
    bias: TensorSpec | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> TensorSpec:
    """conv1d, conv2d, conv3d with padding in numbers."""
    rank = len(weight.shape) - 2
    batched = len(x.shape) == rank + 2
    if not batched and len(x.shape) != rank + 1:
        raise ShapeError(f"a convolution of {x} by {weight}")
    channels = x.shape[-rank - 1]
    if channels != weight.shape[1] * groups or x.dtype is not weight.dtype or weight.shape[0] % groups:
        raise ShapeError(f"a convolution of {x} by {weight} in {groups} groups")
    _check_bias(bias, weight.shape[0])
    spatial = _spatial(
        x.shape[-rank:], weight.shape[2:], each(stride, rank), each(padding, rank), each(dilation, rank)
    )
    batch = x.shape[0] if batched else 1
    moves = any(step != 1 for step in (*each(stride, rank), *each(dilation, rank)))
    return _convolved(x, weight, (batch, weight.shape[0], *spatial), batched, moves, groups)


def _check_bias(bias: TensorSpec | None, outputs: Any) -> None:
    if bias is not None and (len(bias.shape) != 1 or bias.shape[0] != outputs):
        raise ShapeError(f"a bias {bias} of {outputs} channels")


def conv_padding(
    x: TensorSpec,
    weight: TensorSpec,
    bias: TensorSpec | None = None,
    stride: int | Sequence[int] = 1,
    padding: str = "valid",
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> TensorSpec:
    """padding="valid" or "same"."""
    rank = len(weight.shape) - 2
    if padding == "valid":
        return conv(x, weight, bias, stride, 0, dilation, groups)
    if padding != "same" or any(step != 1 for step in each(stride, rank)):
        raise ShapeError(f"padding={padding!r} with stride {stride}")
    valid = conv(_grown(x, weight, each(dilation, rank)), weight, bias, 1, 0, dilation, groups)
    batched = len(x.shape) == rank + 2
    batch = x.shape[0] if batched else 1
    moves = any(step != 1 for step in each(dilation, rank))
    return _convolved(x, weight, (batch, weight.shape[0], *valid.shape[-rank:]), batched, moves, groups)


def _grown(x: TensorSpec, weight: TensorSpec, dilation: Sequence[int]) -> TensorSpec:
    rank = len(dilation)
    grown = [
        size + step * (width - 1)
        for size, step, width in zip(x.shape[-rank:], dilation, weight.shape[2:], strict=True)
    ]
    return like(x, (*x.shape[:-rank], *grown))


def conv_transpose(
    x: TensorSpec,
    weight: TensorSpec,
    bias: TensorSpec | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
) -> TensorSpec:
    rank = len(weight.shape) - 2
    batched = len(x.shape) == rank + 2
    if not batched and len(x.shape) != rank + 1:
        raise ShapeError(f"a transposed convolution of {x} by {weight}")
    if x.shape[-rank - 1] != weight.shape[0] or x.dtype is not weight.dtype:
        raise ShapeError(f"a transposed convolution of {x} by {weight}")
    _check_bias(bias, weight.shape[1] * groups)
    spatial = tuple(
        (size - 1) * step - 2 * pad + gap * (width - 1) + extra + 1
        for size, step, pad, gap, width, extra in zip(
            x.shape[-rank:],
            each(stride, rank),
            each(padding, rank),
            each(dilation, rank),
            weight.shape[2:],
            each(output_padding, rank),
            strict=True,
        )
    )
    batch = x.shape[0] if batched else 1
    moves = any(step != 1 for step in (*each(stride, rank), *each(dilation, rank)))
    pads_steps = any(p >= s for p, s in zip(each(output_padding, rank), each(stride, rank), strict=True))
    shape = (batch, weight.shape[1] * groups, *spatial)
    return _convolved(x, weight, shape, batched, moves, groups, pads_steps)


def convolution(
    x: TensorSpec,
    weight: TensorSpec,
    bias: TensorSpec | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> TensorSpec:
    if transposed:
        return conv_transpose(x, weight, bias, stride, padding, output_padding, groups, dilation)
    return conv(x, weight, bias, stride, padding, dilation, groups)


def convolution_backward(
    grad_output: TensorSpec,
    x: TensorSpec,
    weight: TensorSpec,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[TensorSpec | None, ...]:
    """The gradients of the input, the weight and the bias; None for those that the mask leaves out."""
    rank = len(weight.shape) - 2
    if len(x.shape) != rank + 2:
        raise UnsupportedOpError("gradients of a convolution in an order that is not known")
    args = (x, weight, None, stride, padding, dilation, transposed, output_padding, groups)
    expected = convolution(*args)
    if expected.shape != grad_output.shape or not (grad_output.dtype is x.dtype is weight.dtype):
        raise ShapeError(f"gradients of a convolution of {x} by {weight} from {grad_output}")
    last = is_channels_last_strided
    if rank == 1:
        plane = x if x.is_contiguous else like(x, x.shape)
        is_last = last(unsqueeze(plane, 2)) or last(unsqueeze(weight, 2))
    else:
        moves = any(step != 1 for step in (*stride, *dilation))
        always = rank == 2 or is_cuda(x)
        is_last = (last(x) or last(weight)) and (always or _onednn_takes(x, weight, moves, groups))
    is_last = is_last and (not is_cuda(x) or keeps_channels_last(x, weight))
    order = (_line_strides if rank == 1 else channels_last_strides) if is_last else contiguous_strides
    found = [TensorSpec(each.shape, order(each.shape), x.dtype, x.device) for each in (x, weight)]
    found.append(like(x, grad_output.shape[1:2]))
    return tuple(spec if wanted else None for spec, wanted in zip(found, output_mask, strict=True))


# --- pools -----------------------------------------------------------------------------------------------------------


def _pooled(x: TensorSpec, rank: int, spatial: Sequence[int]) -> TensorSpec:
    shape = (*x.shape[:-rank], *spatial)
    if len(x.shape) == rank + 2 and is_channels_last_strided(x):
        return TensorSpec(shape, channels_last_strides(shape), x.dtype, x.device)
    return like(x, shape)


def _pool_size(size: int, width: int, step: int, pad: int, gap: int, ceil_mode: bool) -> int:
    """Source of the algorithm: pooling_output_shape in ATen: in ceil mode no window starts in the right padding."""
    covered = size + 2 * pad - gap * (width - 1) - 1 + (step - 1 if ceil_mode else 0)
    count = covered // step + 1
    if ceil_mode and (count - 1) * step >= size + pad:
        count -= 1
    if count < 1:
        raise ShapeError(f"a pool of width {width} does not fit {size}")
    return count


def _check_pool(x: TensorSpec, rank: int) -> None:
    if len(x.shape) not in (rank + 1, rank + 2):
        raise ShapeError(f"a pool over {rank} dimensions of {x}")


def _max_pool(rank: int) -> Any:
    def rule(
        x: TensorSpec,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] = (),
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        ceil_mode: bool = False,
    ) -> TensorSpec:
        _check_pool(x, rank)
        kernel = each(kernel_size, rank)
        steps = each(stride, rank) if is_integer(stride) or stride else kernel
        spatial = [
            _pool_size(size, width, step, pad, gap, ceil_mode)
            for size, width, step, pad, gap in zip(
                x.shape[-rank:], kernel, steps, each(padding, rank), each(dilation, rank), strict=True
            )
        ]
        return _pooled(x, rank, spatial)

    return rule


def _max_pool_with_indices(rank: int) -> Any:
    values_rule = _max_pool(rank)

    def rule(x: TensorSpec, *args: Any, **kwargs: Any) -> tuple[TensorSpec, TensorSpec]:
        values = values_rule(x, *args, **kwargs)
        return values, TensorSpec(values.shape, values.strides, torch.int64, values.device)

    return rule


def _avg_pool(rank: int) -> Any:
    def rule(
        x: TensorSpec,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] = (),
        padding: int | Sequence[int] = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> TensorSpec:
        pooled = _max_pool(rank)(x, kernel_size, stride, padding, 1, ceil_mode)
        # Over three dimensions there is no channels-last kernel.
        return like(x, pooled.shape) if rank == 3 else pooled

    return rule


def _avg_pool1d(
    x: TensorSpec,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] = (),
    padding: int | Sequence[int] = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> TensorSpec:
    """torch computes it over two dimensions, the first of which has size 1."""
    _check_pool(x, 1)
    kernel = each(kernel_size, 1)
    steps = each(stride, 1) if is_integer(stride) or stride else kernel
    window = (1, *kernel), (1, *steps), (0, *each(padding, 1))
    return squeeze_dim(_avg_pool(2)(unsqueeze(x, -2), *window, ceil_mode, count_include_pad), -2)


def _adaptive_pool(rank: int) -> Any:
    def rule(x: TensorSpec, output_size: int | Sequence[int]) -> TensorSpec:
        _check_pool(x, rank)
        sizes = each(output_size, rank)
        pooled = _pooled(x, rank, sizes)
        return like(x, pooled.shape) if rank == 3 and any(size != 1 for size in sizes) else pooled

    return rule


def _adaptive_pool1d(x: TensorSpec, output_size: int | Sequence[int]) -> TensorSpec:
    """torch computes it over two dimensions, the first of which has size 1."""
    _check_pool(x, 1)
    pooled = _adaptive_pool(2)(unsqueeze(x, -2), (1, *each(output_size, 1)))
    return squeeze_dim(pooled, -2)


# --- norms -----------------------------------------------------------------------------------------------------------


def layer_norm(x: TensorSpec, normalized_shape: Sequence[int], *args: Any, **kwargs: Any) -> TensorSpec:
    count = len(normalized_shape)
    if count == 0 or x.shape[-count:] != tuple(normalized_shape):
        raise ShapeError(f"layer_norm over {list(normalized_shape)} of {x}")
    return like(x, x.shape)


def rms_norm(
    x: TensorSpec, normalized_shape: Sequence[int], weight: TensorSpec | None = None, eps: float | None = None
) -> TensorSpec:
    """Eager's steps, x * rsqrt(mean(x²)) * weight, and a copy of what is neither row-major nor channels-last."""
    layer_norm(x, normalized_shape)
    wide = replace(
        x, strides=x.strides if x.dtype in (torch.float32, torch.float64) else preserved_strides(x)
    )
    kept = len(x.shape) - len(normalized_shape)
    means = like(x, (*x.shape[:kept], *[1] * len(normalized_shape)))
    normed = replace(x, strides=iterator_strides(x.shape, (wide, means)))
    if weight is not None:
        normed = replace(x, strides=iterator_strides(x.shape, (normed, weight)))
    if normed.is_contiguous or is_channels_last_strided(x):
        return normed
    return replace(x, strides=contiguous_strides(x.shape))


def group_norm(x: TensorSpec, groups: int, *args: Any, **kwargs: Any) -> TensorSpec:
    if len(x.shape) < 2 or x.shape[1] % groups:
        raise ShapeError(f"group_norm in {groups} groups of {x}")
    return TensorSpec(x.shape, suggested_strides(x), x.dtype, x.device)


def normed_strides(x: TensorSpec) -> tuple[int, ...]:
    """Row-major where the input is, also where its strides could be those of channels-last order (one channel)."""
    return contiguous_strides(x.shape) if x.is_contiguous else suggested_strides(x)


def batch_norm(
    x: TensorSpec, weight: TensorSpec | None = None, bias: TensorSpec | None = None, *args: Any, **kwargs: Any
) -> TensorSpec:
    if len(x.shape) < 2:
        raise UnsupportedOpError(f"a batch norm of {x}, which has no channels")
    if x.numel == 0:
        # Eager gives `x.clone() * weight[0] + bias[0]`.
        strides = preserved_strides(x)
        for factor in (weight, bias):
            if factor is not None:
                result = TensorSpec(x.shape, strides, x.dtype, x.device)
                strides = iterator_strides(x.shape, (result, like(factor, ())))
        return TensorSpec(x.shape, strides, x.dtype, x.device)
    return TensorSpec(x.shape, normed_strides(x), x.dtype, x.device)


def check_channels(x: TensorSpec, *parameters: TensorSpec | None) -> None:
    """
    Raises:
        UnsupportedOpError: a parameter of a batch norm has not one number for each channel. The kernels do not look,
            and read and write beyond its memory.
        ShapeError: it is of no floats.
    """
    if not x.dtype.is_floating_point:
        raise ShapeError(f"a batch norm of {x}")
    if len(x.shape) < 2:
        raise UnsupportedOpError(f"a batch norm of {x}, which has no channels")
    for each in parameters:
        if each is not None and each.shape != (x.shape[1],):
            raise UnsupportedOpError(f"a batch norm of {x} by parameters of {list(each.shape)}")


def batch_norm_functional(
    x: TensorSpec,
    weight: TensorSpec | None,
    bias: TensorSpec | None,
    mean: TensorSpec,
    var: TensorSpec,
    *args: Any,
) -> tuple[TensorSpec, ...]:
    check_channels(x, weight, bias, mean, var)
    saved = like(x, mean.shape, accumulated(x) if is_cuda(x) else mean.dtype)
    result = TensorSpec(x.shape, normed_strides(x), x.dtype, x.device)
    return result, saved, saved, like(mean, mean.shape), like(var, var.shape)


def _statistics_dtype(x: TensorSpec, weight: TensorSpec | None, bias: TensorSpec | None) -> torch.dtype:
    """Of half types with parameters in float32, statistics are of float32 too."""
    return next((each.dtype for each in (weight, bias) if each is not None), x.dtype)


def native_layer_norm(
    x: TensorSpec,
    normalized_shape: Sequence[int],
    weight: TensorSpec | None,
    bias: TensorSpec | None,
    eps: float,
) -> tuple[TensorSpec, ...]:
    """(result, mean, rstd)."""
    kept = len(x.shape) - len(normalized_shape)
    shape = (*x.shape[:kept], *[1] * len(normalized_shape))
    dtype = accumulated(x) if is_cuda(x) else _statistics_dtype(x, weight, bias)
    statistic = like(x, shape, dtype)
    return layer_norm(x, normalized_shape), statistic, statistic


def native_group_norm(
    x: TensorSpec,
    weight: TensorSpec | None,
    bias: TensorSpec | None,
    n: int,
    channels: int,
    size: int,
    groups: int,
    eps: float,
) -> tuple[TensorSpec, ...]:
    """(result, mean, rstd)."""
    statistic = like(x, (n, groups), _statistics_dtype(x, weight, bias))
    return group_norm(x, groups), statistic, statistic


def native_batch_norm(
    x: TensorSpec,
    weight: TensorSpec | None,
    bias: TensorSpec | None,
    running_mean: TensorSpec | None,
    running_var: TensorSpec | None,
    training: bool,
    *args: Any,
) -> tuple[TensorSpec, ...]:
    """(result, mean, 1 / std); without training nothing is saved."""
    check_channels(x, weight, bias, running_mean, running_var)
    dtype = accumulated(x) if is_cuda(x) else _statistics_dtype(x, weight, running_mean)
    saved = like(x, (x.shape[1] if training or is_cuda(x) else 0,), dtype)
    return TensorSpec(x.shape, normed_strides(x), x.dtype, x.device), saved, saved


def native_batch_norm_without_state(
    x: TensorSpec, weight: TensorSpec | None, bias: TensorSpec | None, training: bool, *args: Any
) -> tuple[TensorSpec, ...]:
    return native_batch_norm(x, weight, bias, None, None, training)


# --- losses ----------------------------------------------------------------------------------------------------------


def nll_loss_forward(
    x: TensorSpec, target: TensorSpec, weight: TensorSpec | None, reduction: int, ignore_index: int
) -> tuple[TensorSpec, ...]:
    """(the loss, the sum of the weights)."""
    rows = (*x.shape[:1], *x.shape[2:]) if reduction == 0 and len(x.shape) > 1 else ()
    return like(x, rows), like(x, ())


# --- others -----------------------------------------------------------------------------------------------------------


def glu(x: TensorSpec, dim: int = -1) -> TensorSpec:
    rank = len(x.shape)
    if not rank or x.shape[dim] % 2:
        raise ShapeError(f"glu of {x}")
    dim %= rank
    shape = (*x.shape[:dim], x.shape[dim] // 2, *x.shape[dim + 1 :])
    half = TensorSpec(shape, x.strides, x.dtype, x.device)
    return TensorSpec(shape, iterator_strides(shape, (half, half)), x.dtype, x.device)


def prelu(x: TensorSpec, weight: TensorSpec) -> TensorSpec:
    return TensorSpec(x.shape, preserved_strides(x), x.dtype, x.device)


def upsample2d(x: TensorSpec, output_size: Sequence[int], *_: Any, **__: Any) -> TensorSpec:
    if len(x.shape) != 4 or len(output_size) != 2:
        raise ShapeError(f"images have 4 dimensions, got {len(x.shape)}")
    if not all(size > 0 for size in (*x.shape[1:], *output_size)):
        raise ShapeError(f"cannot resize {x.shape} to {tuple(output_size)}")
    shape = (*x.shape[:2], *output_size)
    strides = channels_last_strides(shape) if is_channels_last_strided(x) else contiguous_strides(shape)
    return TensorSpec(shape, strides, x.dtype, x.device)


RULES: Mapping[Any, Any] = {
    aten.upsample_nearest2d.default: upsample2d,
    aten._upsample_nearest_exact2d.default: upsample2d,
    aten.upsample_bilinear2d.default: upsample2d,
    aten.upsample_bicubic2d.default: upsample2d,
    aten.linear.default: linear,
    aten.matmul.default: matmul,
    aten.mm.default: mm,
    aten._int_mm.default: int_mm,
    aten.bmm.default: bmm,
    aten.addmm.default: addmm,
    aten._addmm_activation.default: addmm,
    aten.baddbmm.default: baddbmm,
    aten.mv.default: mv,
    aten.dot.default: dot,
    aten.conv1d.default: conv,
    aten.conv2d.default: conv,
    aten.conv3d.default: conv,
    aten.conv1d.padding: conv_padding,
    aten.conv2d.padding: conv_padding,
    aten.conv3d.padding: conv_padding,
    aten.conv_transpose1d.default: conv_transpose,
    aten.conv_transpose2d.input: conv_transpose,
    aten.conv_transpose3d.input: conv_transpose,
    aten.convolution.default: convolution,
    aten.convolution_backward.default: convolution_backward,
    aten.max_pool1d.default: _max_pool(1),
    aten.max_pool2d.default: _max_pool(2),
    aten.max_pool3d.default: _max_pool(3),
    aten.max_pool2d_with_indices.default: _max_pool_with_indices(2),
    aten.max_pool3d_with_indices.default: _max_pool_with_indices(3),
    aten.avg_pool1d.default: _avg_pool1d,
    aten.avg_pool2d.default: _avg_pool(2),
    aten.avg_pool3d.default: _avg_pool(3),
    aten.adaptive_avg_pool1d.default: _adaptive_pool1d,
    aten.adaptive_avg_pool2d.default: _adaptive_pool(2),
    aten.adaptive_avg_pool3d.default: _adaptive_pool(3),
    aten.layer_norm.default: layer_norm,
    aten.rms_norm.default: rms_norm,
    aten.group_norm.default: group_norm,
    aten.batch_norm.default: batch_norm,
    aten._native_batch_norm_legit_functional.default: batch_norm_functional,
    aten.native_layer_norm.default: native_layer_norm,
    aten.native_group_norm.default: native_group_norm,
    aten.native_batch_norm.default: native_batch_norm,
    aten._native_batch_norm_legit.no_stats: native_batch_norm_without_state,
    aten.nll_loss_forward.default: nll_loss_forward,
    aten.nll_loss2d_forward.default: nll_loss_forward,
    aten.scaled_dot_product_attention.default: attention,
    aten.lstm.input: lstm,
    aten.gru.input: rnn,
    aten.rnn_tanh.input: rnn,
    aten.rnn_relu.input: rnn,
    aten.lstm.data: packed_lstm,
    aten.gru.data: packed_rnn,
    aten.rnn_tanh.data: packed_rnn,
    aten.rnn_relu.data: packed_rnn,
    aten.glu.default: glu,
    aten._prelu_kernel.default: prelu,
}
