"""Draw the values of a report as one self-contained HTML page.

The page contains its values, its style, its script and plotly.js (compressed). A content security policy forbids all
connections, and all scripts except those whose hash is in the policy. Text of the corpus reaches the page only
as JSON. Characters that could end a script element are escaped, and the text is never shown as markup.
"""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jax_diversity.foundation import artifacts
from jax_diversity.foundation.figures.embedding import drawing_script, embed_json, fill, resource

# A file may use the definitions of the files before it.
_PAGE = ("elements", "batches", "prepared", "drawing", "page")


def render(values: Mapping[str, Any]) -> str:
    """Return the page for the values of `report_values`, one HTML document; equal values give an equal document."""
    scripts = {
        "watch": resource("report", "watch.js"),
        "figures": drawing_script(),
        "page": "\n".join(resource("report", f"{name}.js") for name in _PAGE),
    }
    parts = {
        **scripts,
        "title": html.escape(str(values["title"])),
        "style": resource("report", "page.css"),
        "values": embed_json(values),
    }
    return fill(resource("report", "page.html"), parts, scripts.values())


def write_report(folder: Path, values: Mapping[str, Any]) -> None:
    """Write `report.json` with the values, and `report.html` with the page, each atomically; makes the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    # There are thousands of numbers: one per line, as in `write_json`, would make the file three times as large.
    text = json.dumps(values, allow_nan=False, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    artifacts.write_text(folder / "report.json", text + "\n")
    artifacts.write_text(folder / "report.html", render(values))
