"""Draw a report's values as one HTML page that holds everything it needs.

The page carries its values, its style, its script and plotly.js (compressed) inside; a content security policy
forbids every connection, and every script whose hash it does not contain. Text of the corpus reaches the page only
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
# Every file may use what the files before it define; one script holds each list.
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
    """The page for the values of `report_values`: one HTML document; equal values give an equal document."""
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
        # Compressed it is a third of its size. The time in gzip's header would make two pages of one dataset differ.
        "plotly": base64.b64encode(gzip.compress(plotly.encode(), mtime=0)).decode(),
        "policy": _policy([*scripts.values(), plotly]),
        "style": _resource("page.css"),
        "values": embed_json(values),
    }
    # One pass: inserted text may look like a placeholder, so it is not searched.
    return _PLACEHOLDER.sub(lambda match: parts[match[1]], _resource("page.html"))


def embed_json(values: Mapping[str, Any]) -> str:
    """JSON that is safe inside a script element and parses to the same values."""
    return json.dumps(values, allow_nan=False, sort_keys=True, separators=(",", ":")).translate(_ESCAPES)


def write_report(folder: Path, values: Mapping[str, Any]) -> None:
    """Write values as `report.json` and, drawn, as `report.html`, each atomically; the folder is made."""
    folder.mkdir(parents=True, exist_ok=True)
    # There are thousands of numbers: one per line, as in `write_json`, would make the file three times as large.
    text = json.dumps(values, allow_nan=False, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    artifacts.write_text(folder / "report.json", text + "\n")
    artifacts.write_text(folder / "report.html", render(values))


def _resource(name: str) -> str:
    return _script((files("jax_diversity.report") / name).read_text(encoding="utf-8"))


def _script(source: str) -> str:
    # A browser hashes a script after it has read line ends as \n and NUL as the replacement character.
    return source.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\ufffd")


def _policy(scripts: Iterable[str]) -> str:
    """A policy without connections, frames and forms: only these scripts, and the page's own pictures and styles."""
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
