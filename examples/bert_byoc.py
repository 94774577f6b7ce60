"""Bring your own optimization to BERT, end to end: profile it, look at its graph, write the fusions that one sees there
as rewrites, a group of operators as a backend with a C kernel of its own, approximate what may be, and measure.

    python examples/bert_byoc.py [--layers 12] [--tokens 128] [--folder FOLDER]

FOLDER receives trace.json, for chrome://tracing or ui.perfetto.dev, and attention.onnx, for netron.app.
docs/tutorial.md walks through it.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from transformers import BertConfig, BertModel

import lampwork
from lampwork import No, Yes
from lampwork.approximation import gelu_to_relu, layer_norm_to_affine
from lampwork.patterns import constant, tensor

aten = torch.ops.aten


def build(layers: int) -> nn.Module:
    """BERT-base with random weights, its attention written out in single operators."""
    torch.manual_seed(0)
    config = BertConfig(num_hidden_layers=layers, attn_implementation="eager")
    return BertModel(config, add_pooling_layer=False).eval()


# --- look at it -----------------------------------------------------------------------------------------------------


def profile(model: nn.Module, inputs: Sequence[Tensor], folder: Path) -> None:
    """Where the time goes, by operator; and the whole course of a call as a trace file."""
    with torch.profiler.profile(record_shapes=True) as profiler:
        model(*inputs)
    print(profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=8, max_name_column_width=32))
    profiler.export_chrome_trace(str(folder / "trace.json"))


def export_attention(model: nn.Module, tokens: int, folder: Path) -> str:
    """One attention block as an ONNX file, to be looked at; what became of it."""
    if importlib.util.find_spec("onnxscript") is None:
        return "no attention.onnx: torch.onnx needs the package onnxscript"
    attention = model.get_submodule("encoder.layer.0.attention.self")
    torch.onnx.export(
        attention, (torch.randn(1, tokens, 768),), folder / "attention.onnx", dynamo=True, verbose=False
    )
    return f"wrote {folder / 'attention.onnx'}"


# --- the fusions that the graph shows, as rewrites --------------------------------------------------------------------


class ScaleTheQuery:
    """The scale of the scores goes to the query, which has fewer numbers, and from there into its weights.

    before:  %s = matmul(%q, %k), %y = mul(%s, 0.125)
    after:   %t = mul(%q, 0.125), %y = matmul(%t, %k)
    """

    def pattern(q: Tensor, k: Tensor, c: float):
        return torch.matmul(q, k) * c

    def replacement(q, k, c):
        return torch.matmul(q * c, k)


class OneProjection:
    """Query, key and value come from one product with their weights side by side.

    before:  %q = linear(%x, %wq, %bq), %k = linear(%x, %wk, %bk), %v = linear(%x, %wv, %bv)
    after:   %w = cat([%wq, %wk, %wv]), %b = cat([%bq, %bk, %bv]), %y = linear(%x, %w, %b), ... slices of %y
    """

    def pattern(
        x=tensor(), wq=constant(), bq=constant(), wk=constant(), bk=constant(), wv=constant(), bv=constant()
    ):
        return F.linear(x, wq, bq), F.linear(x, wk, bk), F.linear(x, wv, bv)

    def replacement(x, wq, bq, wk, bk, wv, bv):
        y, n = F.linear(x, torch.cat([wq, wk, wv]), torch.cat([bq, bk, bv])), wq.shape[0]
        return y.narrow(-1, 0, n), y.narrow(-1, n, n), y.narrow(-1, 2 * n, n)


# --- a backend of one's own ------------------------------------------------------------------------------------------

SOURCE = """
void kernel(const float *restrict a, const float *restrict b, float *restrict c) {
  for (long n = 0; n < BATCH; ++n, a += M * K, b += K * N, c += M * N)
    for (long i = 0; i < M; ++i) {
      float row[N] = {0};
      for (long k = 0; k < K; ++k)
        for (long j = 0; j < N; ++j) row[j] += a[i * K + k] * b[k * N + j];
      for (long j = 0; j < N; ++j) c[i * N + j] = row[j] * (float)SCALE;
    }
}"""


class MatmulScale:
    name = "matmul-scale"
    keep_ops = (aten.matmul, aten.mul, aten.div)

    def supports(self, node: fx.Node) -> Yes | No:
        product = node if node.target is aten.matmul.default else node.args[0]
        if not isinstance(product, fx.Node) or product.target is not aten.matmul.default:
            return No("no product of matrices")
        a, b = (arg.meta["val"] for arg in product.args)
        if a.dtype != torch.float32 or len(a.shape) < 3 or a.shape[:-2] != b.shape[:-2]:
            return No(f"{a} by {b}: only batches of float32 matrices")
        scale = next(iter(product.users)) if node is product else node
        if len(product.users) != 1 or scale.target not in (aten.mul.Tensor, aten.div.Tensor):
            return No("no constant factor behind it")
        return Yes() if isinstance(scale.args[1], float | int) else No("the factor is no constant")

    def clusters(self, graph: fx.Graph) -> list[tuple[fx.Node, ...]]:
        products = (n for n in graph.nodes if n.target is aten.matmul.default and self.supports(n))
        return [(product, next(iter(product.users))) for product in products]

    def compile(
        self, graph: fx.Graph, example_inputs: object, options: object
    ) -> Callable[..., Sequence[Tensor]]:
        steps = [self._step(n) for n in graph.nodes if n.target is aten.matmul.default]
        names = [n.name for n in graph.nodes if n.op == "placeholder"]
        outputs = [n.name for n in next(n for n in graph.nodes if n.op == "output").args[0]]

        def run(*tensors: Tensor) -> Sequence[Tensor]:
            values = dict(zip(names, tensors, strict=True))
            for a, b, c, shape, kernel in steps:
                left, right, values[c] = values[a].contiguous(), values[b].contiguous(), torch.empty(shape)
                kernel(*(ctypes.c_void_p(t.data_ptr()) for t in (left, right, values[c])))
            return [values[name] for name in outputs]

        return run

    def _step(self, product: fx.Node) -> tuple[str, str, str, tuple[int, ...], Callable[..., None]]:
        (a, b), scale = product.args, next(iter(product.users))
        factor = scale.args[1] if scale.target is aten.mul.Tensor else 1.0 / scale.args[1]
        (*batch, m, k), n = a.meta["val"].shape, b.meta["val"].shape[-1]
        sizes = {"BATCH": torch.Size(batch).numel(), "M": m, "K": k, "N": n, "SCALE": repr(float(factor))}
        print("cc compiles a kernel:", sizes)
        folder = Path(tempfile.mkdtemp())
        (folder / "kernel.c").write_text(SOURCE)
        defines = [f"-D{name}={value}" for name, value in sizes.items()]
        flags = ["-O3", "-march=native", "-ffast-math", "-shared", "-fPIC", "-o", "kernel.so", "kernel.c"]
        subprocess.run(["cc", *defines, *flags], cwd=folder, check=True)
        return (
            a.name,
            b.name,
            scale.name,
            tuple(scale.meta["val"].shape),
            ctypes.CDLL(folder / "kernel.so").kernel,
        )


# --- all of it --------------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=2.0, help="of measuring, for each column")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "bert_byoc")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    torch.set_grad_enabled(False)
    model = build(options.layers)
    inputs = (torch.randint(0, 30_000, (1, options.tokens)),)

    print("== 1. profile ==")
    profile(model, inputs, options.folder)
    print(f"wrote {options.folder / 'trace.json'}")
    print(export_attention(model, options.tokens, options.folder))

    print("\n== 2. rewrites ==")
    mine = [lampwork.rewrite(ScaleTheQuery, enabled=False), lampwork.rewrite(OneProjection, enabled=False)]
    with lampwork.passes("-library,-merge-linears"):
        plain = lampwork.compile(model)
    with lampwork.passes("-library,-merge-linears,+scale_the_query,+one_projection"):
        rewritten = lampwork.compile(model)
    plain(*inputs)
    rewritten(*inputs)
    print(lampwork.rewrites())
    print(lampwork.why_not(mine[1], rewritten))

    print("\n== 3. a backend ==")
    backend = MatmulScale()
    print(lampwork.partition(model, inputs, [backend, "native"]).dry_run())
    custom = lampwork.compile(model, backend=[backend, "native"])
    for run in ("first", "second"):
        before = lampwork.stats()
        lampwork.compile(model, backend=[backend, "eager"])(*inputs)
        after = lampwork.stats()
        compiled, found = (
            int(after[counter] - before[counter]) for counter in ("backend_compiles", "backend_cache_hits")
        )
        print(f"{run} run: {compiled} parts compiled, {found} parts found in the cache")

    print("\n== 4. approximations ==")
    approximated = build(options.layers)
    rules = [gelu_to_relu, layer_norm_to_affine]
    print(lampwork.approximate(approximated, rules, calibration=[inputs], budget=0.1))

    print("\n== 5. compared ==")
    columns = {
        "eager": model,
        "lampwork without the library": plain,
        "with the two rewrites": rewritten,
        "with the C backend": custom,
        "lampwork": lampwork.compile(model),
        "approximated": lampwork.compile(approximated),
    }
    print(lampwork.compare(model, columns, inputs, seconds=options.seconds))


if __name__ == "__main__":
    main()
