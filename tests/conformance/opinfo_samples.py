"""torch's own samples of its operators, run eager and compiled.

The database is `torch.testing._internal.common_methods_invocations.op_db`, which ships in torch's wheel and needs the
package expecttest. It is imported when first asked for: the import takes seconds and changes flags of torch.
"""

from __future__ import annotations

import copy
import itertools
import math
import warnings
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import torch
from torch.utils import _pytree as pytree

import lampwork
from lampwork.api import function_of

DTYPES = {
    "float32": torch.float32,
    "int64": torch.int64,
    "bool": torch.bool,
    "bfloat16": torch.bfloat16,
    "complex64": torch.complex64,
}

# float32 operators that may run eager, and why; all others are compiled in one region.
EAGER = {
    # What they give depends on data: Python numbers, or as many elements as there happen to be.
    **dict.fromkeys(
        (
            "__getitem__ allclose argwhere equal index_put item masked_select narrow nonzero tensor_split unique "
            "unique_consecutive repeat_interleave nn.functional.gaussian_nll_loss nn.functional.ctc_loss linalg.lstsq "
            "linalg.lstsq.grad_oriented"
        ).split(),
        "LW102",
    ),
    # They change the shape of an argument, give sparse tensors, look at memory before the argument's, or make memory
    # that has gaps.
    **dict.fromkeys(
        ("resize_", "resize_as_", "to_sparse", "as_strided", "as_strided.partial_views", "empty_strided"),
        "LW106",
    ),
    # The conjugate of a tensor that is not dense.
    **dict.fromkeys(("fft.hfft", "fft.hfftn"), "LW106"),
    # torch warns of these calls (deprecated, in beta, a default that may surprise), on each call in eager's words.
    **dict.fromkeys(
        (
            "cholesky cross index_reduce.amax index_reduce.amin index_reduce.mean index_reduce.prod lu lu_solve "
            "nn.functional.dropout2d nn.functional.upsample_bilinear nn.functional.upsample_nearest qr scatter stft "
            "triangular_solve"
        ).split(),
        "LW120",
    ),
    # Arguments are sparse.
    **dict.fromkeys(("sparse.sampled_addmm", "sparse.mm.reduce"), "LW107"),
}

Kind = Literal["compiled", "eager", "raised", "wrong", "crashed"]

