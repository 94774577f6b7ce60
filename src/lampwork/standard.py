"""Modules of the standard library as they were before any program ran.

A program may put other functions into them (`mock.patch("math.sqrt")`), which changes what the program computes, never
what the compiler does. So the compiler has copies, and takes these modules from here only; a test holds it to that.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import copy as copy
    import functools as functools
    import heapq as heapq
    import itertools as itertools
    import math as math
    import operator as operator
    import struct as struct
else:
    from importlib import import_module

    def _copied(name: str) -> ModuleType:
        made = ModuleType(name)
        made.__dict__.update(vars(import_module(name)))
        return made

    copy, functools, heapq, itertools, math, operator, struct = map(
        _copied, ("copy", "functools", "heapq", "itertools", "math", "operator", "struct")
    )
