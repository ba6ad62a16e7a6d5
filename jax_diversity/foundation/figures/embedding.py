"""Put scripts, values and plotly.js into one HTML document that loads nothing."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from importlib.resources import files
from typing import Any

DRAWING = (
    "wording",
    "look",
    "order_figures",
    "heat_map",
    "run_figures",
    "training_figures",
    "preparation_figures",
    "corpus_figures",
    "catalogue",
    "library",
)
"""The scripts that draw figures. A script may use the definitions of the scripts before it."""
# Characters that could end a script element or begin a comment in it. `json` escapes all other special characters.
_ESCAPES = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026"}
_PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}")


def drawing_script() -> str:
    """The scripts of all figures, as one."""
    return "\n".join(resource("foundation.figures", f"{name}.js") for name in DRAWING)


def fill(template: str, parts: Mapping[str, str], scripts: Iterable[str]) -> str:
    """Fill the placeholders of an HTML document.

    Args:
        template: the document, with placeholders `{{name}}`; `{{policy}}` and `{{plotly}}` are filled here.
        parts: the text of every other placeholder.
        scripts: the scripts of the document, which are the only ones that its policy allows.
    """
    from plotly.offline import get_plotlyjs

    plotly = as_script(get_plotlyjs())
    # Compression reduces the script to a third. With the time in gzip's header, two pages of equal values would differ.
    packed = base64.b64encode(gzip.compress(plotly.encode(), mtime=0)).decode()
    replacements = {**parts, "plotly": packed, "policy": _policy([*scripts, plotly])}
    # All placeholders are replaced in one pass: inserted text may look like a placeholder and must not be replaced.
    return _PLACEHOLDER.sub(lambda match: replacements[match[1]], template)


def embed_json(values: Mapping[str, Any]) -> str:
    """JSON that is safe inside a script element and parses to the same values."""
    return json.dumps(values, allow_nan=False, sort_keys=True, separators=(",", ":")).translate(_ESCAPES)


def resource(folder: str, name: str) -> str:
    """A file of the package, as a browser reads it."""
    return as_script((files(f"jax_diversity.{folder}") / name).read_text(encoding="utf-8"))


def as_script(source: str) -> str:
    """A script as a browser reads it before it hashes it: line ends become \\n, NUL the replacement character."""
    return source.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\ufffd")


def _policy(scripts: Iterable[str]) -> str:
    """A policy without connections, frames and forms: only these scripts, and the page's own pictures and styles."""
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
