"""What `lampwork.minify` writes is Python, whatever the texts of the program; what cannot be written, it says."""

from __future__ import annotations

import ast
import linecache
import os

import pytest
import torch
from torch import fx

import lampwork
from lampwork.errors import Location, OptionError
from lampwork.graph.printing import quoted, to_python
from lampwork.graph.spec import TensorSpec
from lampwork.inspect.scripts import run_script
from lampwork.minifying.command import Minified
from lampwork.minifying.noting import noting
from lampwork.minifying.script import Plugins, keep_source, plugins, script_of
from lampwork.testing.failing import Check, Failure

TEXTS = [
    '"""\nraise SystemExit\n"""',
    "\\",
    'ends in "',
    "\\N{x} \\x \\u12 \\",
    "a\rb\x0cc\u2028d\x00e\ud800f",
    "héllo, 漢字 \U0001f600",
    "'''",
]


@pytest.mark.parametrize("text", TEXTS, ids=ascii)
def test_a_text_of_the_user_stays_a_text(text):
    assert ast.literal_eval(f'"""{quoted(text)}"""') == text
    assert len(ast.parse(f"x = 1  # {quoted(text)}\n").body) == 1
    quoted(text).encode()


def script(name, says="", modules=()):
    with noting() as noted:
        lampwork.compile(lambda x: torch.erf(x) * 3.0, name=name)(torch.ones(3))
    return script_of(noted.cases[0], Failure("wrong", "", says), Check(), {}, Plugins(modules, (), ()))


@pytest.mark.parametrize("text", TEXTS, ids=ascii)
def test_names_and_messages_in_a_script(text):
    made = script(f"f {text}", f"result 0: {text}")
    found = ast.get_docstring(ast.parse(made), clean=False)
    assert found is not None and f"cut out of f {text}#0." in found
    assert f"wrong: result 0: {text.splitlines()[0]}" in found
    names = {"__name__": "script"}
    exec(compile(made, "script", "exec"), names)
    assert torch.equal(names["forward"](torch.ones(3))[0], torch.erf(torch.ones(3)) * 3.0)


def test_modules_with_names_that_python_does_not_have():
    made = script("f", modules=("os.path", "my-plug", "class"))
    assert "import os.path  #" in made and "__import__('my-plug')" in made and "__import__('class')" in made
    ast.parse(made)


def graph_of(target, *args, **kwargs):
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = TensorSpec.of(torch.ones(3))
    node = graph.call_function(target, (x, *args), kwargs)
    node.meta.update(val=x.meta["val"], location=Location('a\nraise SystemExit  # """.py', 3))
    graph.output((node,))
    return graph


def test_words_of_python_and_files_with_newlines():
    aten = torch.ops.aten
    for graph in (
        graph_of(getattr(aten.random, "from"), 0, 5),
        graph_of(aten.uniform.default, **{"from": 0.5}),
    ):
        names = {}
        exec(to_python(graph), names)
        (result,) = names["forward"](torch.zeros(3))
        assert result.shape == (3,)


# --- where it is written ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["", "/", "a\0b", "\ud800", "n" * 300, 3, b"/x"], ids=ascii)
def test_a_path_that_cannot_be_written(path):
    made = Minified("1\n", Failure("wrong", "", ""), "f", 1, 2, 3, alone=True)
    with pytest.raises(OptionError, match="cannot be written to") as caught:
        made.save(path)
    assert repr(str(path)) in caught.value.cause and caught.value.fix


def test_a_long_name_that_can_be_written(tmp_path):
    made = Minified("# \U0001f600\n", Failure("wrong", "", ""), "f", 1, 2, 3, alone=True)
    made.save(tmp_path / ("n" * 250))
    assert (tmp_path / ("n" * 250)).read_bytes().decode() == made.script


@pytest.mark.parametrize("text", TEXTS, ids=ascii)
def test_a_summary_is_a_line_that_can_be_printed(text):
    made = Minified("", Failure("wrong", "", "result 0"), text, 1, 2, 3, alone=True)
    for shown in (made.summary(), repr(made)):
        assert shown.isprintable() and shown.encode()


# --- what it imports --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("imports", ["no_such_module", ["json", "no_such_module"], [""], [3], [".x"]])
def test_modules_that_cannot_be_imported(imports):
    name = imports if isinstance(imports, str) else imports[-1]
    with pytest.raises(OptionError, match=f"imports names {name!r}, which cannot be imported"):
        lampwork.minify(lambda x: torch.erf(x), torch.ones(3), imports=imports)


def test_a_script_that_goes_elsewhere(tmp_path, monkeypatch):
    text = (
        "import os, lampwork\n\x0c\nrewrite = lampwork.rewrite(\n"
        "    'neg(erf(x))', 'erf(x)', name='elsewhere')\nos.chdir('/')\nraise ValueError\n"
    )
    (tmp_path / "script.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    keep_source("script.py")
    try:
        assert run_script("script.py", []) == 1 and os.getcwd() == "/"
        linecache.checkcache()
        found = plugins()
        assert (
            "rewrite = lampwork.rewrite(\n    'neg(erf(x))', 'erf(x)', name='elsewhere')" in found.statements
        )
        assert "elsewhere" not in found.nowhere
    finally:
        del linecache.cache["script.py"]
        lampwork.plugins.registry.registry().items["elsewhere"].unregister()
