"""What every pass is given: options, spec inference, fuel and counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from lampwork.config import Config
from lampwork.errors import LampworkError, RewriteError
from lampwork.graph.nested import leaves
from lampwork.graph.recorded import specs_of, with_grad
from lampwork.graph.shapes import infer
from lampwork.graph.spec import TensorSpec
from lampwork.plugins.fuel import process_fuel
from lampwork.plugins.numeric import NumericCheck
from lampwork.plugins.registry import Place, Selection, registry
from lampwork.plugins.switches import Switches
from lampwork.rewriting.apply.edit import Editor
from lampwork.rewriting.language.rules import Rule
from lampwork.rewriting.matching.match import Match
from lampwork.standard import operator
from lampwork.verdict import No, Verdict, Yes

# Passes that leave equal nodes behind, or none that is needed.
_DROPPING = frozenset({"dead-code", "common-subexpressions"})


BackendPasses = tuple[tuple[Any, Place], ...]
"""Passes that backends bring, each an object with `name` and `run(graph, ctx)`, and where it runs."""


def _nobody(node: fx.Node) -> bool:
    return False


@dataclass(slots=True)
class PassContext:
    """`fuel` rewrites are left (-1: no limit). `hits` counts what fired, `refusals` what matched and was not applied,
    by (name, reason). `faults` are those of plug-ins that were left out, whose rewrites are `banned`. `selection` is
    what users registered and is on. `witness` is told each match that is about to be replaced, and by what. `kept` are
    operators that a backend wants as they were written: they are only dropped where nothing needs them, or for an equal
    one. `foreign` says of a node whether a backend from outside is to take it. `backend_passes` are those of the
    backends that the graph is for."""

    config: Config = field(default_factory=Config)
    fuel: int = -1
    hits: Counter[str] = field(default_factory=Counter[str])
    refusals: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    faults: list[LampworkError] = field(default_factory=list[LampworkError])
    banned: set[str] = field(default_factory=set[str])
    selection: Selection = field(default_factory=Selection)
    numeric: NumericCheck | None = None
    running: str = ""  # the pass
    counting: bool = True  # False: nothing counts, as it is a rehearsal
    witness: Callable[[Rule, Match, Sequence[fx.Node]], None] | None = None
    kept: frozenset[Any] = frozenset()
    foreign: Callable[[fx.Node], bool] = _nobody
    backend_passes: BackendPasses = ()
    _approved: tuple[Rule, Match, Sequence[fx.Node]] | None = None

    @staticmethod
    def of(config: Config, kept: frozenset[Any] = frozenset()) -> PassContext:
        """The context of one compilation."""
        numeric = NumericCheck() if config.verify == "numeric" else None
        return PassContext(
            config, config.fuel, selection=registry().select(config.passes), numeric=numeric, kept=kept
        )

    @property
    def exhausted(self) -> bool:
        """Whether the fuel is used up."""
        return self.fuel == 0 or (self.counting and process_fuel().empty())

    def spend(self, name: str, node: fx.Node | None = None) -> bool:
        """Count one rewrite of the pass or rule `name`, at `node`; False when the fuel is used up, or the rule is
        switched off, and it must not happen."""
        approved, self._approved = self._approved, None
        if self.fuel == 0 or not Switches.of(self.config.passes).on(name) or name in self.banned:
            return False
        if node is not None and node.target in self.kept and name not in _DROPPING:
            return False
        known = approved is not None and approved[0].name == name
        rule, match, new = approved if approved is not None and known else (None, None, ())
        node = match.root if match is not None else node
        if self.counting and not process_fuel().spend(lambda: self._described(name, rule, node)):
            return False
        if self.fuel > 0:
            self.fuel -= 1
        self.hits[name] += 1
        if self.numeric is not None and rule is not None and rule.tolerance:
            self.numeric.approximated = True
        if self.witness is not None and rule is not None and match is not None:
            self.witness(rule, match, new)
        return True

    def _described(self, name: str, rule: Rule | None, node: fx.Node | None) -> dict[str, str]:
        what = {"name": name, "pass": self.running}
        if rule is not None:
            what["source"] = str(rule.source or "")
        if node is not None:
            what |= {"node": node.name, "target": str(node.target)}
            what["line"] = str(node.meta.get("location") or "")
        return what

    def settle(self) -> None:
        """Add to the counts of the whole process what has changed the graph and stayed, and what was refused: once the
        graph is done, as until then a pass may be undone."""
        if not self.counting:
            return
        refused: Counter[str] = Counter()
        for (name, _), count in self.refusals.items():
            refused[name] += count
        registry().count(self.selection, self.hits, refused)

    def refuse(self, name: str, reason: str) -> None:
        """Count a match of the rewrite `name` that was not applied."""
        self.refusals[name, reason] += 1

    def approve(self, rule: Rule, match: Match, old: Sequence[fx.Node], new: Sequence[fx.Node]) -> Verdict:
        """Whether the rewrite may put `new` in the place of `old`, the results of the match.

        Raises:
            NumericError: it would change results, under verify="numeric".
        """
        if self.kept:
            whole = next((node for node in dropped(match.roots) if node.target in self.kept), None)
            if whole is not None:
                return No(f"a backend keeps {whole.target}")
        self._approved = rule, match, new
        if self.numeric is not None:
            self.numeric.check_rewrite(rule, match, old, new)
        return Yes()

    def fault(self, error: RewriteError) -> None:
        """A rewrite failed, or some undo each other; the driver leaves them out from then on."""
        self.banned.update(error.rewrites)
        self.note(error)

    def note(self, error: LampworkError, cause: BaseException | None = None) -> None:
        """Something of a plug-in was left out: raise it under `strict`, else keep it among the faults."""
        if self.config.strict:
            raise error from (cause or error.__cause__)
        self.faults.append(error)

    def infer(self, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The TensorSpec (or a tuple of them) of calling `target` with nodes standing for their tensors.

        Raises:
            CaptureError: eager would refuse the arguments (ShapeError), or the shape is not known.
        """
        if target is operator.getitem:
            return args[0].meta["val"][args[1]]
        specs, named = specs_of(tuple(args)), specs_of(dict(kwargs))
        found = infer(target, specs, named)
        return with_grad(found) if any(s.requires_grad for s in leaves((specs, named), TensorSpec)) else found

    def editor(self, graph: fx.Graph, point: fx.Node) -> Editor:
        """Makes nodes before `point`."""
        return Editor(graph, self.infer, point)


def dropped(roots: Sequence[fx.Node]) -> list[fx.Node]:
    """`roots`, and all that nothing else needs."""
    found = dict.fromkeys(roots)
    work = list(roots)
    while work:
        for operand in work.pop().all_input_nodes:
            if operand.op == "call_function" and all(user in found for user in operand.users):
                found[operand] = None
                work.append(operand)
    return list(found)
