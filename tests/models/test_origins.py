"""Where nodes come from: the user's line and the module, through capture, passes and training."""

from __future__ import annotations

import copy
import linecache
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import fx, nn

import lampwork
from lampwork.api import function_of
from lampwork.backends.registry import get_backend
from lampwork.capture import capture
from lampwork.config import Config
from lampwork.differentiation.joint import Asked, dense, record_joint
from lampwork.differentiation.segments import cut, requires_grad
from lampwork.differentiation.split import Split, split
from lampwork.errors import InvalidGraphError, Location
from lampwork.graph.origin import Origin, is_users
from lampwork.graph.verify import verify
from lampwork.partitioning.foreign import pass_context
from lampwork.transforms.pipeline import run_passes


class SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.query(x), self.key(x), self.value(x)
        return nn.functional.scaled_dot_product_attention(q, k, v)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.ModuleDict({"self": SelfAttention()})
        self.norm = nn.LayerNorm(8)
        self.feed = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8), nn.Dropout(0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x + self.attention["self"](x))
        return x + self.feed(x)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.layer = nn.ModuleList([Layer(), Layer()])

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layer:
            x = layer(x)
        return x


class Bert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder()
        self.head = nn.Linear(8, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(tokens)[:, 0])


class Gpt(nn.Module):
    """Its head is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder()
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.encoder.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.encoder(tokens))
        return nn.functional.cross_entropy(logits[:, :-1].reshape(-1, 11), tokens[:, 1:].reshape(-1))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = (nn.Conv2d(4, 4, 3, padding=1, bias=False) for _ in range(2))
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + self.two(self.norm(self.one(x)).relu_())).relu()


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3)
        self.blocks = nn.Sequential(Residual(), Residual())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks(self.stem(x)).mean((2, 3))


TOKENS = torch.arange(10).reshape(2, 5)
MODELS = {
    "bert": (Bert, (TOKENS,)),
    "gpt": (Gpt, (TOKENS,)),
    "resnet": (ResNet, (torch.ones(2, 3, 8, 8),)),
}


def operators(graph: fx.Graph) -> list[fx.Node]:
    return [node for node in graph.nodes if node.op == "call_function"]


def origins(fn: Any, *args: Any) -> list[Origin]:
    graph = capture(fn, args, {}).graph
    assert graph is not None
    return [node.meta["origin"] for node in operators(graph)]


def check(nodes: Iterable[fx.Node], model: nn.Module) -> set[str]:
    """Each of them comes from a module of the model and from a line of this file; gives the modules."""
    names = {name: type(module).__name__ for name, module in model.named_modules()}
    found: set[str] = set()
    for node in nodes:
        origin, location = node.meta["origin"], node.meta["location"]
        assert names[origin.module] == origin.module_type, node.name
        assert location.file == __file__ and origin.stack[0].file == __file__, node.name
        assert (location.file, location.line) in {(line.file, line.line) for line in origin.stack}
        found.add(origin.module)
    return found


def test_a_node_names_the_users_line_its_module_and_all_frames() -> None:
    graph = capture(Bert().eval(), (TOKENS,), {}).graph
    assert graph is not None
    query = operators(graph)[1]
    origin, location = query.meta["origin"], query.meta["location"]
    assert (origin.module, origin.module_type) == ("encoder.layer.0.attention.self.query", "Linear")
    assert "q, k, v = self.query(x)" in linecache.getline(location.file, location.line)
    assert location.function == "SelfAttention.forward"
    assert location.module == "encoder.layer.0.attention.self.query (Linear)"
    functions = [line.function for line in origin.stack]
    assert functions == [
        "Bert.forward",
        "Encoder.forward",
        "Layer.forward",
        "SelfAttention.forward",
        "Linear.forward",
    ]
    assert str(location) == f"{__file__}:{location.line} in SelfAttention.forward, {location.module}"


def test_nodes_of_one_line_share_what_they_say() -> None:
    class Net(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sin().cos().exp()

    first, *rest = origins(Net(), torch.ones(3))
    assert len(rest) == 2 and all(one is first for one in rest)
    assert (first.module, first.module_type) == ("", "Net")


def trained(model: nn.Module, *args: Any) -> tuple[fx.Graph, Split]:
    """The graph of a model, and the halves of its training step."""
    graph = capture(model, args, {}).graph
    assert graph is not None
    segments = cut(graph)
    asked = {
        segment.number: Asked(
            tuple(dense(node.meta["val"]) if requires_grad(node) else None for node in segment.results),
            (False,) * len(segment.results),
            (True,) * len(segment.sources),
            None,
        )
        for segment in segments.segments
    }
    joint = record_joint(graph, segments, segments.results, asked)
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    pairs = zip(inputs, joint.placeholders, strict=True)
    return graph, split(joint, frozenset(made for node, made in pairs if requires_grad(node)))


@pytest.mark.parametrize("name", MODELS)
def test_all_operators_of_a_model_and_of_its_training_come_from_somewhere(name: str) -> None:
    made, args = MODELS[name]
    model = made()
    graph, halves = trained(model, *args)
    (backward,) = halves.backwards.values()
    recorded = check(operators(graph), model)
    assert check(operators(halves.forward), model) == recorded
    weights = {path for path, module in model.named_modules() if [*module.parameters(recurse=False)]}
    assert check(operators(backward.graph), model) >= weights
    # Passes verify that what they make comes from somewhere, and it does from one of the model's modules.
    config = Config(verify="graph")
    native = get_backend("native")
    for each in (graph, halves.forward, backward.graph):
        run_passes(each, config, ctx=pass_context(config, [native]))
        assert check(operators(each), model) <= recorded


def test_an_operator_of_backward_comes_from_the_one_that_it_differentiates() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Sigmoid())
    _, halves = trained(model, torch.ones(2, 4))
    (backward,) = halves.backwards.values()
    of = {node.name: node.meta["origin"].module for node in operators(backward.graph)}
    assert (of["tanh_backward"], of["sigmoid_backward"]) == ("1", "3")
    assert {of[name] for name in of if name.startswith(("mm", "sum"))} == {"0", "2"}


class Held(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(3, 3), nn.ReLU())])


MODEL = Held()
X = torch.ones(2, 3)


def test_a_function_has_the_names_by_which_it_reaches_modules() -> None:
    held, table = nn.Sequential(nn.ReLU()), {"first": [nn.Tanh()]}

    def by_global(x: torch.Tensor) -> torch.Tensor:
        return MODEL.layers[0](x)

    def by_closure(x: torch.Tensor) -> torch.Tensor:
        return held(table["first"][0](x)) + 1

    def by_argument(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return net.layers[0](x)

    names = [(o.module, o.module_type) for o in origins(by_global, X)]
    assert names == [("MODEL.layers.0.0", "Linear"), ("MODEL.layers.0.1", "ReLU")]
    names = [(o.module, o.module_type) for o in origins(by_closure, X)]
    assert names == [("table.first.0", "Tanh"), ("held.0", "ReLU"), ("", "")]
    assert [o.module for o in origins(by_argument, MODEL, X)] == ["net.layers.0.0", "net.layers.0.1"]


def test_methods_and_forward_called_by_name_count_as_their_module() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 3)

        def helper(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner.forward(x).sin()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.helper(x)

    net = Net()
    for fn in (net, net.helper, net.forward):
        assert [(o.module, o.module_type) for o in origins(fn, X)] == [("inner", "Linear"), ("", "Net")]


def test_a_model_without_lines_of_the_users_names_the_innermost() -> None:
    graph = capture(nn.Sequential(nn.Linear(3, 3)), (X,), {}).graph
    assert graph is not None
    (linear,) = operators(graph)
    assert linear.meta["location"].file.endswith("linear.py")
    assert linear.meta["origin"].module == "0"


def test_a_generator_says_who_asks_it() -> None:
    def numbers(x: torch.Tensor) -> Any:
        yield x.sin()
        yield x.cos()

    def f(x: torch.Tensor) -> torch.Tensor:
        made = numbers(x)
        one = next(made)
        return one + next(made)

    sin, cos, _ = origins(f, X)
    assert cos.stack[0].line == sin.stack[0].line + 1


def test_behind_a_break_paths_are_those_of_the_whole_model() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.one(x)
            print(end="")
            return self.two(x)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.noisy = nn.ModuleList([Noisy(), Noisy()])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for each in self.noisy:
                x = each(x)
            return x

    compiled = lampwork.compile(Net())
    with torch.no_grad():
        compiled(X)
    graphs = [entry.region.graph for f in function_of(compiled).tree() for entry in f.entries]
    paths = {node.meta["origin"].module for graph in graphs if graph for node in operators(graph)}
    assert paths == {f"noisy.{number}.{name}" for number in range(2) for name in ("one", "two")}
    record = lampwork.explain(Net())(X).breaks[0]
    assert record.module == "noisy.0 (Noisy)"
    assert "Noisy.forward, noisy.0 (Noisy): print() does" in str(record)


def test_verify_finds_a_node_without_an_origin_among_others() -> None:
    graph = capture(nn.ReLU(), (X,), {}).graph
    assert graph is not None
    verify(graph)
    (relu,) = operators(graph)
    with graph.inserting_before(relu):
        made = graph.call_function(torch.ops.aten.abs.default, (relu.args[0],))
    made.meta["val"] = copy.copy(relu.meta["val"])
    relu.args = (made,)
    with pytest.raises(InvalidGraphError, match="node abs_default has no origin, while others have one"):
        verify(graph)


def test_whose_files_are_whose() -> None:
    assert is_users(__file__) and is_users("<string>") and is_users("/model.py")
    assert is_users(pytest.__file__)  # a library of the user's
    for file in (torch.__file__, lampwork.__file__, copy.__file__, "<frozen importlib._bootstrap>"):
        assert not is_users(file)


def test_a_location_prints_what_it_knows() -> None:
    assert str(Location("model.py", 12)) == "model.py:12"
    assert str(Location("model.py", 12, "forward", "a.b (Linear)")) == "model.py:12 in forward, a.b (Linear)"
    assert Location("model.py", 12, "forward", "a.b (Linear)").line_text == "model.py:12, a.b (Linear)"
