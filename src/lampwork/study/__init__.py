"""Which architectures allow which optimizations, and what each is worth: `lampwork study`.

`run(...)` measures and gives a document of plain data; `page(document)` makes the page and its pictures of that alone.
"""

from lampwork.study.render import page
from lampwork.study.study import run

__all__ = ["page", "run"]
