"""What an operator's schema says about recording it: pure, a view, a write, random, or in need of data."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Literal

import torch

from lampwork.records import record

aten = torch.ops.aten

OpKind = Literal["pure", "view", "views", "inplace", "out", "decompose", "data"]

# Composite operators that are recorded whole and made of nothing that autocast casts.
OF_NO_PRODUCTS = frozenset(
    {
        "layer_norm",
        "group_norm",
        "batch_norm",
        "rms_norm",
        "softmax",
        "log_softmax",
        "embedding",
        "dropout",
        "feature_dropout",
        "alpha_dropout",
        "feature_alpha_dropout",
        "max_pool1d",
        "max_pool2d",
        "max_pool3d",
        "avg_pool1d",
        "adaptive_avg_pool1d",
        "adaptive_avg_pool2d",
        "adaptive_avg_pool3d",
        "adaptive_max_pool1d",
        "where",
        # Composed for other devices: on a CPU they are kernels, which round once.
        "silu_backward",
        "mish_backward",
        # It selects by a mask of its own making: how many there are follows from sizes.
        "combinations",
    }
)
# Composite operators that rewrites, lowering and backends want whole.
KEPT_WHOLE = OF_NO_PRODUCTS | frozenset(
    {
        "linear",
        "matmul",
        "scaled_dot_product_attention",
        "conv1d",
        "conv2d",
        "conv3d",
        "conv_transpose1d",
        "conv_transpose2d",
        "conv_transpose3d",
        "lstm",
        "gru",
        "rnn_tanh",
        "rnn_relu",
        # These check what they computed, which needs data: whole, they check when the graph runs.
        "linalg_inv",
        "inverse",
        "linalg_cholesky",
        "cholesky_inverse",
        "linalg_solve",
        "linalg_lu_factor",
        "linalg_ldl_factor",
        "linalg_matrix_power",
        "linalg_tensorinv",
        "linalg_tensorsolve",
        "cov",
        "corrcoef",
    }
)

# Operators whose result or whose result's shape depends on data, beyond those that torch tags so.
DATA_DEPENDENT = frozenset(
    {
        "item",
        "_local_scalar_dense",
        "is_nonzero",
        "nonzero",
        "nonzero_numpy",
        "argwhere",
        "masked_select",
        "equal",
        "allclose",
        "bincount",
        "unique_dim",
        "unique_consecutive",
        "unique_dim_consecutive",
        "_pack_padded_sequence",
        "_pad_packed_sequence",
        "_nested_tensor_from_mask_left_aligned",
        "_unique",
        "_unique2",
    }
)

# Operators that draw from a generator, beyond those that torch tags so.
_RANDOM = frozenset({"feature_dropout", "alpha_dropout", "feature_alpha_dropout"})

# Results never require grad, whatever their arguments do; a test holds this to torch's database.
_NO_GRADIENT = frozenset(
    {
        "detach",
        "zeros_like",
        "ones_like",
        "full_like",
        "empty_like",
        "rand_like",
        "randn_like",
        "randint_like",
        "new_zeros",
        "new_ones",
        "new_full",
        "new_empty",
        "new_empty_strided",
        "multinomial",
        "histc",
    }
    | {
        f"special_{name}"
        for line in (
            "airy_ai bessel_j0 bessel_j1 bessel_y0 bessel_y1 modified_bessel_i0 modified_bessel_i1 modified_bessel_k0",
            "modified_bessel_k1 scaled_modified_bessel_k0 scaled_modified_bessel_k1 spherical_bessel_j0",
            "chebyshev_polynomial_t chebyshev_polynomial_u chebyshev_polynomial_v chebyshev_polynomial_w",
            "shifted_chebyshev_polynomial_t shifted_chebyshev_polynomial_u shifted_chebyshev_polynomial_v",
            "shifted_chebyshev_polynomial_w hermite_polynomial_h hermite_polynomial_he laguerre_polynomial_l",
            "legendre_polynomial_p",
        )
        for name in line.split()
    }
)

# Operators that are given tensors which are not defined: a bias that there was none of, the lengths of a batch that is
# not nested.
TAKE_UNDEFINED = frozenset(
    getattr(aten, f"_scaled_dot_product_{kernel}_attention_backward").default
    for kernel in ("efficient", "flash", "cudnn")
)

# Which of several results never require grad, by place; integers do not anyway.
_NO_GRADIENT_RESULTS = {
    "native_layer_norm": (1, 2),
    "native_batch_norm": (1, 2),
    "_native_batch_norm_legit": (1, 2),
    "_batch_norm_impl_index": (1, 2),
    "_scaled_dot_product_flash_attention_for_cpu": (1,),
    "nll_loss_forward": (1,),
    "nll_loss2d_forward": (1,),
    "log_sigmoid_forward": (1,),
    "multilabel_margin_loss_forward": (1,),
    "_ctc_loss": (1,),
    "_weight_norm_interface": (1,),
    "linalg_lu": (0,),
    "lu_unpack": (0,),
    "linalg_lstsq": (3,),
    "_linalg_slogdet": (2,),
    "_linalg_det": (1,),
    "_linalg_solve_ex": (1,),
}

# In-place operators whose functional form is not the same name without the underscore.
_FUNCTIONAL_NAMES = {
    "normal_": "normal_functional",
    "bernoulli_.float": "bernoulli.p",
    "bernoulli_.Tensor": "bernoulli.Tensor",
    "zero_": "zeros_like",
}


# In-place operators, composed of others, that refuse what their functional form takes.
_OWN_CHECKS = frozenset({"float_power_"})


@record
class OpInfo:
    """`functional`: for "inplace" and "out", the operator that computes the written value. `written`: for "inplace",
    the positions of the written arguments; for "out", their names. `random`: draws from a generator. `detached`: the
    places of results that never require grad, where others do."""

    kind: OpKind
    name: str
    random: bool = False
    differentiable: bool = True
    functional: Any = None
    written: tuple[int, ...] = ()
    written_names: tuple[str, ...] = ()

    @property
    def detached(self) -> tuple[int, ...]:
        return _NO_GRADIENT_RESULTS.get(self.name, ())


# Memory that deterministic mode fills.
UNINITIALIZED = frozenset(
    {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted"}
)


@cache
def op_info(op: Any) -> OpInfo:
    """Classify `op`, an OpOverload, by its schema."""
    schema = op._schema
    name = str(schema.name).rpartition("::")[2]
    tags = op.tags
    random = is_seeded(op)
    differentiable = name not in _NO_GRADIENT and op is not aten.view.dtype
    if (
        name in DATA_DEPENDENT
        or not _is_dispatched(op)
        or torch.Tag.data_dependent_output in tags
        or (torch.Tag.dynamic_output_shape in tags and name not in ("index", "nonzero_static"))
        or (name == "repeat_interleave" and schema.overload_name == "Tensor")
        or schema.overload_name == "tensor_indices_or_sections"
        or (name == "where" and len(schema.arguments) == 1)
    ):
        return OpInfo("data", name)
    if schema.is_mutable:
        return _writing_info(op, name, random, differentiable)
    returns = schema.returns
    if any(r.alias_info is not None for r in returns):
        if is_composite(op) and name not in KEPT_WHOLE:
            return OpInfo("decompose", name)
        single = len(returns) == 1 and str(returns[0].type) == "Tensor"
        kind: OpKind = "view" if single and op.namespace == "aten" else "views"
        return OpInfo(kind, name, random, differentiable)
    if is_composite(op) and name not in KEPT_WHOLE:
        return OpInfo("decompose", name)
    return OpInfo("pure", name, random, differentiable)


@cache
def needed_keywords(op: Any) -> frozenset[str]:
    """The keywords of an operator that have no default: None is given like any other value."""
    return frozenset(a.name for a in op._schema.arguments if a.kwarg_only and not a.has_default_value())


def is_seeded(op: Any) -> bool:
    """Whether an operator may draw from a generator."""
    return torch.Tag.nondeterministic_seeded in op.tags or op._opname in _RANDOM


def _is_dispatched(op: Any) -> bool:
    """Whether torch's dispatcher knows the operator: `aten.size.default` is a question of TorchScript's alone, which
    C++ asks of sizes that it wants as plain ints."""
    return bool(torch._C._dispatch_has_kernel(op.name()))  # pyright: ignore


def is_composite(op: Any) -> bool:
    """Whether torch itself defines the operator by other operators, for every backend and for autograd."""
    return bool(
        torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd")  # pyright: ignore
    )


def _writing_info(op: Any, name: str, random: bool, differentiable: bool) -> OpInfo:
    schema = op._schema
    outs = tuple(a.name for a in schema.arguments if a.is_out)
    if outs:
        functional = _functional_of_out(op)
        if functional is not None:
            return OpInfo("out", name, random, differentiable, functional, written_names=outs)
    written = tuple(
        i for i, a in enumerate(schema.arguments) if a.alias_info is not None and a.alias_info.is_write
    )
    functional = _functional_of_inplace(op)
    if functional is None and is_composite(op):
        return OpInfo("decompose", name)
    return OpInfo("inplace", name, random, differentiable, functional, written=written)


def _functional_of_inplace(op: Any) -> Any:
    """`aten.add_.Tensor` → `aten.add.Tensor`; None if there is no such operator."""
    schema = op._schema
    namespace, _, name = str(schema.name).partition("::")
    full = f"{name}.{schema.overload_name}" if schema.overload_name else name
    known = _FUNCTIONAL_NAMES.get(full)
    if known is not None:
        packet, _, overload = known.partition(".")
        return getattr(getattr(torch.ops.aten, packet), overload or "default")
    if not name.endswith("_") or name.endswith("__") or name in _OWN_CHECKS:
        return None
    return _functional_overload(namespace, name[:-1], schema.arguments)


def _functional_of_out(op: Any) -> Any:
    """`aten.add.out` → `aten.add.Tensor`: the overload with the same arguments but `out`."""
    namespace, _, name = str(op._schema.name).partition("::")
    return _functional_overload(namespace, name, [a for a in op._schema.arguments if not a.is_out])


def _functional_overload(namespace: str, name: str, arguments: Sequence[Any]) -> Any:
    """The overload of an operator that takes these arguments and writes to none of them; None if there is none."""
    packet = getattr(getattr(torch.ops, namespace), name, None)
    if packet is None:
        return None
    wanted = [(a.name, str(a.type)) for a in arguments]
    for overload in packet.overloads():
        candidate = getattr(packet, overload)
        schema = candidate._schema
        if schema.is_mutable or not schema.returns:
            continue
        if [(a.name, str(a.type)) for a in schema.arguments][: len(wanted)] == wanted:
            return candidate
    return None
