"""One interactive figure, shown in a notebook or saved as a page."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jax_diversity.foundation.artifacts import write_text
from jax_diversity.foundation.checks import check_one_of
from jax_diversity.foundation.errors import UserError, quoted
from jax_diversity.foundation.figures.embedding import drawing_script, embed_json, fill, resource

FIGURES = {
    "course": "the distance of everything read from the corpus's mixture, of the order that is judged and a shuffle",
    "reading": "which datasets and epochs each part of a run reads",
    "windows": "the TV of every window along training",
    "profile": "mean and worst TV at every window size",
    "prefix": "the distance of everything read from the corpus's mixture",
    "drift": "the drift of the norm along training",
    "heat": "the shares of the largest groups along training",
    "loss": "training and validation losses",
    "groups": "the validation loss of every group",
    "diversity": "gradient diversity, beside a run on a shuffle",
    "rank": "stable rank of the gradients, beside a run on a shuffle",
    "wait": "the time that a step waited for its batch",
    "worth": "how many shuffled sequences one sequence of the order is worth",
    "flow": "documents, words and bytes that every step of preparation left",
    "lengths": "documents by length",
    "topics": "a map of the clusters",
    "ranks": "the sizes of the clusters",
    "segments": "segments in a sequence",
}
"""Name of a figure -> what it shows."""
_HEIGHT = 520  # in pixels, with the sentence below the figure


@dataclass(frozen=True, repr=False)
class Figure:
    """An interactive figure of the report; a notebook shows it.

    Attributes:
        name: one of `FIGURES`.
        values: what it draws, a part of the values of `report.json`.
        choices: the switches of the report's page: `family`, `size` (of the window), `focus` (the ordering of `heat`).

    Raises:
        UserError: there is no such figure, or a choice is not in the values.
    """

    name: str
    values: Mapping[str, Any]
    choices: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_one_of("figure", self.name, FIGURES)
        ordering = self.values["ordering"]
        if "family" in self.choices:
            check_one_of("family", self.choices["family"], ordering["families"])
        if "focus" in self.choices:
            check_one_of("ordering", self.choices["focus"], [order["name"] for order in ordering["orders"]])
        sizes = ordering["window_sizes"]
        if "size" in self.choices and self.choices["size"] not in sizes:
            measured = ", ".join(map(str, sizes))
            raise UserError(f"Expected window to be one of {measured}, found {quoted(self.choices['size'])}.")

    @property
    def html(self) -> str:
        """A page that loads nothing and shows the figure; 2 MB, because plotly.js is in it."""
        scripts = {"figures": drawing_script(), "single": resource("foundation.figures", "single.js")}
        values = {"name": self.name, "values": self.values, "choices": dict(self.choices)}
        parts = {**scripts, "title": html.escape(FIGURES[self.name]), "values": embed_json(values)}
        return fill(resource("foundation.figures", "single.html"), parts, scripts.values())

    def save(self, path: str | Path) -> None:
        """Write the figure as one HTML file that needs no network.

        Raises:
            UserError: the path has another ending than `.html`.
        """
        path = Path(path)
        if path.suffix.lower() not in (".html", ".htm"):
            raise UserError(
                f"Expected a path that ends in .html, found {quoted(path.name)}: a browser draws the figure. Two "
                "buttons of the page, and of the figure in a notebook, save the picture as PNG and as SVG."
            )
        write_text(path, self.html)

    def __repr__(self) -> str:
        chosen = "".join(f", {key}={value!r}" for key, value in self.choices.items())
        return f"Figure({self.name!r}{chosen}: {FIGURES[self.name]}; a notebook shows it, .save(path) writes a page)"

    def _repr_html_(self) -> str:
        page = html.escape(self.html, quote=True)
        style = f"width:100%;height:{_HEIGHT}px;border:0"
        return f'<iframe srcdoc="{page}" sandbox="allow-scripts allow-downloads" style="{style}"></iframe>'
