"""Reports as `lampwork explain` writes them, of models that nobody has: for tests of the page that shows them."""

import base64
import gzip
import json
from pathlib import Path

import lampwork.inspect

TEMPLATE = Path(lampwork.inspect.__file__).parent / "report" / "assets" / "report.html"
_PLACE = '<script type="application/json" id="lampwork-data">null</script>'
_FILE = "models/encoder.py"
_SOURCE = """class Layer(nn.Module):
    def forward(self, x, mask):
        q, k, v = self.qkv(x).chunk(3, -1)
        y = F.scaled_dot_product_attention(q, k, v, mask)
        x = self.norm1(x + self.out(y))
        h = F.gelu(self.up(x))
        if h.sum() > 0:
            print("positive")
        return self.norm2(x + self.down(h))
""".splitlines()


_RECORDS = [
    {
        "kind": "break",
        "code": "LW101",
        "cause": "The value of a tensor decides a branch.",
        "fix": "Use torch.where, or move the check out of the model.",
        "file": _FILE,
        "line": 7,
        "function": "forward",
        "module": "encoder.layer.0",
        "region": 0,
    },
    {
        "kind": "recompile",
        "code": "LW301",
        "cause": "x.shape[1] differs",
        "fix": "Mark it: lampwork.mark_dynamic(x, 1).",
        "file": _FILE,
        "line": 3,
        "function": "forward",
        "region": 0,
        "values": [128, 200],
    },
]


def page(data, compressed=False):
    """The page with `data` in it."""
    text = json.dumps(data, separators=(",", ":"))
    if compressed:
        packed = base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()
        element = f'<script type="application/json" id="lampwork-data" data-encoding="gzip-base64">{packed}</script>'
    else:
        element = _PLACE.replace("null", text.replace("<", "\\u003c"))
    template = TEMPLATE.read_text()
    assert template.count(_PLACE) == 1
    return template.replace(_PLACE, element)


class _Graph:
    def __init__(self):
        self.nodes = []
        self.groups = []

    def node(self, op, inputs, module, kind="op", shape=(1, 128, 768), line=3, type="Layer"):
        name = f"{op.removeprefix('aten::')}_{len(self.nodes)}"
        made = {
            "id": name,
            "op": op,
            "args": ", ".join(inputs),
            "inputs": list(inputs),
            "kind": kind,
            "dtype": "float32",
            "shape": list(shape),
            "bytes": 4 * shape[0] * shape[1] * shape[2],
        }
        if kind == "op":
            made |= {
                "module": module,
                "type": type,
                "stack": [["train.py", 12, "main"], [_FILE, line, "forward"]],
            }
        self.nodes.append(made)
        return name

    def group(self, kind, nodes, time, flops, texts):
        step = len(self.groups)
        self.groups.append(
            {
                "id": f"k{step}",
                "name": f"{kind}_{step}" if kind != "kernel" else f"add_layer_norm_{step}",
                "kind": kind,
                "nodes": nodes,
                "step": step,
                "reads": 800_000 + 1000 * step,
                "writes": 390_000,
                "flops": flops,
                "time": time,
                "calls": 1,
                "why": ["pointwise work follows its reduction over the same rows"]
                if kind == "kernel"
                else [],
                "texts": texts,
            }
        )


