"""Reports: all of an explanation as data, and as one HTML file to look into."""

from __future__ import annotations

from lampwork.inspect.report.data import report_data
from lampwork.inspect.report.page import save, to_html

__all__ = ["report_data", "save", "to_html"]
