"""Instructions of CPython 3.11."""

from __future__ import annotations

import dis
from typing import TYPE_CHECKING, Any

from lampwork.capture.model.frame import Frame
from lampwork.capture.model.values import NULL
from lampwork.capture.opcodes import common
from lampwork.capture.opcodes.data import unary
from lampwork.capture.opcodes.table import Opcodes
from lampwork.capture.semantics.appends import load_attribute
from lampwork.capture.semantics.operands import use
from lampwork.capture.semantics.protocols import truth

if TYPE_CHECKING:
    from lampwork.capture.interpreter import Interpreter

REFUSED: dict[str, str] = {
    **common.REFUSED,
    "ASYNC_GEN_WRAP": "asynchronous code is not captured",
    "IMPORT_STAR": "only found in module bodies",
    "LOAD_CLASSDEREF": "only found in class bodies",
    "PREP_RERAISE_STAR": "exception groups are not captured",
    "PRINT_EXPR": "only found in interactive sessions",
}
# Folded away when code is decoded.
FOLDED = frozenset({"CACHE", "EXTENDED_ARG", "PRECALL", "KW_NAMES"})
# In the common table, but with other names in this version.
_TESTS = ("TRUE", "FALSE", "NONE", "NOT_NONE")
_GONE = frozenset(f"POP_JUMP_IF_{test}" for test in _TESTS)

OPCODES = Opcodes(common.COMMON, without=_GONE, refused=REFUSED)
OPCODES["COMPARE_OP"] = common.jump_compare(dis.cmp_op)
OPCODES.update(
    (f"POP_JUMP_{direction}_IF_{test}", common.COMMON[f"POP_JUMP_IF_{test}"])
    for direction in ("FORWARD", "BACKWARD")
    for test in _TESTS
)


@OPCODES.handles
def LOAD_ATTR(interp: Interpreter, frame: Frame, name: str) -> None:
    frame.stack.append(load_attribute(interp, frame, name))


@OPCODES.handles
def LOAD_METHOD(interp: Interpreter, frame: Frame, name: str) -> None:
    """A bound method is as good as a method and its receiver."""
    method = load_attribute(interp, frame, name)
    frame.stack.extend((NULL, method))


@OPCODES.handles
def UNARY_POSITIVE(interp: Interpreter, frame: Frame, arg: Any) -> None:
    frame.stack.append(unary(interp, use(interp, frame), "__pos__"))


@OPCODES.handles
def JUMP_IF_FALSE_OR_POP(interp: Interpreter, frame: Frame, target: int) -> None:
    value = interp.force(frame.stack[-1])
    if truth(interp, value):
        frame.stack.pop()
    else:
        frame.ip = target


@OPCODES.handles
def JUMP_IF_TRUE_OR_POP(interp: Interpreter, frame: Frame, target: int) -> None:
    value = interp.force(frame.stack[-1])
    if truth(interp, value):
        frame.ip = target
    else:
        frame.stack.pop()
