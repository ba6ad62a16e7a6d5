"""Pages of the notebooks, made from the .ipynb files: their texts, code and outputs.

A page holds a block with the name of a notebook, which the site replaces. Links of other pages to a notebook lead to
its page; the page itself links to the file.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
BLOCK = re.compile(r"```\{notebook\}\n(\w+)\n```\n")
LINK = re.compile(r"\((?:\.\./)+notebooks/(\w+)\.ipynb\)")
FOLDER = "notebooks"
"""The folder of the pages below docs/."""


def setup(app: Sphinx) -> dict[str, Any]:
    """Replace the blocks and the links when a page is read."""
    app.connect("source-read", _read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _read(app: Sphinx, docname: str, source: list[str]) -> None:
    folder = os.path.dirname(docname)
    if folder == FOLDER:
        source[0] = BLOCK.sub(lambda block: page(block[1]), source[0])
        for name in BLOCK.findall(Path(app.srcdir, f"{docname}.md").read_text(encoding="utf-8")):
            app.env.note_dependency(str(NOTEBOOKS / f"{name}.ipynb"))
    else:
        source[0] = LINK.sub(lambda link: f"({os.path.relpath(f'{FOLDER}/{link[1]}.md', folder or '.')})", source[0])


def page(name: str) -> str:
    """A notebook in Markdown, without its title, which the page has."""
    cells = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    parts = [part for cell in cells for part in _parts(cell)]
    return "\n\n".join(parts).removeprefix(parts[0].partition("\n")[0]) + "\n"


def _parts(cell: Mapping[str, Any]) -> Iterator[str]:
    """The Markdown of one cell: its text, or its code and what the code printed and drew."""
    text = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        yield text
        return
    # Lines for the notebook alone, such as `%pip`, are not Python.
    yield f"```{'text' if text.startswith('%') else 'python'}\n{text}\n```"
    for output in cell.get("outputs", ()):
        found = {kind: "".join(content) for kind, content in output.get("data", {}).items()}
        if "text" in output:
            yield f"```text\n{''.join(output['text']).rstrip()}\n```"
        elif "image/png" in found:
            yield f"![What the code above draws](data:image/png;base64,{found['image/png'].strip()})"
        elif "text/html" in found:
            yield f'```{{raw}} html\n<div class="output">{found["text/html"]}</div>\n```'
        elif "text/plain" in found:
            yield f"```text\n{found['text/plain'].rstrip()}\n```"
