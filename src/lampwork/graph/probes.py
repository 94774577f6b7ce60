"""Eager's own opinion of a call: the operator itself, run on tiny tensors that stand for the arguments.

before: linear(float32[8, 128, 768], float32[3072, 768])
probe:  linear(zeros(2, 3, 4), zeros(5, 4)): each size is replaced by its rank among the sizes of the call

Ranks keep what operators compare: which sizes are equal, which is larger, which are 0 and 1. So whatever eager refuses
because of dtypes, numbers or sizes that do not agree, the probe refuses, without a rule of ours that knows it. One
probe serves all calls that look alike. Operators that calculate with sizes keep those that they calculate with
(`_KEPT`); those that look at sizes and strides alone, or that run as calls of ATen, which check themselves, are not
probed (`_UNPROBED`); an operator that is in neither table is probed by ranks.

For sizes that stay open a probe speaks of the call at hand; `open_sizes.py` asks again for others. Numbers that stay
open are confined to what their dtype holds, if eager minds.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any, TypeGuard, cast

import torch

from lampwork import pristine
from lampwork.graph.devices import as_on_cpu
from lampwork.graph.opinfo import is_seeded, op_info
from lampwork.graph.shapes_common import (
    ShapeError,
    channels_last_strides,
    is_channels_last_strided,
    wrap_dim,
)
from lampwork.graph.spec import TensorSpec, with_sizes
from lampwork.graph.symbols import SymbolicFloat, SymbolicInt, bits_of_float, float_of_bits, hint_of
from lampwork.records import record

# Verdicts kept, by how calls look; when there are more the memory begins anew.
_KEEP = 8192

# Larger stand-ins are not worth their time: their operators' rules have the word alone.
_LARGEST = 1 << 18

# Parameters that are sizes, and so are ranked with those of tensors.
_SIZE_PARAMETERS = frozenset({"size", "normalized_shape"})

# Schema types of parameters that take a number which is no size, place or flag.
_SCALAR_TYPES = frozenset(
    {"number", "float", "Tensor", "Optional[number]", "Optional[float]", "Optional[Tensor]"}
)

# Zeros raise as divisors and as weights; as indices nothing else will do.
_ONES = frozenset({"cov", "div", "floor_divide", "remainder", "fmod", "true_divide", "divide"})

_UNPROBED = frozenset(
    name
    for line in (
        # Views, and what is made of them: sizes and strides, which the rules know all about.
        "view _unsafe_view _reshape_alias reshape split unsafe_split split_with_sizes unsafe_split_with_sizes unbind",
        "_conj _neg_view resolve_conj resolve_neg view_as_real detach_ lift lift_fresh contiguous clone to",
        "empty_strided",
        # Their rules compare all sizes.
        "slice_backward select_backward diagonal_backward upsample_nearest1d_backward upsample_nearest2d_backward",
        "upsample_linear1d_backward upsample_bilinear2d_backward upsample_bicubic2d_backward",
        # They look at no size, and read and write beyond the memory of what is too small.
        "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional native_batch_norm_backward",
        "_native_batch_norm_legit_no_training _batch_norm_with_update _batch_norm_with_update_functional",
        "batch_norm_backward batch_norm_update_stats batch_norm_gather_stats batch_norm_elemt",
        # Creation from counts.
        "arange eye",
        # Calls of ATen.
        "_scaled_dot_product_efficient_attention _scaled_dot_product_efficient_attention_backward",
        "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_backward",
        "_scaled_dot_product_cudnn_attention _scaled_dot_product_cudnn_attention_backward",
        "cudnn_grid_sampler cudnn_grid_sampler_backward _thnn_fused_gru_cell _thnn_fused_gru_cell_backward",
        "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d convolution lstm gru rnn_tanh",
        "convolution_backward rnn_relu _ctc_loss linalg_lstsq _embedding_bag_forward_only _native_multi_head_attention",
        "_transformer_encoder_layer_fwd",
    )
    for name in line.split()
)

# Devices whose calls the CPU answers for.
_LIKE_CPU = frozenset({"cpu", "cuda"})

# What CUDA devices take otherwise than the CPU: half types that give float32, statistics in float32.
_OTHERWISE_ON_CUDA = frozenset(
    {
        "_softmax",
        "_log_softmax",
        "_softmax_backward_data",
        "_log_softmax_backward_data",
        "native_layer_norm",
        "native_layer_norm_backward",
    }
)

_ERRORS = (RuntimeError, ValueError, TypeError, IndexError, ArithmeticError)


@record
class _Sizes:
    """How a call is made small: the shape that stands for a tensor's, what stands for sizes among its numbers."""

    shape: Callable[[TensorSpec], tuple[int, ...]]
    ranks: Mapping[int, int]


