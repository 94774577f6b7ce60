"""Files of the repository that pages link to, such as docs/from_scratch.py, are pages of the site too."""

from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

LANGUAGES = {".py": "python", ".cpp": "cpp", ".h": "cpp", ".toml": "toml"}


def link_pages(app: Sphinx, doctree: nodes.document) -> None:
    """Before Sphinx makes downloads of them."""
    files: set[str] = app.env.metadata[app.env.docname].setdefault("files", set())
    for link in list(doctree.findall(addnodes.download_reference)):
        path = app.env.relfn2path(link["reftarget"])[0]
        files.add(path)
        place = app.builder.get_relative_uri(app.env.docname, f"files/{path}")
        found = nodes.reference(
            "", "", *[child.deepcopy() for child in link.children], internal=True, refuri=place
        )
        link.replace_self(found)


def pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    for path in sorted({path for data in app.env.metadata.values() for path in data.get("files", ())}):
        file = Path(app.srcdir, path)
        code = app.builder.highlighter.highlight_block(  # type: ignore[attr-defined]
            file.read_text(), LANGUAGES.get(file.suffix, "text"), linenos="inline"
        )
        yield f"files/{path}", {"title": path, "body": f"<h1>{escape(path)}</h1>{code}"}, "page.html"


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("doctree-read", link_pages, priority=100)
    app.connect("html-collect-pages", pages)
    return {"parallel_read_safe": True}
