"""Operators of a step that are put off until somebody looks: what is pending then is few kernels over many tensors.

    for p in group["params"]:                       # is run as it is, by Python
        m = self.state[p]["m"]
        m.mul_(0.9).add_(p.grad, alpha=0.1)         # pending: mul_(%0, NUMBER); add_(%0, %1, alpha=NUMBER)
        p.add_(m.sign(), alpha=-group["lr"])        # pending: sign(%0); add_(%2, %3, alpha=NUMBER)

A `Deferral` is a function mode: it is asked for whatever Python does to a tensor. Pointwise operators on dense tensors
of one layout are noted, with an empty tensor as the result. Anything else that could see memory, or change it, is done
after what is pending (`pending.py`): a norm, `.item()`, a view, an operator that would raise. So Python sees what it
would have seen, and an exception leaves behind what it would have left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from lampwork import _C, pristine
from lampwork.optimizers.kernel import DTYPES
from lampwork.optimizers.pending import Pended, Pending, function_of
from lampwork.optimizers.pointwise import ALIASING, CASTS, FOREACH, METADATA, POINTWISE, RAW, WRITING
from lampwork.optimizers.trace import NUMBER
from lampwork.optimizers.update import Updater

_TENSORS = (Tensor, nn.Parameter)
_PLAIN = frozenset([int, float, bool, str, type(None), torch.dtype, torch.device])
_LETTERS = {dtype: letter for letter, dtype in DTYPES.items()} | {torch.bool: "?"}
_DTYPES = {letter: dtype for dtype, letter in _LETTERS.items()}
_EXACT = 1 << 53  # ints up to here are floats
_SMALL = 8  # powers up to here are part of a kernel

_COMMUTING = frozenset(["add", "mul"])

_mode: Any = torch._C

_known: dict[Any, str] = {}
"""The letter of the result's dtype for calls that were tried: their name, letters of operands, and other arguments. It
is empty where there is no result."""


class Deferral:
    """What a step has put off so far. `with` puts it on the stack of function modes."""

    def __init__(self, updater: Updater) -> None:
        self._updater = updater
        self._pending = Pending()
        self._places: dict[int, int] = {}  # by id; all of these tensors are alive
        self._cells: dict[Any, int] = {}
        self._aliases: list[Tensor] = []
        self._stopped = False
        self.saved = 0.0  # nanoseconds, by estimate

    def __enter__(self) -> None:
        _mode._push_on_torch_function_stack(self)

    def __exit__(self, *raised: Any) -> None:
        _mode._pop_torch_function_stack()
        self.flush()

    def stop(self) -> None:
        """Put off nothing from now on."""
        self.flush()
        self._stopped = True

    def outside(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function after what is pending, with the mode off."""
        depth = torch._C._len_torch_function_stack()
        self.flush()
        if not depth or _mode._get_function_stack_at(depth - 1) is not self:
            self._stopped = True
            return function(*args, **kwargs)
        _mode._pop_torch_function_stack()
        try:
            return function(*args, **kwargs)
        finally:
            _mode._push_on_torch_function_stack(self)

    def flush(self) -> None:
        """Do what is pending."""
        if not self._places:
            return
        pending, self._pending = self._pending, Pending()
        self._places, self._cells, self._aliases = {}, {}, []
        if pending.calls:
            self.saved += pending.run(self._updater)
            self._stopped = self._stopped or pending.is_eager

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = POINTWISE.get(function)
        if name is not None:
            result = self._note(name, args, kwargs)
            if result is not None:
                return result
        elif function in METADATA:
            if function not in ALIASING or not self._is_pending(args[0]):
                return function(*args, **(kwargs or {}))
        elif not self._stopped and (special := _SPECIAL.get(function)) is not None:
            result = special(self, function, args, kwargs or {})
            if result is not NotImplemented:
                return result
        return self._after_pending(function, args, kwargs or {})

    def _after_pending(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not all(map(_is_apart, args)) or not all(map(_is_apart, kwargs.values())):
            self.flush()
        if function in RAW:
            self._stopped = True
        return function(*args, **kwargs)

    def _is_pending(self, tensor: Tensor) -> bool:
        """Whether a tensor is the result of a pending operator."""
        return self._places.get(id(tensor), -1) in self._pending.made

    def _note(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Tensor | None:
        """Put an operator off, and give its result; None, and nothing done, if it cannot be."""
        if self._stopped or pristine.is_grad_enabled() or pristine.is_inference_mode_enabled():
            return None
        if pristine.is_autocast_enabled("cpu"):
            return None
        pending = self._pending
        places, layouts = self._places, pending.layouts
        codes: list[Any] = []  # places of tensors, NUMBER, and other arguments, each alone in a tuple
        kinds: list[Any] = []
        numbers: list[float] = []
        operands: list[int] = []
        layout: bytes | None = None
        for arg in (*args, *kwargs.values()) if kwargs else args:
            kind = type(arg)
            if kind is float:
                codes.append(NUMBER)
                kinds.append(NUMBER)
                numbers.append(arg)
                continue
            if kind in _PLAIN:
                if kind is int and _is_float(name, arg):
                    codes.append(NUMBER)
                    kinds.append(NUMBER)
                    numbers.append(float(arg))
                else:
                    codes.append((arg,))
                    kinds.append((kind, arg))
                continue
            place = places.get(id(arg))
            if place is None:
                found = self._joined(arg)
                if found is None:
                    return None
                if type(found) is float:
                    codes.append(NUMBER)
                    kinds.append(arg.dtype if isinstance(arg, Tensor) else NUMBER)
                    numbers.append(found)
                    continue
                place = cast(int, found)
            if layout is None:
                layout = layouts[place]
            elif layouts[place] != layout:
                return None
            codes.append(place)
            kinds.append(pending.letters[place])
            operands.append(place)
        if layout is None:
            return None
        keys = tuple(kwargs) if kwargs else ()
        signature = (name, tuple(kinds), keys)
        letter = _known.get(signature)
        if letter is None:
            if name in _COMMUTING and codes[0] == NUMBER and not keys:
                return self._note(name, (args[1], args[0]), None)
            letter = _known[signature] = _tried(signature, numbers)
        if not letter:
            return None
        call = name, tuple(codes), keys, tuple(numbers)
        if name[-1] == WRITING:
            pending.written.add(operands[0])
            pending.calls.append(Pended(*call, tuple(operands), -1))
            return args[0]
        made = pristine.empty_like(pending.tensors[operands[0]], dtype=_DTYPES[letter])
        place = places[id(made)] = pending.join(made, letter, layout)
        pending.made.add(place)
        pending.calls.append(Pended(*call, (*operands, place), place))
        return made

    def _joined(self, arg: Any) -> int | float | None:
        """The place of a tensor that was not seen before, or the float that it stands for; None for all others."""
        if type(arg) not in _TENSORS:
            return float(arg) if isinstance(arg, float) else None
        cell = _C.row_cell(arg)
        if cell is None:
            return float(arg.item()) if _C.is_lone_number(arg) else None
        place = self._cells.get(cell)
        if place is None:
            place = self._cells[cell] = self._pending.join(arg, cell[1], cell[2])
        else:
            self._aliases.append(arg)
        self._places[id(arg)] = place
        return place

    def _note_each(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An operator on lists of tensors. Those that cannot be put off are done in their turn."""
        name = FOREACH[function]
        if not args or type(args[0]) not in (list, tuple):
            return NotImplemented
        count = len(args[0])
        lists = [arg for arg in (*args, *kwargs.values()) if type(arg) in (list, tuple)]
        if not count or any(len(each) != count for each in lists):
            return NotImplemented
        results: list[Tensor] = []
        for row in range(count):
            given = tuple(arg[row] if type(arg) in (list, tuple) else arg for arg in args)
            named = {key: arg[row] if type(arg) in (list, tuple) else arg for key, arg in kwargs.items()}
            if name.startswith("addc") and len(given) == 4:
                given, named = given[:3], {"value": given[3]}
            result = self._note(name, given, named)
            if result is None:
                # The first ones are pending: the rest is done after them.
                rest = tuple(arg[row:] if type(arg) in (list, tuple) else arg for arg in args)
                tail = {key: arg[row:] if type(arg) in (list, tuple) else arg for key, arg in kwargs.items()}
                results += self._after_pending(function, rest, tail) or ()
                break
            results.append(result)
        return None if name.endswith(WRITING) else tuple(results)

    def _cast(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensor = args[0]
        if type(tensor) not in _TENSORS or kwargs or any(type(arg) is not torch.dtype for arg in args[1:]):
            return NotImplemented
        dtype = args[1] if len(args) == 2 else getattr(torch, function.__name__, None)
        if dtype is tensor.dtype:
            return tensor
        result = self._note("to", (tensor, dtype), None) if dtype in _LETTERS else None
        return NotImplemented if result is None else result

    def _clone(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if kwargs.get("memory_format", torch.preserve_format) is not torch.preserve_format:
            return NotImplemented
        result = self._note("clone", args, None)
        return NotImplemented if result is None else result

    def _over(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A number by a tensor, which torch computes by the reciprocal."""
        inverse = None if kwargs else self._note("reciprocal", args[:1], None)
        if inverse is None:
            return NotImplemented
        return self.__torch_function__(Tensor.mul, (), (inverse, args[1]))

    def _power(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = None if kwargs else self._note("torch.pow", (args[1], args[0]), None)
        return NotImplemented if result is None else result

    def _fill(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """`x[mask] = 0.5`"""
        tensor, mask, value = args
        if type(mask) is not Tensor or type(value) not in (int, float) or mask.dtype is not torch.bool:
            return NotImplemented
        filled = self._note("masked_fill_", (tensor, mask, value), None)
        return NotImplemented if filled is None else None


_SPECIAL: dict[Any, Callable[[Deferral, Any, tuple[Any, ...], dict[str, Any]], Any]] = {
    **dict.fromkeys(FOREACH, Deferral._note_each),
    **dict.fromkeys(CASTS, Deferral._cast),
    Tensor.clone: Deferral._clone,
    torch.clone: Deferral._clone,
    Tensor.__rdiv__: Deferral._over,
    Tensor.__rtruediv__: Deferral._over,
    Tensor.__rpow__: Deferral._power,
    Tensor.__setitem__: Deferral._fill,
}


def _is_apart(arg: Any) -> bool:
    """Whether an argument can be none of the tensors that are pending, nor share their memory."""
    return type(arg) in _PLAIN or (type(arg) in _TENSORS and _C.is_lone_number(arg))


def _is_float(name: str, number: int) -> bool:
    """Whether an int is a number like others: a small power is computed by products."""
    return -_EXACT < number < _EXACT and ("pow" not in name or abs(number) > _SMALL)


def _tried(signature: tuple[str, tuple[Any, ...], tuple[str, ...]], numbers: Sequence[float]) -> str:
    """The letter of what an operator gives for operands like these, by eager's word; empty where it raises, or where it
    takes no float in place of a tensor of no dimension, or rounds that to half precision."""
    _, kinds, _ = signature
    has_scalars = any(type(kind) is torch.dtype for kind in kinds)
    letter = _given_letter(signature, numbers, with_scalars=False)
    if not letter or not has_scalars:
        return letter
    is_half = any(kind in ("h", "b") for kind in kinds)
    return letter if not is_half and letter == _given_letter(signature, numbers, with_scalars=True) else ""


def _given_letter(
    signature: tuple[str, tuple[Any, ...], tuple[str, ...]], numbers: Sequence[float], *, with_scalars: bool
) -> str:
    """The letter of what an operator gives for tensors of two elements. with_scalars: some numbers are tensors."""
    name, kinds, keys = signature
    waiting = iter(numbers)
    operands: list[Any] = []
    for kind in kinds:
        if kind == NUMBER:
            operands.append(next(waiting))
        elif type(kind) is torch.dtype:
            number = next(waiting)
            operands.append(pristine.full((), number, dtype=kind, device="cpu") if with_scalars else number)
        elif type(kind) is tuple:
            operands.append(kind[1])
        else:
            operands.append(pristine.ones(2, dtype=_DTYPES[kind], device="cpu"))
    split = len(operands) - len(keys)
    try:
        result: Any = function_of(name)(*operands[:split], **dict(zip(keys, operands[split:], strict=True)))
    except (RuntimeError, TypeError, ValueError, IndexError):
        return ""  # the error is raised where the program calls it
    return _LETTERS.get(result.dtype, "") if isinstance(result, Tensor) and result.shape == (2,) else ""
