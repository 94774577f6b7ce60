"""The vocabulary of patterns: what a pattern function may contain. See docs/rewriting.md.

from lampwork.patterns import maybe, number, scaled, tensor

def pattern(q=tensor(rank=4), k=tensor(rank=4), v=tensor(rank=4), c=number(), mask=tensor()):
    scores = scaled(q @ k.transpose(-2, -1), c)
    return torch.softmax(maybe(torch.add, scores, mask), -1) @ v
"""

from lampwork.rewriting.language.combinators.either import either, maybe
from lampwork.rewriting.language.combinators.repeated import repeated
from lampwork.rewriting.language.combinators.through import through
from lampwork.rewriting.language.combinators.via import scaled
from lampwork.rewriting.language.term import call
from lampwork.rewriting.language.variables import anything, constant, number, rest, tensor

__all__ = [
    "anything",
    "call",
    "constant",
    "either",
    "maybe",
    "number",
    "repeated",
    "rest",
    "scaled",
    "tensor",
    "through",
]
