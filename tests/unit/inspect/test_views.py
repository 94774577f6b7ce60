"""What a prompt, a notebook and a terminal show of results: short, escaped, and never escape codes in a pipe."""

from __future__ import annotations

import copy
import html.parser
import inspect
import io
import pickle
import sys
import typing
import warnings

import pytest
import torch
from torch import nn

import lampwork
from lampwork import progress
from lampwork.compiled.entries import Entries
from lampwork.display import Folded, Listing, Shown, Table, show
from lampwork.display.html import MOST_ROWS, page
from lampwork.display.shown import MOST, MOST_ITEMS
from lampwork.testing import check_backend, check_rewrite

X = torch.ones(2, 16)
HOSTILE = '<script>alert("1")</script></pre></details>&\x1b[31m\udc80'


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.inner = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))

    def forward(self, x):
        return x + self.inner(self.norm(x))


def network() -> nn.Module:
    return nn.Sequential(*(Block() for _ in range(3))).eval().requires_grad_(False)


@pytest.fixture(scope="module")
def results():
    """What the public functions give for a network."""
    rewrite = lampwork.rewrite("mul(sin(x), 3.5)", "mul(3.5, sin(x))", name="views_rewrite")
    compiled, net = lampwork.compile(network()), network()
    compiled(X)

    def chatty(x):
        print("", end="")
        return x * compiled(x).sum().item()

    found = {
        "entries": compiled.entries,
        "stages": compiled.stages,
        "guards": compiled.entries[0].guards,
        "explain": lampwork.explain(chatty),
        "explanation": lampwork.explain(chatty)(X),
        "partition": lampwork.partition(network(), X, ["native"]),
        "rewrite": rewrite,
        "rewrites": lampwork.rewrites(all=True),
        "why_not": lampwork.why_not(rewrite, compiled),
        "swap": lampwork.swap(net, {nn.GELU: nn.ReLU()}, check=X),
        "approximate": lampwork.approximate(
            network(), "gelu-to-relu", calibration=X, budget=9.0, measure_speed=False
        ),
        "quantize": lampwork.quantize(network(), calibration=X),
        "compare": lampwork.compare(network(), {"eager": None, "lampwork": {}}, X, seconds=0),
        "compiled": compiled,
    }
    yield found
    rewrite.disable()


def ours(value: object) -> bool:
    """Whether its class is Lampwork's: a compiled module and a replacement layer print as modules do."""
    return type(value).__module__.startswith("lampwork") and not isinstance(value, nn.Module)


def parts_of(value: object, seen: dict[int, object], depth: int = 0) -> None:
    """Everything public that one gets to from a result."""
    if id(value) in seen or depth > 5:
        return
    seen[id(value)] = value
    if isinstance(value, (tuple, list)):
        for item in value[:30]:
            parts_of(item, seen, depth + 1)
    elif isinstance(value, dict):
        for item in list(value.values())[:30]:
            parts_of(item, seen, depth + 1)
    elif ours(value) and not callable(value) or isinstance(value, Shown):
        for name in dir(value):
            if not name.startswith("_") and not inspect.ismethod(item := getattr(value, name, None)):
                parts_of(item, seen, depth + 1)


def test_whatever_one_gets_to_from_a_result_prints_short(results):
    seen: dict[int, object] = {}
    parts_of(results, seen)
    objects = [value for value in seen.values() if ours(value)]
    assert len({type(value) for value in objects}) > 25
    long = set()
    for value in objects:
        text = repr(value)
        most = (MOST_ITEMS + 2) * (MOST + 3) if isinstance(value, Listing) else MOST
        if len(text) > most or ("\n" in text and not isinstance(value, Listing)):
            long.add(type(value))
    assert not long


def test_all_result_types_of_public_functions_are_shown():
    functions = [f for name in lampwork.__all__ if inspect.isfunction(f := getattr(lampwork, name))]
    kinds = {typing.get_type_hints(f).get("return") for f in [*functions, check_backend, check_rewrite]}
    classes = {kind for kind in kinds if isinstance(kind, type) and kind.__module__.startswith("lampwork")}
    assert len(classes) > 8
    # These are called as the model is, and have a `repr` of their own.
    assert {kind.__name__ for kind in classes if not issubclass(kind, Shown)} == {
        "LoadedModel",
        "PlacedModel",
    }


