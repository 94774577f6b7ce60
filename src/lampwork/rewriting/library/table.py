"""All rewrites of the library, in the order in which they are tried. The only place that lists the families.

They keep eager's results within float rounding (what keeps them bit for bit stands in rewrite.algebra and
rewrite.views). Each family is a file of this folder with one function that gives its rules.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from lampwork.rewriting.apply.driver import Rule
from lampwork.rewriting.library.activations import activation_rules
from lampwork.rewriting.library.attention import attention_rules
from lampwork.rewriting.library.branches import branch_rules
from lampwork.rewriting.library.embedding import embedding_rules
from lampwork.rewriting.library.linear import linear_rules
from lampwork.rewriting.library.normalization import normalization_rules
from lampwork.rewriting.library.rotary import rotary_rules

Family = Callable[[], tuple[Rule, ...]]

# First what finds the ops that formulas mean, so that constants among them are not folded away before.
FORMULAS: dict[str, Family] = {
    "branches": branch_rules,
    "activations": activation_rules,
    "normalization": normalization_rules,
    "attention": attention_rules,
    "rotary": rotary_rules,
    "embedding": embedding_rules,
}
CONSTANTS: dict[str, Family] = {"linear": linear_rules}


@lru_cache(maxsize=1)
def library_stages() -> tuple[tuple[Rule, ...], ...]:
    """The rules, stage by stage: those of one are applied until none fires, then those of the next."""
    return tuple(tuple(r for family in stage.values() for r in family()) for stage in (FORMULAS, CONSTANTS))


def library_rules() -> tuple[Rule, ...]:
    """The rules of all stages."""
    return tuple(r for stage in library_stages() for r in stage)