def encoder(layers, title="BertModel"):
    """Six groups of eleven nodes to a layer, with passes, memory, guards and records."""
    graph = _Graph()
    loops = "for i in 128:\n  for j in 768:\n    y[i, j] = x[i, j] + z[i, j]\n"
    assembly = "\n".join(f"  vmovups zmm{i % 32}, [rdi + {64 * i}]" for i in range(400))
    texts = [loops, "define void @k() {\n  ret void\n}\n", assembly]
    refs = {"loops": 0, "llvm": 1, "assembly": 2}
    x = graph.node("input", [], "", kind="input")
    mask = graph.node("mask", [], "", kind="input")
    weight = graph.node("weight", [], "", kind="bound")
    x = graph.node("aten::embedding", [x, weight], "embeddings.word", type="Embedding")
    graph.group("aten", [x], 4e-5, 0, {})
    for index in range(layers):
        at = f"encoder.layer.{index}"
        qkv = graph.node(
            "aten::linear", [x, weight], f"{at}.attention.qkv", type="Linear", shape=(1, 128, 2304)
        )
        graph.group("gemm", [qkv], 1.9e-3, 453_000_000, {})
        parts = [graph.node("aten::slice", [qkv], f"{at}.attention", line=3) for _ in range(3)]
        graph.group("view", parts, 0, 0, {})
        heads = graph.node("aten::scaled_dot_product_attention", [*parts, mask], f"{at}.attention", line=4)
        graph.group("attention", [heads], 6e-4, 50_000_000, refs)
        out = graph.node("aten::linear", [heads, weight], f"{at}.attention.out", type="Linear", line=5)
        graph.group("gemm", [out], 6.5e-4, 151_000_000, {})
        total = graph.node("aten::add", [x, out], f"{at}.attention", line=5)
        norm = graph.node(
            "aten::layer_norm", [total, weight], f"{at}.attention.norm", type="LayerNorm", line=5
        )
        graph.group("kernel", [total, norm], 5.2e-5, 900_000, refs)
        up = graph.node(
            "aten::linear", [norm, weight], f"{at}.up", type="Linear", line=6, shape=(1, 128, 3072)
        )
        gelu = graph.node("aten::gelu", [up], f"{at}", line=6, shape=(1, 128, 3072))
        graph.group("gemm", [up, gelu], 2.6e-3, 605_000_000, refs)
        down = graph.node("aten::linear", [gelu, weight], f"{at}.down", type="Linear", line=9)
        total = graph.node("aten::add", [norm, down], at, line=9)
        x = graph.node("aten::layer_norm", [total, weight], f"{at}.norm", type="LayerNorm", line=9)
        graph.group("gemm", [down], 2.5e-3, 604_000_000, {})
        graph.group("kernel", [total, x], 5.5e-5, 900_000, refs)
    result = graph.node("output", [x], "", kind="output")
    final = [node["id"] for node in graph.nodes]
    return _report(title, graph, final, texts, result)


def _report(title, graph, final, texts, result):
    recorded, steps = _passes(graph.nodes)
    groups = [group for group in graph.groups if group["kind"] != "view"]
    values = [
        {
            "name": group["nodes"][-1],
            "offset": (index % 5) * 400_000,
            "size": 393_216,
            "first": index,
            "last": index + 2 + index % 3,
            "kind": "arena",
        }
        for index, group in enumerate(groups)
    ]
    values.append(
        {"name": result, "size": 393_216, "first": len(groups) - 1, "last": len(groups), "kind": "fresh"}
    )
    fusion = []
    for first, second in zip(groups, groups[1:], strict=False):
        fused = second["kind"] == "kernel"
        why = (
            "the sum is read once, by rows" if fused else "a product of its own kernel reads all of it first"
        )
        fusion.append({"a": first["id"], "b": second["id"], "fused": fused, "why": why})
    stages = {"capture": 0.21, "transforms": 0.34, "lower": 0.12, "codegen": 0.41, "plan": 0.05}
    flame = [{"name": "compile", "start": 0.0, "seconds": 1.13, "depth": 0}]
    start = 0.0
    for stage, seconds in stages.items():
        flame.append({"name": stage, "start": start, "seconds": seconds, "depth": 1})
        for part in range(8):
            began = start + part * seconds / 8
            flame.append({"name": f"{stage} part {part}", "start": began, "seconds": seconds / 9, "depth": 2})
        start += seconds
    region = {
        "name": "forward#0",
        "hits": 128,
        "seconds": stages,
        "flame": flame,
        "lines": {_FILE: "2-9"},
        "guards": [
            {
                "condition": "x.dtype is float32 and x.shape == (1, 128, 768)",
                "line": f"{_FILE}:3",
                "slow": False,
            },
            {"condition": "self.training is False", "line": f"{_FILE}:5", "slow": False},
            {"condition": "len(self.layers) == 12", "line": f"{_FILE}:9", "slow": True},
        ],
        "symbols": ["s0 = x.shape[1], 2 to 512"],
        "graphs": {"recorded": recorded, "steps": steps, "optimized": final},
        "groups": graph.groups,
        "fusion": fusion,
        "memory": {
            "arena": 2_000_000,
            "values": values,
            "steps": [group["id"] for group in groups],
            "saved": 41_000_000,
        },
        "constants": [
            {
                "name": "weight_2",
                "from": ["layer.q.weight", "layer.k.weight", "layer.v.weight"],
                "bytes": 7_077_888,
                "refreshed": 1,
                "when": "a weight was written",
            }
        ],
        "program": 3,
        "bytecode": 4,
        "partition": [
            {"backend": "native", "nodes": final, "why": "all of it"},
            {"backend": "eager", "nodes": final[:1], "why": "no kernel for embedding bags"},
        ],
    }
    return {
        "format": 1,
        "lampwork": "0.1.0",
        "torch": "2.13.0",
        "made": "2026-01-02T03:04:05Z",
        "title": title,
        "machine": {
            "cpu": "A processor of 2 cores",
            "isa": "avx512",
            "threads": 2,
            "peak_gflops": {"float32": 260.0, "bfloat16": 520.0},
            "peak_gbs": 24.0,
        },
        "options": {"mode": "default", "dynamic": None},
        "sources": {_FILE: [{"first": 1, "lines": _SOURCE}]},
        "records": _RECORDS,
        "regions": [
            region,
            {"name": "forward#1", "hits": 3, "groups": [], "graphs": {"recorded": {"nodes": []}}},
        ],
        "functions": [{"name": "BertModel.forward", "regions": [0, 1], "refusals": []}],
        "texts": [*texts, "step 0: call k0\nstep 1: call k1\n", "  1  RESUME 0\n"],
    }


