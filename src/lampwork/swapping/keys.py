"""Keys of `swap`: which modules a key means, and what to say when it means none."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, cast

from torch import nn

from lampwork.errors import OptionError
from lampwork.records import record
from lampwork.swapping.sites import Site, class_of, root_of


class Kind(IntEnum):
    """Kinds of keys, the most specific first: the first of these that means a module decides over it."""

    INSTANCE = 0
    NAME = 1
    GLOB = 2
    PREDICATE = 3
    CLASS = 4


@record
class Key:
    """A key as it was given, and its kind."""

    kind: Kind
    given: Any

    def __str__(self) -> str:
        if self.kind is Kind.CLASS:
            return cast(str, self.given.__qualname__)
        if self.kind is Kind.INSTANCE:
            return f"this {class_of(self.given).__name__}"
        if self.kind is Kind.PREDICATE:
            return f"predicate {getattr(self.given, '__qualname__', type(self.given).__name__)}"
        return repr(self.given)

    def means(self, name: str, module: nn.Module) -> bool:
        """Whether the module under this name is meant.

        Raises:
            Exception: what a predicate raises.
        """
        if self.kind is Kind.INSTANCE:
            return root_of(module) is root_of(self.given)
        if self.kind is Kind.NAME:
            return name == self.given
        if self.kind is Kind.GLOB:
            return matches_glob(self.given.split("."), name.split("."))
        if self.kind is Kind.PREDICATE:
            return bool(self.given(name, root_of(module)))
        return class_of(module) is self.given


def key_of(given: Any) -> Key:
    """A key of the mapping given to `swap`.

    Raises:
        OptionError: it is none of the kinds of keys.
    """
    if isinstance(given, type):
        if not issubclass(given, nn.Module):
            raise OptionError(f"{given.__name__} is no class of modules", fix="give a subclass of nn.Module")
        return Key(Kind.CLASS, given)
    if isinstance(given, nn.Module):
        return Key(Kind.INSTANCE, given)
    if isinstance(given, str):
        return Key(Kind.GLOB if any(c in given for c in "*?[") else Kind.NAME, given)
    if callable(given):
        return Key(Kind.PREDICATE, given)
    raise OptionError(
        f"a key of swap() is a class, a name, a glob, a predicate or a module, got {given!r}",
        fix='give nn.GELU, "encoder.layer.0", "encoder.*.act" or lambda name, module: ...',
    )


def matches_glob(pattern: Sequence[str], parts: Sequence[str]) -> bool:
    """Parts of a dotted name against those of a glob: `*` is within one part, `**` any number of parts."""
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(matches_glob(pattern[1:], parts[i:]) for i in range(len(parts) + 1))
    if not parts or not fnmatch.fnmatchcase(parts[0], pattern[0]):
        return False
    return matches_glob(pattern[1:], parts[1:])


def choose(keys: Sequence[Key], site: Site) -> Key | None:
    """The key that decides over the module, by any of its names: the most specific, then the first given."""
    for key in sorted(keys, key=lambda k: k.kind):
        if any(key.means(name, site.module) for name in site.names):
            return key
    return None


def why_unmatched(key: Key, sites: Sequence[Site]) -> str:
    """What the model has that comes nearest to a key that means none of its modules."""
    if key.kind is Kind.CLASS:
        return _why_no_class(key.given, sites)
    if key.kind is Kind.INSTANCE:
        return "it is not a submodule of the model"
    if key.kind is Kind.PREDICATE:
        return f"false for all {len(sites)} modules"
    names = [name for site in sites for name in site.names]
    near = difflib.get_close_matches(key.given, names, n=3, cutoff=0.5)
    return f"near it are {', '.join(near)}" if near else "no name comes near it"


def _why_no_class(wanted: type[nn.Module], sites: Sequence[Site]) -> str:
    classes = [class_of(site.module) for site in sites]
    below = {c for c in classes if issubclass(c, wanted)}
    if below:
        names = ", ".join(sorted(c.__qualname__ for c in below))
        return (
            f"a class means exactly itself, and the model has only subclasses of it ({names}): give those, or "
            f"lambda name, module: isinstance(module, {wanted.__name__})"
        )
    word = wanted.__name__.lower()
    alike = {c for c in classes if word in c.__name__.lower() or c.__name__.lower() in word}
    if alike:
        names = ", ".join(sorted(f"{c.__module__}.{c.__qualname__}" for c in alike))
        return f"the model has classes with similar names: {names}"
    return f"what a forward calls as a function (F.{word}, torch.{word}) is no module"


def describe(keys: Sequence[Key], reason: Callable[[Key], str]) -> str:
    """The keys with the reasons, for one sentence."""
    return "; ".join(f"{key} ({reason(key)})" for key in keys)
