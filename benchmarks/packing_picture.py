"""Draw a picture of every packing method: its real result for ten small documents, as SVG.

    python benchmarks/packing_picture.py [--out FOLDER]

Each method has a row of sequences. Each document has a colour, and each topic has a hue; hatching is padding. A dark
last token is the document's end token; an end token in a ring was inserted. A line across a document is a cut: the
document continues elsewhere.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import jax_diversity as jd
from jax_diversity.foundation.svg import circle, framed, line, rect, text
from jax_diversity.schema import Segments
from jax_diversity.sequences.packing.base import Packed
from jax_diversity.sequences.packing.report import PackingReport

FOLDER = Path(__file__).parent.parent / "docs" / "images"
LENGTHS = np.array([9, 5, 23, 3, 7, 13, 4, 18, 6, 13])
TOPICS = np.array([0, 1, 0, 2, 1, 2, 1, 0, 2, 1])
SEQUENCE_LENGTH = 16
SEED = 2

WIDTH, LEFT, TOP = 720, 16, 16
TOKEN, HEIGHT, GAP, LINE = 9.4, 24, 16, 42  # pixels
PER_LINE = 4
STYLE = """  svg { font-size: 12px; } .number { font-weight: 600; font-size: 11px; }
  .frame { fill: none; stroke: #8c959f; } .hatch { stroke: #8c959f; } .padding { fill: url(#hatch); }
  .cut { stroke: #1f2328; stroke-width: 2.4; } .end { fill: #1f2328; fill-opacity: .5; }
  .inserted { fill: #ffffff; stroke: #1f2328; stroke-width: 1.8; }
  .shared { fill: none; stroke: #1f2328; stroke-dasharray: 2 2; }
  .d0 { fill: #a8d1ff; } .d2 { fill: #6cb0fb; } .d7 { fill: #8fb3e6; }
  .d1 { fill: #ffcfa3; } .d4 { fill: #f7a95f; } .d6 { fill: #ffbe85; } .d9 { fill: #e8a87a; }
  .d3 { fill: #a9e5b4; } .d5 { fill: #6fcf85; } .d8 { fill: #93d0a6; }
"""
DARK = """    .number { fill: #f6f8fa; } .frame { stroke: #6e7681; } .hatch { stroke: #6e7681; }
    .cut { stroke: #f6f8fa; } .end { fill: #000000; fill-opacity: .55; }
    .inserted { fill: #0d1117; stroke: #f6f8fa; } .shared { stroke: #f6f8fa; }
    .d0 { fill: #1f5fa8; } .d2 { fill: #174a86; } .d7 { fill: #3d6fb0; }
    .d1 { fill: #9c5518; } .d4 { fill: #7d4210; } .d6 { fill: #b06a2c; } .d9 { fill: #8a5430; }
    .d3 { fill: #277a3c; } .d5 { fill: #1b5f2d; } .d8 { fill: #3f8552; }
"""
HATCH = (
    '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<line class="hatch" x1="0" y1="0" x2="0" y2="6"/></pattern></defs>'
)


class Picture(NamedTuple):
    """A method with its options, and how its sequences are laid out."""

    name: str
    method: str
    options: dict[str, Any] = {}  # noqa: RUF012 - never changed
    num_rows: int = 0  # if above 0, sequence i is drawn in row i % num_rows


PICTURES = [
    Picture("concat", "concat"),
    Picture("concat-small-atoms", "concat", {"atom_size": 4}),
    Picture("concat-large-atoms", "concat", {"atom_size": 32}),
    Picture("pad", "pad"),
    Picture("pad-small-atoms", "pad", {"atom_size": 8}),
    Picture("pad-large-atoms", "pad", {"atom_size": 32}),
    Picture("best-fit", "best_fit"),
    Picture("first-fit", "first_fit"),
    Picture("same-cluster", "same_cluster"),
    Picture("nearest", "nearest", {"num_neighbors": 3}),
    Picture("spread", "spread"),
    Picture("megatron", "megatron"),
    Picture("partial-shuffle", "partial_shuffle", {"num_rows": 2}, 2),
]


def packed(picture: Picture) -> Packed:
    """Pack the documents by the method."""
    return jd.pack(
        LENGTHS,
        SEQUENCE_LENGTH,
        method=picture.method,
        seed=SEED,
        clusters=TOPICS,
        vectors=vectors(),
        **picture.options,
    )


def vectors() -> np.ndarray:
    """A direction for every document; documents of a topic have near directions."""
    turns = (TOPICS * 2.1 + 0.12 * np.arange(len(TOPICS))).astype(np.float64)
    return np.round(np.stack([np.cos(turns), np.sin(turns), np.full(len(turns), 0.2)], axis=1), 4).astype(np.float32)


def draw(picture: Picture) -> str:
    """The SVG's text."""
    done = packed(picture)
    segments = done.segments
    places = [_place(sequence, segments, picture.num_rows) for sequence in range(segments.num_sequences)]
    parts = [_rect("frame padding", x, y, segments.sequence_length) for x, y in places]
    inserted = segments.inserted_ends(LENGTHS)
    for row in range(len(segments)):
        x, y = places[segments.sequence_index[row]]
        parts += _segment(segments, row, x + TOKEN * int(segments.position[row]), y, bool(inserted[row]))
    if segments.overlap:
        for x, y in places[max(picture.num_rows, 1) :]:  # all sequences that continue another one
            parts.append(_rect("shared", x, y, segments.overlap))
    bottom = max(y for _, y in places) + HEIGHT
    return _framed(picture.name, parts, caption(done.report), bottom)


def _place(sequence: int, segments: Segments, num_rows: int) -> tuple[float, float]:
    """The upper left corner of a sequence."""
    if num_rows:
        column, row = divmod(sequence, num_rows)
    else:
        row, column = divmod(sequence, PER_LINE)
    return LEFT + column * (segments.sequence_length * TOKEN + GAP), TOP + row * LINE


def _segment(segments: Segments, row: int, x: float, y: float, inserted: bool) -> Iterator[str]:
    """Draw a part of a document: its colour and number, its end, the cuts at both sides."""
    document, length = int(segments.document_index[row]), int(segments.length[row])
    offset = int(segments.document_offset[row])
    yield _rect(f"d{document}", x, y, length)
    end = x + TOKEN * (length - 1)
    if inserted:
        yield circle("inserted", end + TOKEN / 2, y + HEIGHT / 2, 3.2)
    elif segments.ends_with_eos[row]:
        yield _rect("end", end, y, 1)
    shown = length - bool(segments.ends_with_eos[row])
    if shown:
        yield text(x + TOKEN * shown / 2, y + HEIGHT / 2 + 4, str(document), "number", "middle")
    if offset:
        yield _cut(x + 1.2, y)
    if offset + length - inserted < LENGTHS[document]:
        yield _cut(x + TOKEN * length - 1.2, y)


def _rect(kind: str, x: float, y: float, num_tokens: int) -> str:
    return rect(kind, x, y, TOKEN * num_tokens, HEIGHT)


def _cut(x: float, y: float) -> str:
    return line("cut", x, y - 4, x, y + HEIGHT + 4)


def caption(report: PackingReport) -> str:
    """Return the numbers in words, without zeros."""
    counted = [
        (report.num_sequences, "sequence", "s"),
        (report.num_tokens_dropped, "token", "s lost"),
        (report.num_padding_tokens, "place", "s of padding"),
        (report.num_inserted_ends, "end token", "s inserted"),
        (report.num_tokens_repeated, "token", "s twice"),
        (report.num_documents_cut, "document", "s cut"),
    ]
    words = [f"{number} {noun}{ending[number == 1 :]}" for number, noun, ending in counted if number]
    topics = f"{report.clusters_per_sequence:.1f} topics a sequence"
    return " · ".join([*words, topics])


def draw_documents() -> str:
    """Draw the documents one by one, and the meaning of the marks."""
    parts, x, y = [], float(LEFT), float(TOP)
    for document, length in enumerate(LENGTHS.tolist()):
        if x + TOKEN * length > WIDTH - LEFT:
            x, y = float(LEFT), y + LINE
        one = jd.pack(LENGTHS, length, document_order=[document]).segments
        parts += _segment(one, 0, x, y, False)
        x += TOKEN * length + 8
    y += LINE + 8
    marks = [
        ("end", "end token"),
        ("inserted", "end token inserted"),
        ("cut", "cut: goes on elsewhere"),
        ("padding", "padding"),
        ("shared", "the last token before, again"),
    ]
    x = float(LEFT)
    for kind, words in marks:
        if kind == "inserted":
            parts.append(circle("inserted", x + 6, y - 4, 3.2))
        elif kind == "cut":
            parts.append(line("cut", x + 6, y - 13, x + 6, y + 5))
        else:
            parts += [rect("d2", x, y - 10, 12, 12)] if kind in ("end", "shared") else []
            parts.append(rect(f"{kind} frame" if kind == "padding" else kind, x, y - 10, 12, 12))
        parts.append(text(x + 18, y, words, "quiet"))
        x += 36 + 6.2 * len(words)
    topics = "blue, orange and green: three topics"
    return _framed("documents", parts, f"{len(LENGTHS)} documents of {LENGTHS.sum()} tokens; {topics}", y + 4)


def _framed(name: str, parts: list[str], words: str, bottom: float) -> str:
    title = f"Packing: {name.replace('-', ' ')}. {words}"
    return framed(
        title,
        [HATCH, *parts, text(LEFT, bottom + 24, words, "quiet")],
        WIDTH,
        round(bottom + 38),
        style=STYLE,
        dark=DARK,
    )


def all_pictures() -> dict[str, str]:
    """File name -> SVG."""
    drawn = {f"packing-{picture.name}.svg": draw(picture) for picture in PICTURES}
    return {"packing-documents.svg": draw_documents(), **drawn}


def main() -> None:
    """Draw all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=FOLDER)
    arguments = parser.parse_args()
    for name, picture in all_pictures().items():
        (arguments.out / name).write_text(picture, encoding="utf-8")
        print(arguments.out / name)


if __name__ == "__main__":
    main()
