"""What to say of results of an artifact that are copies, where others would give views."""

from __future__ import annotations

from lampwork.exports.pieces import Piece
from lampwork.rewriting.apply.aliasing import storage_root


def copies(piece: Piece) -> list[str]:
    """Results that are views of what is given, in eager, and that programs compute: other dtypes of the same bytes, and
    conjugates and negatives of what is written."""
    names = (*piece.inputs, *piece.weights)
    given = dict(zip(piece.placeholders, names, strict=True))
    found = [
        f"{piece.outputs[output]} is a copy, where eager returns a view of {names[place]}"
        for output, place in piece.copies
    ]
    for name, node in zip(piece.outputs, piece.results, strict=True):
        root = storage_root(node)
        if root in given and root.meta["val"].dtype != node.meta["val"].dtype:
            found.append(f"{name} is a copy, where eager returns a view of {given[root]}")
    return found


def copies_without_torch(piece: Piece, passes: bool) -> list[str]:
    """What C++ returns otherwise than Python: copies of what no call owns, and nothing of what nothing looked at.
    `passes`: Python returns such arguments."""
    named = (
        *(f"the input {name}" for name in piece.inputs),
        *(f"the weight {name}" for name in piece.weights),
    )
    at = {node: number for number, node in enumerate(piece.placeholders)}
    written = {place for place, _ in piece.writes}
    views, lazy = dict(piece.views), dict(piece.copies)
    found: list[str] = []
    for number in range(len(piece.outputs) - len(piece.writes)):
        node = piece.results[number]
        root = storage_root(node)
        place = views.get(number, at.get(root))
        if place is None or number in lazy or (place in written and place < len(piece.inputs)):
            continue  # it has memory of its own in Python too, or lies in an input that is written to in C++ too
        if number in views or root.meta["val"].dtype == node.meta["val"].dtype:
            what = named[place] if node is root else f"a view of {named[place]}"
            found.append(f"{piece.outputs[number]} is a copy in C++; in Python it is {what}")
    if passes:
        found.append(
            "Python returns arguments as they were passed that nothing looks at; C++ neither takes nor returns them"
        )
    return found
