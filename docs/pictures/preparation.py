"""The picture of a preparation in docs/preparation.md: which documents every step leaves, part by part.

    python docs/pictures/preparation.py [--out PICTURE.svg]

Eighteen made-up documents of three sources pass the package's own steps. A part holds six of them here, and some
megabytes of text in a build.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from jax_diversity.foundation.svg import framed, line, rect, text, titles
from jax_diversity.preparation.passes.chain import Chain
from jax_diversity.schema import Document

OUT = Path(__file__).parent.parent / "images" / "preparation.svg"
STEPS: list[tuple[str, dict[str, Any], str]] = [
    ("words", {"least": 4}, "at least 4 words"),
    ("personal_data", {}, "edits, removes none"),
    ("exact_duplicates", {"precedence": "wiki"}, "looks at all; wiki first"),
    ("words", {"least": 6}, "at least 6 words"),
]
SOURCES = {"wiki": "g0", "web": "g1", "chat": "g2"}
TEXTS = [
    ("web", "a page of some eight words that is kept"),
    ("web", "too short"),
    ("chat", "write to me@example.org if you like this one"),
    ("web", "one and the same text comes three times here"),
    ("web", "five words are too few"),
    ("chat", "ok"),
    ("wiki", "an article of an encyclopaedia with enough words"),
    ("wiki", "One and the same text comes three times here"),
    ("web", "a page about another thing that is kept as well"),
    ("chat", "a talk that goes on for quite a while"),
    ("web", "home about contact"),
    ("web", "you can reach us at office@example.org every day of the week"),
    ("chat", "one and the same text comes three times here"),
    ("wiki", "a stub of five words"),
    ("web", "the last page but two is a long one too"),
    ("wiki", "another article about something else that is long enough"),
    ("web", "a page about another thing that is kept as well"),
    ("chat", "bye for now and see you all tomorrow then"),
]
PART, SIDE, GAP, LEFT, COLUMN, TOP, ROW = 6, 16, 4, 24, 146, 112, 62


def left(number_of_steps: int) -> dict[str, Document]:
    """The documents that so many steps leave."""
    documents = [Document(f"d{index}", words, source) for index, (source, words) in enumerate(TEXTS)]
    if not number_of_steps:
        return {document.id: document for document in documents}
    chain = Chain([(name, options) for name, options, _ in STEPS[:number_of_steps]])
    return {document.id: document for document in chain.through(documents)}


def draw() -> str:
    """The SVG's text."""
    title = "Documents on their way through the steps"
    parts = titles(title, "Each row is a part of the corpus, each box a document")
    heads = [("read", "by a format's reader"), *((name, words) for name, _, words in STEPS)]
    before: dict[str, Document] = {}
    for column, (name, words) in enumerate(heads):
        x, now = LEFT + column * COLUMN, left(column)
        parts += [text(x, 84, name, "strong"), text(x, 100, words, "quiet")]
        for index, (source, _) in enumerate(TEXTS):
            row, place = divmod(index, PART)
            at = x + (place % 3) * (SIDE + GAP), TOP + row * ROW + place // 3 * (SIDE + GAP)
            id = f"d{index}"
            if id in now:
                parts.append(rect(SOURCES[source], *at, SIDE, SIDE))
                if id in before and before[id].text != now[id].text:
                    parts.append(text(at[0] + 5, at[1] + 13, "*"))
            elif not column or id in before:
                parts.append(rect("empty", *at, SIDE, SIDE))
                parts.append(text(at[0] + 4, at[1] + 13, "x", "quiet"))
        before = now
    bottom = TOP + 3 * ROW
    # All parts are needed before the survey can decide.
    x = LEFT + 3 * COLUMN - 22
    parts.append(line("limit dashed", x, TOP - 4, x, bottom - 16))
    parts.append(text(x, bottom + 2, "notes of all parts are compared", "quiet", "middle"))
    for index, (source, kind) in enumerate(SOURCES.items()):
        parts += [rect(kind, LEFT + 90 * index, bottom + 18, 14, 14), text(LEFT + 90 * index + 20, bottom + 30, source)]
    parts.append(text(LEFT + 290, bottom + 30, "x: removed by this step     *: edited by it", "quiet"))
    return framed(title, parts, 760, bottom + 48)


def main() -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    arguments.out.write_text(draw(), encoding="utf-8")
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
