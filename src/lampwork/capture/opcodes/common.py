"""The table of instructions that mean the same in CPython 3.11 and 3.12."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lampwork.capture.model.frame import Frame
from lampwork.capture.opcodes import control, data
from lampwork.capture.opcodes.table import Opcodes
from lampwork.capture.semantics.operands import Handler, use
from lampwork.capture.semantics.protocols import compare

if TYPE_CHECKING:
    from lampwork.capture.interpreter import Interpreter

# The reason of what the interpreter inserts by itself.
NEVER = "never found in code objects"

# Refused in all versions, with the reason.
REFUSED: dict[str, str] = {
    "GET_AITER": "asynchronous code is not captured",
    "GET_ANEXT": "asynchronous code is not captured",
    "GET_AWAITABLE": "asynchronous code is not captured",
    "END_ASYNC_FOR": "asynchronous code is not captured",
    "BEFORE_ASYNC_WITH": "asynchronous code is not captured",
    "CHECK_EG_MATCH": "exception groups are not captured",
    "DELETE_GLOBAL": "deleting a global is not held back",
    "DELETE_NAME": "only found in module and class bodies",
    "LOAD_NAME": "only found in module and class bodies",
    "STORE_NAME": "only found in module and class bodies",
    "SETUP_ANNOTATIONS": "only found in module and class bodies",
}

COMMON = Opcodes(data.OPCODES, control.OPCODES)


def jump_compare(symbols: tuple[str, ...]) -> Handler:
    """COMPARE_OP, whose argument indexes `symbols`."""

    def COMPARE_OP(interp: Interpreter, frame: Frame, arg: int) -> None:
        right = use(interp, frame)
        frame.stack.append(compare(interp, symbols[arg], use(interp, frame), right))

    return COMPARE_OP