def _passes(nodes):
    """A history that ends at `nodes`: each linear was a transpose and a product before, each gelu had a copy."""
    before, rewrites, copies = [], [], []
    for node in nodes:
        name = node["id"]
        if node["op"] == "aten::linear":
            a, weight = node["inputs"]
            turned = node | {"id": f"t_{name}", "op": "aten::t", "inputs": [weight], "args": weight}
            operands = [a, turned["id"]]
            product = node | {
                "id": f"mm_{name}",
                "op": "aten::mm",
                "inputs": operands,
                "args": ", ".join(operands),
            }
            before += [turned, product]
            source, note = "lampwork/rewriting/library/linear.py:40", "x @ w.t() -> linear(x, w)"
            removed = [turned["id"], product["id"]]
            rewrites.append(
                {
                    "name": "linear_of_product",
                    "source": source,
                    "note": note,
                    "removed": removed,
                    "added": [node],
                }
            )
        else:
            before.append(node)
        if node["op"] == "aten::gelu":
            before.append(node | {"id": f"clone_{name}", "op": "aten::clone", "inputs": [name], "args": name})
            written = node | {"args": node["args"] + ", approximate='none'"}
            copies.append({"name": "remove_noop", "removed": [f"clone_{name}"], "changed": [[name, written]]})
    steps = [
        {"pass": "functionalize", "seconds": 0.001, "rewrites": []},
        {"pass": "remove-noops", "seconds": 0.004, "rewrites": copies},
        {"pass": "algebra", "seconds": 0.02, "rewrites": rewrites},
        {"pass": "fuse", "seconds": 0.01, "rewrites": []},
    ]
    return {"nodes": before}, steps


def flat(nodes, title="Flat"):
    """A chain of `nodes` operators outside of any module, no kernel known."""
    graph = _Graph()
    last = graph.node("input", [], "", kind="input")
    for _ in range(nodes):
        last = graph.node("aten::add", [last], "")
    for node in graph.nodes:
        node.pop("module", None)
    ids = [node["id"] for node in graph.nodes]
    region = {"name": "flat#0", "graphs": {"recorded": {"nodes": graph.nodes}, "steps": [], "optimized": ids}}
    return {"format": 1, "title": title, "regions": [region]}


HOSTILE = "</script><!--<img src=x onerror=alert(1)>\u2028\"'&<b>"


# Not texts, but what leads from one part of the report to another.
_KEYS = {"format", "kind", "id", "inputs", "nodes", "optimized", "removed", "changed", "a", "b"}


def hostile():
    """Markup in every text that a user's program can give."""
    data = encoder(1, title=HOSTILE)

    def spoil(value, key=""):
        if isinstance(value, dict):
            return {name: spoil(each, name) for name, each in value.items()}
        if isinstance(value, list):
            return [spoil(each, key) for each in value]
        kept = isinstance(value, str) and key not in _KEYS
        return value + HOSTILE if kept else value

    return spoil(data)
