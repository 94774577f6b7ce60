"""What the theme leaves out for readers without a mouse or a screen."""

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx


def mend(
    app: Sphinx, name: str, template: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    if "body" in context:  # long lines are scrolled by keys
        context["body"] = context["body"].replace("<pre>", '<pre tabindex="0">')
    tree = context["furo_navigation_tree"]  # captions of the menu are headings of some level
    context["furo_navigation_tree"] = tree.replace('role="heading"', 'role="heading" aria-level="2"')


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("html-page-context", mend, priority=900)  # after the theme
    return {"parallel_read_safe": True, "parallel_write_safe": True}