_Shrink = Callable[[Sequence[Any], Mapping[str, Any]], _Sizes | None]


Look = tuple[torch.dtype, int]
"""Dtype and number of dimensions of a tensor."""


def probe(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Look, ...] | None:
    """Ask eager whether it takes `op(*args, **kwargs)`, with TensorSpecs in place of tensors.

    Returns how the results look, None if eager was not asked.

    Raises:
        ShapeError: it does not.
    """
    form = _form(op)
    if form is None:
        return None
    key = _key_of_closed(op, args, kwargs)
    known = None if key is None else _verdicts.get(key)
    if known is not None and not isinstance(known, str):
        return known
    looks = _probe(op, form, args, kwargs)
    if key is not None and looks is not None:
        _keep(key, looks)
    return looks


_PLAIN = frozenset({int, bool, type(None), torch.dtype})


def _key_of_closed(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What a call is known by without being made small: layers that are alike ask alike. None for a call that has an
    open size or number in it, or other things than tensors and plain numbers."""
    if kwargs:
        return None
    key: list[Any] = [op, pristine.get_default_dtype(), pristine.are_deterministic_algorithms_enabled()]
    for value in args:
        kind = type(value)
        if kind is TensorSpec:
            for number in (*value.shape, *value.strides):
                if type(number) is not int:
                    return None
        elif kind not in _PLAIN:
            return None
        else:
            key.append(kind)
        key.append(value)
    return tuple(key)


def _probe(op: Any, form: _Form, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Look, ...] | None:
    found = _Arguments([], [])
    for i, value in enumerate(args):
        _collect(value, found, i in form.scalars)
    for name, value in kwargs.items():
        _collect(value, found, name in form.scalars)
    if found.drawing or any(spec.device.type not in _LIKE_CPU for spec in found.specs):
        return None
    if any(spec.device.type != "cpu" for spec in found.specs) and op_info(op).name in _OTHERWISE_ON_CUDA:
        return None
    for number in found.numbers:
        _confine(op, form, args, kwargs, number)
    return _ask(op, form, args, kwargs, _hint)


def takes(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether eager takes a call without open numbers, as far as a probe tells."""
    form = _form(op)
    if form is None:
        return True
    try:
        _ask(op, form, args, kwargs, _hint)
    except ShapeError:
        return False
    return True


@record
class _Form:
    """How an operator is probed. `sizes`, `scalars`: the positions and names of parameters that are sizes, and of those
    that may be numbers of any kind."""

    sizes: frozenset[int | str]
    scalars: frozenset[int | str]
    seeded: bool
    ones: bool
    kept: _Shrink | None


@cache
def _form(op: Any) -> _Form | None:
    name = op_info(op).name
    plain = name.removesuffix("_") if not name.endswith("__") else name
    if op.namespace != "aten" or name in _UNPROBED or plain in _UNPROBED:
        return None
    parameters = list(enumerate(op._schema.arguments))
    sizes = [(i, a.name) for i, a in parameters if a.name in _SIZE_PARAMETERS]
    scalars = [(i, a.name) for i, a in parameters if str(a.type) in _SCALAR_TYPES]
    return _Form(
        frozenset(key for pair in sizes for key in pair),
        frozenset(key for pair in scalars for key in pair),
        is_seeded(op),
        plain in _ONES,
        _KEPT.get(plain),
    )


@dataclass(slots=True)
class _Arguments:
    """What a call has in it: its tensors, its open numbers, and whether it draws from a generator of the caller's."""

    specs: list[TensorSpec]
    numbers: list[SymbolicInt | SymbolicFloat]
    drawing: bool = False


def _collect(value: Any, found: _Arguments, scalar: bool = False) -> None:
    kind = type(value)
    if kind is TensorSpec:
        found.specs.append(value)
    elif kind is list or kind is tuple:
        for item in value:
            _collect(item, found, scalar)
    elif scalar and isinstance(value, (SymbolicInt, SymbolicFloat)):
        if all(value is not number for number in found.numbers):
            found.numbers.append(value)
    elif kind is torch.Generator:
        found.drawing = True


_Numbers = Callable[[Any], int | float]


def _hint(number: Any) -> int | float:
    return number.hint


def _ask(
    op: Any, form: _Form, args: Sequence[Any], kwargs: Mapping[str, Any], number: _Numbers
) -> tuple[Look, ...] | None:
    """Probe one call, its open numbers replaced by what `number` makes of them.

    Raises:
        ShapeError: eager refuses it.
    """
    sizes = _ranked(form, args, kwargs) if form.kept is None else form.kept(args, kwargs)
    if sizes is None:
        return None
    look: list[Any] = [op, pristine.get_default_dtype(), pristine.are_deterministic_algorithms_enabled()]
    # A number may be a size in one place and a value in another: only the value is tried out.
    given = [
        _stand_in(a, sizes, number if i in form.scalars else _hint, look, i in form.sizes)
        for i, a in enumerate(args)
    ]
    named: dict[str, Any] = {}
    for key, value in kwargs.items():
        look.append(key)
        tried = number if key in form.scalars else _hint
        named[key] = _stand_in(value, sizes, tried, look, key in form.sizes)
    key = tuple(look)
    try:
        verdict = _verdicts[key]
    except KeyError:
        verdict = _run(op, form, given, named)
        _keep(key, verdict)
    if isinstance(verdict, str):
        raise ShapeError(verdict)
    return verdict


# How the results look, or why eager refuses.
_verdicts: dict[Any, tuple[Look, ...] | str] = {}


def _keep(key: Any, verdict: tuple[Look, ...] | str) -> None:
    if len(_verdicts) >= _KEEP:
        _verdicts.clear()
    _verdicts[key] = verdict


@record
class _StandIn:
    """A stand-in before it is a tensor. Kernels ask about its layout only whether channels come last."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    channels_last: bool


def _stand_in(value: Any, sizes: _Sizes, number: _Numbers, look: list[Any], is_size: bool) -> Any:
    """What stands for an argument; how it looks is appended to `look`."""
    if type(value) is TensorSpec:
        made = _StandIn(sizes.shape(value), value.dtype, _has_channels_last(value))
        look.append(made)
        return made
    if isinstance(value, (list, tuple)):
        items = cast("list[Any]", value)
        look.append(len(items))
        return [_stand_in(item, sizes, number, look, is_size) for item in items]
    if isinstance(value, (SymbolicInt, SymbolicFloat)):
        value = number(value)
    elif isinstance(value, torch.device):
        value = as_on_cpu(value)
    if is_size and type(value) is int:
        value = sizes.ranks.get(value, value)
    look.append(
        (value.__class__, repr(value)) if isinstance(value, (float, complex)) else (value.__class__, value)
    )
    return value


def _has_channels_last(spec: TensorSpec) -> bool:
    """`is_channels_last_strided` of the call at hand. Makes no condition."""
    if len(spec.shape) not in (4, 5):
        return False
    return is_channels_last_strided(with_sizes(spec, hint_of))


def _run(op: Any, form: _Form, args: list[Any], kwargs: dict[str, Any]) -> tuple[Look, ...] | str:
    """How the results of a call look, or what eager says against it."""
    state = pristine.get_rng_state() if form.seeded else None
    make = torch.ones if form.ones else torch.zeros
    with torch._C._DisableTorchDispatch(), pristine.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            result = op(*_made(args, make), **{key: _made(value, make) for key, value in kwargs.items()})
        except _ERRORS as error:
            return f"{op}: {error}"
        finally:
            if state is not None:
                pristine.set_rng_state(state)
    results = result if isinstance(result, (tuple, list)) else (result,)
    return tuple((t.dtype, t.dim()) for t in cast("Sequence[Any]", results) if isinstance(t, torch.Tensor))


def _made(value: Any, make: Callable[..., torch.Tensor]) -> Any:
    if type(value) is _StandIn:
        if not value.channels_last:
            return make(value.shape, dtype=value.dtype)
        memory = make((prod(value.shape),), dtype=value.dtype)
        return memory.as_strided(value.shape, channels_last_strides(value.shape))
    if type(value) is list:
        return [_made(item, make) for item in cast("list[Any]", value)]
    return value


# --- sizes ------------------------------------------------------------------------------------------------------------


def _ranked(form: _Form, args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Sizes:
    numbers = [value for i, value in enumerate(args) if i in form.sizes]
    numbers += [value for name, value in kwargs.items() if name in form.sizes]
    return _ranked_sizes((*args, *kwargs.values()), numbers)


def _ranked_sizes(values: Sequence[Any], numbers: Sequence[Any]) -> _Sizes:
    """Sizes of the tensors among `values`, and `numbers`, by their rank among all; 0 and 1 stay."""
    found: set[int] = set()
    _sizes(values, found, False)
    _sizes(numbers, found, True)
    ranks = {size: i for i, size in enumerate(sorted(size for size in found if size > 1), 2)}
    ranks[0], ranks[1] = 0, 1
    return _Sizes(lambda spec: tuple([ranks[hint_of(size)] for size in spec.shape]), ranks)


def _sizes(value: Any, found: set[int], is_size: bool) -> None:
    if type(value) is TensorSpec:
        for size in value.shape:
            found.add(size if type(size) is int else hint_of(size))
    elif isinstance(value, (list, tuple)):
        for item in cast("list[Any]", value):
            _sizes(item, found, is_size)
    elif is_size and isinstance(value, (int, SymbolicInt)):
        found.add(value if isinstance(value, int) else value.hint)


def _small(size: int) -> int:
    return min(hint_of(size), 1)


def _keep_from(first: int) -> _Shrink:
    """The first argument's dimensions from `first` on; of those before, one element. Other arguments as they are."""

    def shrink(args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Sizes | None:
        x = args[0]
        count = len(x.shape) + first if first < 0 else first
        return _within(args, lambda i, spec: i >= count if spec is x else True)

    return shrink


def _keep_dim(position: int, default: int) -> _Shrink:
    """The dimension that an argument names."""

    def shrink(args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Sizes | None:
        x = args[0]
        dim = hint_of(args[position] if len(args) > position else kwargs.get("dim", default))
        rank = len(x.shape)
        if not -rank <= dim < rank:
            return _within(args, lambda i, spec: True)
        wrapped = wrap_dim(dim, rank)
        return _within(args, lambda i, spec: i == wrapped if spec is x else True)

    return shrink


def _keep_last(count: int) -> _Shrink:
    """The last dimensions of all tensors."""

    def shrink(args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Sizes | None:
        return _within((*args, *kwargs.values()), lambda i, spec: i >= len(spec.shape) - count)

    return shrink


def _keep_padded(args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Sizes | None:
    x, padded = args[0], len(args[1]) // 2
    return _within(args, lambda i, spec: i >= len(x.shape) - padded)


def _keep_channels(args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Sizes | None:
    x = args[0]
    return _within(args, lambda i, spec: i == 1 if spec is x else True)


def _keep_all(args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Sizes | None:
    return _within((*args, *kwargs.values()), lambda i, spec: True)


def _within(values: Sequence[Any], keeps: Callable[[int, TensorSpec], bool]) -> _Sizes | None:
    """Gives shapes with the dimensions that `keeps` does not keep cut down; None if the tensors are large even so."""

    def shape(spec: TensorSpec) -> tuple[int, ...]:
        return tuple(hint_of(s) if keeps(i, spec) else _small(s) for i, s in enumerate(spec.shape))

    found = _Arguments([], [])
    _collect(values, found)
    total = 0
    for spec in found.specs:
        count = 1
        for size in shape(spec):
            count *= size
        total += count
    return _Sizes(shape, {}) if total <= _LARGEST else None


def _unless_mask(args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Sizes | None:
    """Masks as indices are a matter of values."""
    if any(spec is not None and spec.dtype in (torch.bool, torch.uint8) for spec in args[1]):
        return None
    return _ranked_sizes((*args, *kwargs.values()), ())


def _keep_grouped_heads(args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Sizes | None:
    """Attention with fewer heads of keys and values: one number of heads has to divide the other."""
    ranked = _ranked_sizes((*args, *kwargs.values()), ())
    if not kwargs.get("enable_gqa"):
        return ranked

    def shape(spec: TensorSpec) -> tuple[int, ...]:
        sizes = ranked.shape(spec)
        return sizes if len(sizes) < 3 else (*sizes[:-3], hint_of(spec.shape[-3]), *sizes[-2:])

    return _Sizes(shape, ranked.ranks)


_KEPT: Mapping[str, _Shrink] = {
    "scaled_dot_product_attention": _keep_grouped_heads,
    "index": _unless_mask,
    "_unsafe_index": _unless_mask,
    "index_put": _unless_mask,
    "group_norm": _keep_channels,
    "channel_shuffle": _keep_channels,
    "glu_backward": _keep_all,
    "native_group_norm": _keep_all,
    "native_group_norm_backward": _keep_all,
    "glu": _keep_dim(1, -1),
    "topk": _keep_dim(2, -1),
    "kthvalue": _keep_dim(2, -1),
    "constant_pad_nd": _keep_padded,
    "max_pool1d": _keep_from(-1),
    "max_pool2d": _keep_from(-2),
    "max_pool3d": _keep_from(-3),
    "max_pool2d_with_indices": _keep_from(-2),
    "max_pool3d_with_indices": _keep_from(-3),
    "avg_pool1d": _keep_from(-1),
    "avg_pool2d": _keep_from(-2),
    "im2col": _keep_from(-2),
    "reflection_pad1d": _keep_from(-1),
    "reflection_pad2d": _keep_from(-2),
    "reflection_pad3d": _keep_from(-3),
    "replication_pad1d": _keep_from(-1),
    "replication_pad2d": _keep_from(-2),
    "replication_pad3d": _keep_from(-3),
    "avg_pool3d": _keep_from(-3),
    "adaptive_avg_pool1d": _keep_from(-1),
    "adaptive_avg_pool2d": _keep_from(-2),
    "adaptive_avg_pool3d": _keep_from(-3),
    "_adaptive_avg_pool2d": _keep_from(-2),
    "_adaptive_avg_pool3d": _keep_from(-3),
    "max_pool2d_with_indices_backward": _keep_last(2),
    "max_pool3d_with_indices_backward": _keep_last(3),
    "adaptive_max_pool2d_backward": _keep_last(2),
    "avg_pool2d_backward": _keep_last(2),
    "avg_pool3d_backward": _keep_last(3),
    "_adaptive_avg_pool2d_backward": _keep_last(2),
    "_adaptive_avg_pool3d_backward": _keep_last(3),
    "upsample_nearest2d": _keep_from(-2),
    "_upsample_nearest_exact2d": _keep_from(-2),
    "upsample_bilinear2d": _keep_from(-2),
    "upsample_bicubic2d": _keep_from(-2),
    "upsample_nearest1d": _keep_from(-1),
    "_upsample_nearest_exact1d": _keep_from(-1),
    "upsample_linear1d": _keep_from(-1),
    "upsample_nearest3d": _keep_from(-3),
    "_upsample_nearest_exact3d": _keep_from(-3),
    "upsample_trilinear3d": _keep_from(-3),
    "_upsample_bilinear2d_aa": _keep_from(-2),
    "_upsample_bicubic2d_aa": _keep_from(-2),
    "grid_sampler_2d": _keep_all,
    "grid_sampler_3d": _keep_all,
    "select_scatter": _keep_all,
    "slice_scatter": _keep_all,
    "diagonal_scatter": _keep_all,
    "copy": _keep_all,
    # They warn of too few elements.
    "var": _keep_all,
    "std": _keep_all,
    "var_mean": _keep_all,
    "std_mean": _keep_all,
}


# --- numbers that stay open -------------------------------------------------------------------------------------------


# Operators that run as calls of ATen, which looks at the number itself.
_CHECKED_BY_ATEN = frozenset({"scatter", "index_fill"})


def _confine(
    op: Any, form: _Form, args: Sequence[Any], kwargs: Mapping[str, Any], number: SymbolicInt | SymbolicFloat
) -> None:
    """Note that an open number stays in the range that eager takes, if it does not take all."""
    if op_info(op).name.removesuffix("_") in _CHECKED_BY_ATEN:
        return
    extremes: tuple[Any, ...] = (2**62, -(2**62)) if isinstance(number, SymbolicInt) else (1e300, -1e300)
    if all(_takes(op, form, args, kwargs, number, extreme) for extreme in extremes):
        return
    found = _Arguments([], [])
    _collect([*args, *kwargs.values()], found)
    dtypes = [spec.dtype for spec in found.specs] + [v for v in kwargs.values() if isinstance(v, torch.dtype)]
    for dtype in sorted({*dtypes, pristine.get_default_dtype()}, key=lambda dtype: -_largest(dtype)):
        most = _largest(dtype)
        limit = most if isinstance(number, SymbolicFloat) else int(most)
        if _takes(op, form, args, kwargs, number, limit) and _within_limit(number, limit):
            return
        if _is_computed(number) and all(_takes(op, form, args, kwargs, number, n) for n in (limit, -limit)):
            number.scope.hold(number, limit)
            return
    number.fix()


def _is_computed(number: SymbolicInt | SymbolicFloat) -> TypeGuard[SymbolicFloat]:
    """Whether Python computes a float of other numbers."""
    return isinstance(number, SymbolicFloat) and number.function is not float_of_bits


def _largest(dtype: torch.dtype) -> float:
    if dtype is torch.bool:
        return 1
    return torch.finfo(dtype).max if dtype.is_floating_point or dtype.is_complex else torch.iinfo(dtype).max


def _takes(
    op: Any, form: _Form, args: Sequence[Any], kwargs: Mapping[str, Any], number: Any, value: int | float
) -> bool:
    try:
        _ask(op, form, args, kwargs, lambda other: value if other is number else other.hint)
    except ShapeError:
        return False
    return True


def _within_limit(number: SymbolicInt | SymbolicFloat, limit: int | float) -> bool:
    """Note that 0 <= |number| <= limit, with the sign that it has; False if that cannot be said."""
    if isinstance(number, SymbolicInt):
        return bool(number >= 0) and bool(number <= limit)
    if number.function is not float_of_bits:
        return False
    bits: Any = number.args[0]
    if not isinstance(bits, SymbolicInt):
        return False
    # As integers, the bits of floats of one sign are in the order of their magnitudes.
    low, high = (0.0, limit) if bits.hint >= 0 else (-0.0, -limit)
    return bool(bits >= bits_of_float(low)) and bool(bits <= bits_of_float(high))