# Their results are whatever the memory held.
_UNINITIALIZED = frozenset(
    {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
)

# So are their results behind these many, the state of a generator and what holds a debug mask, without dropout.
_RESULTS = {
    "torch.ops.aten._efficient_attention_forward": 2,
    "torch.ops.aten._flash_attention_forward": 2,
}

# As in float64, so to say: what a dtype becomes to compute the reference.
_WIDER = {
    torch.float32: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float16: torch.float64,
    torch.complex64: torch.complex128,
}

# Beside twice the error of eager, by dtype: some units in the last place.
_TOLERANCE = {
    torch.float32: 16 * 2.0**-23,
    torch.complex64: 16 * 2.0**-23,
    torch.float64: 16 * 2.0**-52,
    torch.complex128: 16 * 2.0**-52,
    torch.bfloat16: 2.0**-8,
    torch.float16: 2.0**-11,
}

# Attention takes exponentials of scores of hundreds and thousands, which magnify the rounding of a score, and then sums
# of products. Errors may be four times eager's largest, whatever the size of the element.
_ILL_CONDITIONED = frozenset(
    {"nn.functional.scaled_dot_product_attention", "nn.functional.multi_head_attention_forward"}
)

# Randomized decompositions U diag(S) V^H: a column of U and of V may be turned by any phase, or lie anywhere in the
# null space, as the last bits of a matrix product have it, and those change with the alignment of memory.
_DECOMPOSITIONS = frozenset({"svd_lowrank", "pca_lowrank"})


@dataclass(frozen=True, slots=True)
class Sample:
    """One call of an operator: `name` is the operator's, with variant, dtype and number of the sample."""

    name: str
    operator: str
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    device: str = "cpu"


@dataclass(frozen=True, slots=True)
class Outcome:
    """`kind`: "compiled": right, in one region; "eager": right, after a graph break or a refusal, whose codes are
    `codes`; "raised": eager raised, and so did the compiled function, the same; "wrong"; "crashed": the compiler
    failed. `detail`: how."""

    sample: str
    kind: Kind
    codes: tuple[str, ...] = ()
    detail: str = ""


@cache
def database() -> tuple[Any, ...]:
    """Every OpInfo, in torch's order."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal import common_methods_invocations as invocations
        from torch.testing._internal import common_utils
    # Some operators come wrapped in what saves and sets torch's random state, which is part of the tests of torch, and
    # no part of the operator; we set a seed for each run.
    invocations.wrapper_set_seed = _call
    # For each set of samples the stack is searched for a test of unittest, with the source of every frame: half of
    # the time of our tests, which are none of those.
    common_utils.extract_test_fn = _nothing
    # torch's test helpers forbid setting flags of torch.backends for the rest of the process.
    torch.backends.__allow_nonbracketed_mutation_flag = True
    return tuple(invocations.op_db)


def _nothing() -> None:
    return None


def _call(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return fn(*args, **kwargs)


def full_name(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def _first_results(fn: Callable[..., Any], count: int) -> Callable[..., Any]:
    return lambda *args, **kwargs: fn(*args, **kwargs)[:count]


def samples(
    op: Any,
    dtype: torch.dtype,
    limit: int | None = None,
    *,
    requires_grad: bool = False,
    inplace: bool = False,
    device: str = "cpu",
) -> Iterator[Sample]:
    """The first `limit` samples of an operator, the same on each call; none where it does not take the dtype."""
    if not op.supports_dtype(dtype, device):
        return
    fn = op.inplace_variant if inplace else op.op
    if (results := _RESULTS.get(op.name)) is not None:
        fn = _first_results(fn, results)
    name = f"{full_name(op)}{' in place' if inplace else ''} {str(dtype).removeprefix('torch.')}"
    _seed(zlib.crc32(name.encode()), device)
    found = op.sample_inputs(device, dtype, requires_grad=requires_grad)
    for number, sample in enumerate(itertools.islice(found, limit)):
        if inplace and (sample.broadcasts_input or not isinstance(sample.input, torch.Tensor)):
            continue
        yield Sample(
            f"{name} {number}", full_name(op), fn, (sample.input, *sample.args), dict(sample.kwargs), device
        )


def _seed(seed: int, device: str) -> None:
    torch.default_generator.manual_seed(seed)
    if device == "cuda":
        torch.cuda.manual_seed(seed)


def check(sample: Sample) -> Outcome:
    """Run a sample eager and compiled and compare: results, arguments afterwards, exceptions."""
    want, want_args, raised = _run(sample.fn, sample)
    drew = _drew(sample.device)
    lampwork.reset_stats()

    def program(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    fn = sample.fn
    compiled = lampwork.compile(program, dynamic=False, options={"strict": False, "verify": True})
    got, got_args, got_raised = _run(compiled, sample)
    records = [r for f in function_of(compiled).tree() for r in f.records]
    failures = [r for r in records if r.code in ("LW500", "LW119") or not r.code.startswith("LW1")]
    if failures:
        return Outcome(sample.name, "crashed", detail=failures[0].cause)
    if type(raised) is not type(got_raised) or str(raised) != str(got_raised):
        kind: Kind = "crashed" if raised is None else "wrong"
        return Outcome(sample.name, kind, detail=f"raised {got_raised!r}, expected {raised!r}")
    reference = None
    if raised is None:
        reference = None if drew else _reference(sample)
        if sample.operator in _UNINITIALIZED:
            want, got, reference = (
                pytree.tree_map_only(torch.Tensor, torch.zeros_like, v) for v in (want, got, None)
            )
    if sample.operator in _DECOMPOSITIONS and raised is None:
        difference = compare(want, got, None, values=False)
        if difference is not None:
            return Outcome(sample.name, "wrong", detail=difference)
        want, got = promised(want), promised(got)
        reference = None if reference is None else (promised(reference[0]), reference[1])
    difference = compare(
        (want, want_args), (got, got_args), reference, sample.operator in _ILL_CONDITIONED | _DECOMPOSITIONS
    )
    if difference is not None:
        return Outcome(sample.name, "wrong", detail=difference)
    if raised is not None:
        return Outcome(sample.name, "raised", detail=repr(raised))
    stats = lampwork.stats()
    codes = tuple(record.code for record in records)
    kind = "compiled" if stats["compiled_calls"] == 1 and not codes else "eager"
    return Outcome(sample.name, kind, codes, "; ".join(f"{r.code} {r.cause}" for r in records))


def check_gradients(sample: Sample) -> Outcome | None:
    """Forward with gradients and backward, of a sample whose inputs require grad; None if none can be had.

    Gradients are of sums of the results' absolute values, by all inputs that require grad, and are to be as near to
    those in double precision as eager's.
    """
    try:
        want = _gradients(sample.fn, sample)
    except RuntimeError:
        return None  # Not differentiable at this sample, as eager says.
    if want is None:
        return None
    drew = _drew(sample.device)
    lampwork.reset_stats()

    def program(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    fn = sample.fn
    compiled = lampwork.compile(program, dynamic=False, options={"strict": False, "verify": True})
    try:
        got = _gradients(compiled, sample)
    except RuntimeError as error:
        return Outcome(sample.name, "crashed", detail=f"raised {error!r}")
    records = [r for f in function_of(compiled).tree() for r in f.records]
    failures = [r for r in records if r.code in ("LW500", "LW119") or not r.code.startswith("LW1")]
    if failures:
        return Outcome(sample.name, "crashed", detail=failures[0].cause)
    args, kwargs = pytree.tree_map(_widened, (sample.args, sample.kwargs))
    try:
        wide = Sample(sample.name, sample.operator, fn, args, kwargs)
        reference = None if drew else _moved(_gradients(fn, wide), sample.device)
    except RuntimeError:
        reference = None
    difference = compare(want, got, reference, sample.operator in _ILL_CONDITIONED | _DECOMPOSITIONS)
    if difference is not None:
        return Outcome(sample.name, "wrong", detail=difference)
    codes = tuple(record.code for record in records)
    kind: Kind = "compiled" if lampwork.stats()["compiled_calls"] == 1 and not codes else "eager"
    return Outcome(sample.name, kind, codes, "; ".join(f"{r.code} {r.cause}" for r in records))


def _gradients(fn: Callable[..., Any], sample: Sample) -> list[Any] | None:
    """Results and gradients; None if no result requires grad."""
    args, kwargs = _copied((sample.args, sample.kwargs))
    inputs = [
        t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor) and t.requires_grad
    ]
    _seed(7, sample.device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = fn(*args, **kwargs)
        results = [t for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor) and t.requires_grad]
        if not results or not inputs:
            return None
        total = sum(t.abs().sum() for t in results)
        found = torch.autograd.grad(total, inputs, allow_unused=True)
    return [result, *found]


def _run(fn: Callable[..., Any], sample: Sample) -> tuple[Any, Any, Exception | None]:
    """The result, the arguments afterwards, and what was raised."""
    args, kwargs = _copied((sample.args, sample.kwargs))
    _seed(7, sample.device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return fn(*args, **kwargs), (args, kwargs), None
        except Exception as error:  # noqa: BLE001  (whatever eager raises is what compiled code must raise)
            return None, (args, kwargs), error


def _copied(tree: Any) -> Any:
    """The same with tensors of its own; those that shared memory do so still."""
    memo: dict[int, Any] = {}
    for leaf in pytree.tree_leaves(tree):
        if isinstance(leaf, torch.Tensor) and (leaf.layout is not torch.strided or not leaf.is_leaf):
            memo[id(leaf)] = leaf.detach().clone().requires_grad_(leaf.requires_grad)
    return copy.deepcopy(tree, memo)


def _widened(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        wide = value.detach().to("cpu", _WIDER.get(value.dtype, value.dtype))
        return wide.requires_grad_(value.requires_grad)
    if isinstance(value, torch.device) or value == "cuda":
        return torch.device("cpu")
    return _WIDER.get(value, value) if isinstance(value, torch.dtype) else value


def _moved(tree: Any, device: str) -> Any:
    return tree if device == "cpu" else pytree.tree_map_only(torch.Tensor, lambda x: x.to(device), tree)


def _drew(device: str) -> bool:
    """Whether the operator that just ran drew random numbers on a device whose stream is not the CPU's."""
    if device == "cpu":
        return False
    state = torch.cuda.get_rng_state()
    _seed(7, device)
    return not torch.equal(state, torch.cuda.get_rng_state())


def _reference(sample: Sample) -> Any:
    """Results and arguments afterwards in double precision, computed on the CPU; None if the operator does not run
    so."""
    args, kwargs = pytree.tree_map(_widened, _copied((sample.args, sample.kwargs)))
    wide = Sample(sample.name, sample.operator, sample.fn, args, kwargs)
    result, after, raised = _run(sample.fn, wide)
    return None if raised is not None else _moved((result, after), sample.device)


def promised(decomposition: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """What is unique of (U, S, V): the singular values, the matrix put together again, and that U and V have
    orthonormal columns."""
    u, s, v = decomposition
    return s, (u * s.unsqueeze(-2)) @ v.mH, u.mH @ u, v.mH @ v


def compare(want: Any, got: Any, reference: Any, loose: bool = False, *, values: bool = True) -> str | None:
    """How `got` differs from `want`, both trees of tensors and other values; None if it does not.

    Structure, types, dtypes, shapes, strides and flags are to be the same, and so are integers and booleans. Floats
    differ from `reference`, the same in double precision, by at most twice what `want` does somewhere and some units in
    the last place; without a reference, from `want` by the latter. `values`: whether to look at them at all.
    """
    wanted, structure = pytree.tree_flatten(want)
    found, found_structure = pytree.tree_flatten(got)
    if structure != found_structure:
        return f"structure {found_structure}, expected {structure}"
    exact, exact_structure = pytree.tree_flatten(reference)
    if reference is None or exact_structure != structure:
        exact = [None] * len(wanted)
    for number, (a, b, c) in enumerate(zip(wanted, found, exact, strict=True)):
        difference = _compare_leaf(a, b, c, loose, values)
        if difference is not None:
            return f"value {number}: {difference}"
    return None


def _compare_leaf(want: Any, got: Any, exact: Any, loose: bool, values: bool) -> str | None:
    if type(want) is not type(got):
        return f"type {type(got).__name__}, expected {type(want).__name__}"
    if not isinstance(want, torch.Tensor):
        if isinstance(want, float) and math.isnan(want) and math.isnan(got):
            return None
        # Each run has modules and generators of its own, as arguments.
        if isinstance(want, (torch.Generator, torch.nn.Module)) or want is got or want == got:
            return None
        return f"{got!r}, expected {want!r}"
    for name in ("layout", "dtype", "device", "shape", "requires_grad"):
        if getattr(want, name) != getattr(got, name):
            return f"{name} {getattr(got, name)}, expected {getattr(want, name)}"
    if want.layout is not torch.strided:
        return compare_values(want.to_dense().detach(), got.to_dense().detach(), None)
    for name in ("stride", "storage_offset", "is_conj", "is_neg"):
        if getattr(want, name)() != getattr(got, name)():
            return f"{name} {getattr(got, name)()}, expected {getattr(want, name)()}"
    return compare_values(want.detach(), got.detach(), exact, loose) if values else None


def compare_values(want: torch.Tensor, got: torch.Tensor, exact: Any, loose: bool = False) -> str | None:
    """As `compare`, for two tensors of one dtype and shape."""
    if want.dtype is torch.complex32:
        want, got = want.to(torch.complex64), got.to(torch.complex64)
    if torch.equal(want, got):
        return None
    tolerance = _TOLERANCE.get(want.dtype)
    if tolerance is None:
        return f"{_first(want, got, want != got)}"
    if want.is_complex():
        want, got = torch.view_as_real(want.resolve_conj()), torch.view_as_real(got.resolve_conj())
        if isinstance(exact, torch.Tensor) and exact.is_complex():
            exact = torch.view_as_real(exact.resolve_conj())
    wide_want, wide_got = want.double(), got.double()
    usable = isinstance(exact, torch.Tensor) and exact.shape == want.shape and exact.dtype is torch.float64
    wide = exact.detach() if usable else wide_want
    same = (wide_got == wide_want) | (wide_got.isnan() & wide_want.isnan())
    magnitude = 1 + wide.abs()
    scale = torch.ones_like(wide) if loose else magnitude
    eager_error = ((wide_want - wide).abs() / scale).nan_to_num(0.0, 0.0)
    largest = eager_error.max() if eager_error.numel() else 0.0
    roundings = 8 if loose and not usable else 1
    allowed = (4 if loose else 2) * largest * scale + roundings * tolerance * magnitude
    wrong = ~same & ~((wide_got - wide).abs() <= allowed)
    return None if not wrong.any() else _first(want, got, wrong)


def _first(want: torch.Tensor, got: torch.Tensor, wrong: torch.Tensor) -> str:
    where = tuple(wrong.nonzero()[0].tolist())
    count = f"{int(wrong.sum())} of {wrong.numel()} values"
    return f"{count}; at {where} {got[where].item()}, expected {want[where].item()}"
