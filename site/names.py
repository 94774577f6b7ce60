"""Names of the API in the text, such as `lampwork.compile(...)`, lead to their entries in docs/reference/api.md."""

import re
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx

PAGE = "docs/reference/api"


def entry_of(text: str, entries: set[str]) -> str | None:
    """The entry that a piece of code is about: that of a name, or of a call; of a class also without its module."""
    name = re.match(r"[\w.]*", text)[0]  # type: ignore[index]  # matches everything
    if name in entries:
        return name
    if not name[:1].isupper() or "." in name:
        return None
    found = [entry for entry in entries if entry.endswith(f".{name}")]
    return found[0] if len(found) == 1 else None


def read_entries(app: Sphinx) -> None:
    text = Path(app.srcdir, f"{PAGE}.md").read_text()
    app.env.api_entries = set(re.findall(r"^### `(lampwork\.[\w.]+)`$", text, re.M))  # type: ignore[attr-defined]


def add_links(app: Sphinx, doctree: nodes.document, name: str) -> None:
    for code in list(doctree.findall(nodes.literal)):
        if isinstance(code.parent, nodes.title | nodes.reference | nodes.term):
            continue
        entry = entry_of(code.astext(), app.env.api_entries)  # type: ignore[attr-defined]
        if entry is not None:
            place = f"{app.builder.get_relative_uri(name, PAGE)}#{nodes.make_id(entry)}"
            code.replace_self(nodes.reference("", "", code.deepcopy(), internal=True, refuri=place))


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", read_entries)
    app.connect("doctree-resolved", add_links)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
