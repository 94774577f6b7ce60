"""Architectures of the `transformers` package, tiny and with random weights: what `python -m lampwork.bench capture`
and the tests of models run."""

from lampwork.bench.architectures.architecture import Architecture, build, inputs_of
from lampwork.bench.architectures.other import OTHERS
from lampwork.bench.architectures.text import TEXTS

ARCHITECTURES: dict[str, Architecture] = {a.name: a for a in (*TEXTS, *OTHERS)}

__all__ = ["ARCHITECTURES", "Architecture", "build", "inputs_of"]
