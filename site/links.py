"""Every link of the built site leads somewhere: to a file of the site, and to a place in it that there is."""

from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sphinx.application import Sphinx
from sphinx.util.logging import getLogger


class Page(HTMLParser):
    """The links of a page, and the places that others may link to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.places: set[str] = {""}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.places.add(value)
            elif name in ("href", "src") and value:
                self.links.add(value)


read = cache(Page)


def broken(site: Path) -> list[str]:
    """The links that lead nowhere, as "page: link". Those to other sites are not followed."""
    found: list[str] = []
    for path in sorted(site.rglob("*.html")):
        for link in sorted(read(path).links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            there = target.is_file() and (
                target.suffix != ".html" or unquote(parts.fragment) in read(target).places
            )
            if not there:
                found.append(f"{path.relative_to(site)}: {link}")
    return found


def check(app: Sphinx, error: Exception | None) -> None:
    if error is None and app.builder.format == "html":
        read.cache_clear()
        for link in broken(Path(app.outdir)):
            getLogger(__name__).error("this link leads nowhere: %s", link)
            app.statuscode = 1


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("build-finished", check, priority=900)
    return {"parallel_read_safe": True}