def test_views_are_well_formed_and_bounded(results):
    for name, value in results.items():
        if name == "rewrite":
            continue
        found = value._repr_html_()  # type: ignore[attr-defined]
        assert len(found) < 30_000, (name, len(found))
        assert Tags.of(found).open == [], name
        assert "<script" not in found and "color" not in found


class Tags(html.parser.HTMLParser):
    """The tags of a text, and those that are open at its end."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.texts: list[str] = []

    @staticmethod
    def of(text: str) -> Tags:
        tags = Tags()
        tags.feed(text)
        tags.close()
        return tags

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.seen.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def test_hostile_names_are_text():
    blocks = (HOSTILE, Table((HOSTILE,), ((HOSTILE,),)), Folded(HOSTILE, HOSTILE))
    found = page(HOSTILE, blocks)
    found.encode()
    tags = Tags.of(found)
    assert tags.open == [] and "script" not in tags.seen
    assert sum('<script>alert("1")</script></pre></details>&' in text for text in tags.texts) == 6


def test_hostile_names_of_modules():
    model = nn.Module()
    setattr(model, "<b>x", nn.GELU())
    hostile = type("<script>", (nn.ReLU,), {})
    found = lampwork.swap(model, {nn.GELU: hostile()})._repr_html_()
    assert Tags.of(found).seen == {"div", "b", "pre", "table", "tr", "th", "td"}
    assert "<b>x" in Tags.of(found).texts and "<script>" in Tags.of(found).texts


def test_a_long_table_says_how_much_is_left_out():
    found = page("", [Table(("a",), tuple((str(i),) for i in range(MOST_ROWS + 7)))])
    assert "… and 7 more" in found and found.count("<tr>") == MOST_ROWS + 2


def test_a_line_for_each_version():
    @lampwork.compile
    def f(x):
        return x.sin() + 1

    assert repr(f.entries) == "()"
    f(torch.ones(3))
    assert repr(f.entries) == "(Entry(f#0: 2 operators, 1 call, 6 guards),)".replace(
        "f#", f"{f.__qualname__}#"
    )
    f(torch.ones(3, dtype=torch.float64))
    assert len(repr(f.entries).splitlines()) == 4 and isinstance(f.entries, Entries)
    assert f.entries == tuple(f.entries)


def test_long_listings_end_in_a_count():
    lines = repr(Listing(range(MOST_ITEMS + 5))).splitlines()
    assert len(lines) == MOST_ITEMS + 3 and lines[-2] == "  … and 5 more"


def test_a_compiled_module_keeps_the_view_of_its_original():
    class Drawn(nn.Linear):
        def _repr_html_(self):
            return f"<i>{self.in_features}</i>"

    class Anything(nn.Module):
        def __getattr__(self, name):
            return super().__getattr__(name) if name.startswith("_") else name

        def forward(self, x):
            return x + 1

    assert lampwork.compile(Drawn(3, 2))._repr_html_() == "<i>3</i>"
    other = lampwork.compile(Anything())
    assert "Anything" in other._repr_html_() and other.whatever == "whatever"
    compiled = lampwork.compile(nn.Linear(3, 2))
    assert "_repr_html_" not in dir(compiled)
    assert isinstance(pickle.loads(pickle.dumps(compiled)), nn.Linear)
    assert torch.equal(copy.deepcopy(compiled).weight, compiled.weight)


# --- before the first call, and where there is none ---


def test_stages_before_the_first_call_say_what_to_do():
    compiled = lampwork.compile(nn.Linear(3, 2))
    text = "Linear has no compiled version yet: call it once, then look again"
    with pytest.raises(AttributeError) as raised:
        _ = compiled.stages.graph
    assert str(raised.value) == f"no stage 'graph': {text}"
    with pytest.raises(AttributeError, match="call it once"):
        _ = compiled.stages.python
    assert str(compiled.stages) == text and text in compiled._repr_html_()


def test_stages_of_what_ran_eager_give_the_record():
    @lampwork.compile(options={"strict": False})
    def numbers(x):
        yield x

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        list(numbers(X))
    with pytest.raises(AttributeError, match=r"no stage 'graph': .*numbers ran eager: \[LW\d+\]") as raised:
        _ = numbers.stages.graph
    assert "fix:" in str(raised.value)


def test_stages_after_a_rewrite_was_switched_on():
    rewrite = lampwork.rewrite("mul(cos(x), 3.5)", "mul(3.5, cos(x))", name="views_other", enabled=False)
    compiled = lampwork.compile(lambda x: x + 1)
    compiled(X)
    with lampwork.passes("+views_other"):
        assert "aten.add" in compiled.stages.graph
    rewrite.enable()
    try:
        with pytest.raises(
            AttributeError, match="no compiled version with the rewrites and passes that are on now"
        ):
            _ = compiled.stages.graph
    finally:
        rewrite.disable()
    assert "aten.add" in compiled.stages.graph


def test_stages_where_a_stance_forbids_versions():
    compiled = lampwork.compile(lambda x: x + 1)
    with lampwork.set_stance("force_eager"):
        compiled(X)
        with pytest.raises(AttributeError, match=r"set_stance\('force_eager'\) is on"):
            _ = compiled.stages.kernels


def test_stages_of_a_version_without_tensors():
    compiled = lampwork.compile(lambda n: n + 1)
    compiled(1)
    with pytest.raises(
        AttributeError, match="does no tensor work, so it has no graph and no code; there are byte"
    ):
        _ = compiled.stages.kernels


# --- terminals ---


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def colours(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    return monkeypatch


def test_a_pipe_gets_plain_text(results, colours):
    pipe = io.StringIO()
    show(results["explanation"], pipe)
    assert pipe.getvalue() == f"{results['explanation']}\n" and "\x1b" not in pipe.getvalue()


def test_a_terminal_gets_tables_of_rich(results, colours):
    pytest.importorskip("rich")
    terminal = Terminal()
    show(results["swap"], terminal)
    assert "module" in terminal.getvalue() and "─" in terminal.getvalue()
    colours.setenv("NO_COLOR", "1")
    plain = Terminal()
    show(results["swap"], plain)
    assert plain.getvalue() == f"{results['swap']}\n"


def test_markup_of_rich_in_names_is_text(colours):
    pytest.importorskip("rich")

    class Named(Shown):
        def _blocks(self):
            return ("[red]a[/nothing]", Table(("[b]",), (("[/x]",),)))

    terminal = Terminal()
    show(Named(), terminal)
    assert all(text in terminal.getvalue() for text in ("[red]a[/nothing]", "[b]", "[/x]"))


def test_without_rich_a_terminal_gets_plain_text(results, colours):
    colours.setitem(sys.modules, "rich", None)
    terminal = Terminal()
    show(results["swap"], terminal)
    assert terminal.getvalue() == f"{results['swap']}\n"


def test_progress_is_for_terminals(colours, capsys):
    with progress.Progress("work") as line:
        line.at("1 of 2")
    assert capsys.readouterr() == ("", "")
    terminal = Terminal()
    colours.setattr(sys, "stderr", terminal)
    with progress.Progress("work") as line:
        line.at("1 of 2")
    assert terminal.getvalue().startswith("\rwork, 0 s: 1 of 2\r") and terminal.getvalue().endswith(" \r")


def test_progress_through_logs(capsys):
    with lampwork.config.using(logs="progress"), progress.Progress("work") as line:
        line.at("1 of 2")
        line.at("2 of 2")
    assert capsys.readouterr().err == "[progress] work: 1 of 2\n[progress] work: 2 of 2\n"


def test_without_stderr_progress_is_silent(colours):
    colours.setattr(sys, "stderr", None)
    with progress.Progress("work") as line:
        line.at("1 of 2")


def test_approximate_and_quantize_say_what_they_are_at(capsys):
    with lampwork.config.using(logs="progress"):
        lampwork.approximate(network(), "gelu-to-relu", calibration=X, budget=0.0, measure_speed=False)
        lampwork.quantize(network(), calibration=X)
    lines = capsys.readouterr().err.splitlines()
    assert "[progress] approximate: gelu-to-relu: 1.inner.1, 2 of 3" in lines
    assert "[progress] approximate: gelu-to-relu: 2.inner.1 alone, 3 of 3" in lines
    assert any(line.startswith("[progress] quantize: ") and line.endswith("6 of 6") for line in lines)
    lampwork.quantize(network(), calibration=X)
    assert capsys.readouterr() == ("", "")
