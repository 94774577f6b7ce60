"""The documentation site: the Markdown pages of the repository, as they are. `make site`.

Sphinx reads them where they lie, so a link that works on a forge works here too, and nothing is written twice.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

project = "Lampwork"
author = "the contributors to Lampwork"

# The pages of the site. tests/unit/docs/test_docs_blocks.py reads this too: each block on them runs, or says why not.
include_patterns = ["*.md", "docs/*.md", "docs/readers/*.md", "docs/reference/*.md"]
exclude_patterns = ["build", ".*", "report", "tests", "src", "csrc", "benchmarks", "examples", "tools"]
root_doc = "docs/index"

extensions = ["myst_parser", "navigation", "names", "files", "links", "accessible"]
nitpicky = True
myst_heading_anchors = 4
smartquotes = False
highlight_language = "text"

html_title = "Lampwork"
html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_show_copyright = False
html_show_sourcelink = False
html_copy_source = False
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"
