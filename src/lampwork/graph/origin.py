"""Where a node comes from: the user's line, and the module whose `forward` ran there.

`node.meta["location"]` is the innermost line outside of torch's files, ours and the standard library's; the innermost
line of all where there is no such. `node.meta["origin"]` is an `Origin`. Every operator of a captured graph has both,
after all passes too (`verify`): whoever makes a node gives it a `Place`, most often that of another node.
"""

from __future__ import annotations

import os
import sysconfig

import torch
from torch import fx

from lampwork.errors import Location
from lampwork.records import record
from lampwork.standard import functools


@record
class Origin:
    """Where in a model a node comes from.

    `module`: the dotted path of the innermost module whose `forward` ran, relative to what was compiled
    (`encoder.layer.3.attention.self.query`); "" for the compiled module itself, and outside of modules. In a compiled
    function it begins with the name by which the function reaches the module (`model.layers.0`). `module_type`: the
    name of its class, "" outside of modules. `stack`: the lines of all active frames, outermost first, with those of
    torch's own files.
    """

    module: str
    module_type: str
    stack: tuple[Location, ...]


@record
class Place:
    """What the meta of a node says of where it comes from; None: not known, as of graphs that nobody captured."""

    location: Location | None = None
    origin: Origin | None = None


NOWHERE = Place()


def place_of(node: fx.Node) -> Place:
    return Place(node.meta.get("location"), node.meta.get("origin"))


def stamp(node: fx.Node, place: Place) -> None:
    """Note where a node comes from."""
    if place.location is not None:
        node.meta["location"] = place.location
    if place.origin is not None:
        node.meta["origin"] = place.origin


def place_near(node: fx.Node) -> Place:
    """The place of a node, or of the nearest one that has one: what it reads, what reads it, then along the graph."""
    for near in (node, *node.all_input_nodes, *node.users):
        if "origin" in near.meta or "location" in near.meta:
            return place_of(near)
    before = after = node
    while (
        before.op != "root" or after.op != "root"
    ):  # the root stands before the first node and behind the last
        if before.op != "root":
            before = before.prev
        if after.op != "root":
            after = after.next
        for near in (before, after):
            if "origin" in near.meta or "location" in near.meta:
                return place_of(near)
    return NOWHERE


def _folder(file: str) -> str:
    return os.path.dirname(os.path.abspath(file)) + os.sep


_TORCH = _folder(torch.__file__)
_OURS = os.path.dirname(_folder(__file__).rstrip(os.sep)) + os.sep
_MODELS_OF_OURS = os.path.join(_OURS, "bench") + os.sep
_STANDARD = os.path.join(sysconfig.get_path("stdlib"), "")
_INSTALLED = ("site-packages", "dist-packages")


@functools.lru_cache(4096)
def is_users(file: str) -> bool:
    """Whether the code in a file is the user's or of a library of his: not torch's, ours, or Python's."""
    if file.startswith((_TORCH, "<frozen ")):
        return False
    if file.startswith(_OURS):
        return file.startswith(_MODELS_OF_OURS)
    if file.startswith(_STANDARD):
        return file[len(_STANDARD) :].startswith(_INSTALLED)
    return True
