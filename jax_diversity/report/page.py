"""Draw the values of a report as one self-contained HTML page.

The page contains its values, its style, its script and plotly.js (compressed). A content security policy forbids all
connections, and all scripts except those whose hash is in the policy. Text of the corpus reaches the page only
as JSON. Characters that could end a script element are escaped, and the text is never shown as markup.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import re
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from jax_diversity.foundation import artifacts

# Characters that could end a script element or begin a comment in it. `json` escapes all other special characters.
_ESCAPES = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026"}
# A file may use the definitions of the files before it. Each list becomes one script.
_FIGURES = (
    "wording",
    "look",
    "order_figures",
    "heat_map",
    "run_figures",
    "training_figures",
    "preparation_figures",
    "corpus_figures",
)
_PAGE = ("elements", "library", "batches", "prepared", "drawing", "page")
_PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}")


def render(values: Mapping[str, Any]) -> str:
    """Return the page for the values of `report_values`, one HTML document; equal values give an equal document."""
    from plotly.offline import get_plotlyjs

    plotly = _script(get_plotlyjs())
    scripts = {
        "watch": _resource("watch.js"),
        "figures": "\n".join(_resource(f"{name}.js") for name in _FIGURES),
        "page": "\n".join(_resource(f"{name}.js") for name in _PAGE),
    }
    parts = {
        **scripts,
        "title": html.escape(str(values["title"])),
        # Compression reduces the script to a third. With the time in gzip's header, two pages of one dataset would
        # differ.
        "plotly": base64.b64encode(gzip.compress(plotly.encode(), mtime=0)).decode(),
        "policy": _policy([*scripts.values(), plotly]),
        "style": _resource("page.css"),
        "values": embed_json(values),
    }
    # All placeholders are replaced in one pass: inserted text may look like a placeholder and must not be replaced.
    return _PLACEHOLDER.sub(lambda match: parts[match[1]], _resource("page.html"))


def embed_json(values: Mapping[str, Any]) -> str:
    """JSON that is safe inside a script element and parses to the same values."""
    return json.dumps(values, allow_nan=False, sort_keys=True, separators=(",", ":")).translate(_ESCAPES)


def write_report(folder: Path, values: Mapping[str, Any]) -> None:
    """Write `report.json` with the values, and `report.html` with the page, each atomically; makes the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    # There are thousands of numbers: one per line, as in `write_json`, would make the file three times as large.
    text = json.dumps(values, allow_nan=False, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    artifacts.write_text(folder / "report.json", text + "\n")
    artifacts.write_text(folder / "report.html", render(values))


def _resource(name: str) -> str:
    return _script((files("jax_diversity.report") / name).read_text(encoding="utf-8"))


def _script(source: str) -> str:
    # Before a browser hashes a script, it converts line ends to \n and NUL to the replacement character.
    return source.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\ufffd")


def _policy(scripts: Iterable[str]) -> str:
    """A policy without connections, frames and forms: only these scripts, and the page's own pictures and styles."""
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
