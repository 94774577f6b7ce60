"""What dicts take of other mappings: `dict(m)`, `{**m}`, `f(**m)`, `table.update(m)`, `table |= m`."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any, cast

from lampwork.capture.semantics.attributes import has_attr, load_attr
from lampwork.capture.semantics.iteration import iterate, native_iterable, native_view
from lampwork.capture.semantics.protocols import get_item

if TYPE_CHECKING:
    from lampwork.capture.interpreter import Interpreter


_ASKED = ("__iter__", "keys", "__getitem__")


def plain_mapping(interp: Interpreter, value: Any, ordered: bool = False) -> dict[Any, Any]:
    """Any mapping as a dict. Of a dict whose class leaves `__iter__` alone, Python takes the content as it lies,
    whatever the class makes of `keys` and `__getitem__`; of others, their keys and the items under them. An OrderedDict
    (`ordered`) asks the class of every other dict, and its own class is always asked.

    Raises:
        TypeError: it is no mapping.
    """
    if type(value) is dict:
        return cast("dict[Any, Any]", value)
    asked = _ASKED if ordered or isinstance(value, collections.OrderedDict) else _ASKED[:1]
    if isinstance(value, dict) and all(interp.python_method(type(value), name) is None for name in asked):
        return cast("dict[Any, Any]", native_view(interp, value))
    if not has_attr(interp, value, "keys"):
        raise TypeError(f"{type(value).__name__!r} object is not a mapping")
    keys = interp.call(load_attr(interp, value, "keys"), [], {})
    return {key: get_item(interp, value, key) for key in iterate(interp, keys)}


def mapping_or_pairs(interp: Interpreter, value: Any, ordered: bool = False) -> Any:
    """What `dict(value)` and `table.update(value)` read: a mapping, as a dict, or an iterable of pairs."""
    if isinstance(value, dict) or has_attr(interp, value, "keys"):
        return plain_mapping(interp, value, ordered)
    return native_iterable(interp, value)
