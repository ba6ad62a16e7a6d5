"""Draw a run's values as one HTML page without a script: its figures are SVG, with a table under each."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from jax_diversity.foundation import artifacts

_STYLE = """
svg.plot { width: 100%; height: auto; display: block; font: 12px var(--sans); }
svg.plot text { fill: var(--soft); } svg.plot .axis { stroke: var(--line); }
svg.plot .mark { stroke: var(--ink); stroke-dasharray: 4 3; }
svg.plot .d0 { fill: light-dark(#4a90d0, #2f74bd); } svg.plot .d1 { fill: light-dark(#e08a35, #b0652a); }
svg.plot .d2 { fill: light-dark(#48a868, #2c8745); } svg.plot .d3 { fill: light-dark(#a877d0, #7d50a8); }
svg.plot .d4 { fill: light-dark(#c9a528, #a1842a); } svg.plot .d5 { fill: light-dark(#7f8b97, #5c6773); }
svg.plot .later { opacity: 0.55; }
svg.plot polyline { fill: none; stroke-width: 2; stroke-linejoin: round; stroke: var(--accent); }
svg.plot polyline.shuffle { stroke: light-dark(#a0a7ae, #6b747e); stroke-width: 1.4; }
.lead + .scroll { margin-top: 1rem; }
td.num { text-align: right; font-variant-numeric: tabular-nums; }
"""
_COLOURS = 6
_WIDTH, _LEFT, _RIGHT, _TOP, _HEIGHT = 900, 52, 890, 14, 230
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


def render_run(values: Mapping[str, Any]) -> str:
    """The page for the values of `run_values`: one HTML document, the same for the same values."""
    title = escape(values["title"])
    style = (files("jax_diversity.report") / "page.css").read_text(encoding="utf-8")
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">\n<meta name="referrer" content="no-referrer">',
            f'<title>{title} · jax-diversity run</title>\n<link rel="icon" href="data:,">',
            f"<style>{style}{_STYLE}</style>\n</head>\n<body>",
            f'<main id="top"><section class="hero"><p class="eyebrow">Run report, version {values["version"]}</p>'
            f'<h1 id="title" dir="auto">{title}</h1>{_sentence(values)}</section>',
            _section("What is read", _datasets(values), _reading(values)),
            _section("Is every stretch balanced?", *_balance(values)),
            _section("Versions", _versions(values)),
            "</main><footer>Made by jax-diversity. This page needs no network; its values are also in "
            "<code>report.json</code>.</footer>\n</body>\n</html>\n",
        ]
    )


def write_run_report(folder: Path, values: Mapping[str, Any]) -> None:
    """Write values as `report.json` and, drawn, as `report.html`, each atomically; the folder is made."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(values, allow_nan=False, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    artifacts.write_text(folder / "report.json", text + "\n")
    artifacts.write_text(folder / "report.html", render_run(values))


def _section(title: str, *parts: str) -> str:
    return f"<section><h2>{title}</h2>{''.join(parts)}</section>"


def _sentence(values: Mapping[str, Any]) -> str:
    number = len(values["datasets"])
    places = sum(each["positions"] * each["sequence_length"] for each in values["datasets"])
    return (
        f'<div id="sentences"><p>{values["num_positions"]:,} sequences ({places:,} tokens, padding included) from '
        f"{number} dataset{'s' if number > 1 else ''}, in the order in which training reads them.</p></div>"
    )


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 1) -> str:
    """A table whose first `texts` columns are text, the others numbers."""

    def cells(kind: str, row: Sequence[str]) -> str:
        classes = [' class="num"' if place >= texts else "" for place in range(len(row))]
        return "".join(f"<{kind}{of}>{escape(cell)}</{kind}>" for cell, of in zip(row, classes, strict=True))

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f"<table><thead><tr>{cells('th', columns)}</tr></thead><tbody>{body}</tbody></table>"


def _scroll(table: str, label: str) -> str:
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{label}">{table}</div>'


def _in_numbers(table: str) -> str:
    return f'<details><summary>In numbers</summary><div class="scroll numbers">{table}</div></details>'


def _datasets(values: Mapping[str, Any]) -> str:
    rows = [
        [
            each["path"],
            f"{each['num_sequences']:,}",
            f"{each['sequence_length']:,}",
            f"{each['positions']:,}",
            _percent(each["share"]),
            f"{each['epochs']:.2f}",
        ]
        for each in values["datasets"]
    ]
    columns = ["Dataset", "Sequences", "Their length", "Positions", "Share", "Epochs"]
    return _scroll(_table(columns, rows), "Datasets of the run")


def _versions(values: Mapping[str, Any]) -> str:
    rows = [
        [str(each["version"]), each["change"], _known(each["changed_at"], "{:,}"), f"{each['positions']:,}"]
        for each in values["versions"]
    ]
    table = _table(["Version", "Change", "First new position", "Positions"], rows, texts=2)
    return _scroll(table, "Versions of the schedule")


def _reading(values: Mapping[str, Any]) -> str:
    """Every stretch as a column, divided by dataset and epoch."""
    total, datasets = values["num_positions"], values["datasets"]
    shapes = []
    for each in values["stretches"]:
        x, end, y = _x(each["start"], total), _x(each["stop"], total), float(_TOP)
        for part in each["parts"]:
            height = part["share"] * (_HEIGHT - _TOP)
            later = " later" if part["epoch"] % 2 else ""
            words = (
                f"positions {each['start']:,} to {each['stop']:,}: {_percent(part['share'])} from "
                f"{datasets[part['dataset']]['path']}, epoch {part['epoch']}"
            )
            shapes.append(
                f'<rect class="d{part["dataset"] % _COLOURS}{later}" x="{x:.1f}" y="{y:.1f}" '
                f'width="{max(end - x - 0.8, 0.4):.1f}" height="{height:.1f}"><title>{escape(words)}</title></rect>'
            )
            y += height
    shapes += _marks(values)
    for place, each in enumerate(datasets):
        y = _HEIGHT + 42 + 20 * place
        shapes.append(f'<rect class="d{place % _COLOURS}" x="{_LEFT}" y="{y}" width="12" height="12"/>')
        shapes.append(_text(_LEFT + 20, y + 11, each["path"]))
    shares = "".join(shapes) + _axis(total) + _text(_LEFT - 8, _TOP + 8, "100 %", "end")
    rows = [
        [
            f"{each['start']:,} to {each['stop']:,}",
            datasets[part["dataset"]]["path"],
            str(part["epoch"]),
            _percent(part["share"]),
        ]
        for each in values["stretches"]
        for part in each["parts"]
    ]
    drawn = _svg("Which dataset and which epoch every stretch of the run reads", shares, 40 + 20 * len(datasets))
    return (
        f"<figure><h3>What every stretch of the run reads</h3>{drawn}<figcaption>A column is a stretch of positions, "
        "divided by dataset; a fainter colour is every second epoch of a dataset. Dashed lines: here the schedule was "
        "changed.</figcaption>"
        f"{_in_numbers(_table(['Positions', 'Dataset', 'Epoch', 'Share'], rows, texts=2))}</figure>"
    )


def _marks(values: Mapping[str, Any]) -> Iterator[str]:
    """Where the schedule was changed."""
    for each in values["changes"]:
        x = _x(each["position"], values["num_positions"])
        words = f"version {each['version']}: from position {each['position']:,} on"
        line = f'x1="{x:.1f}" y1="{_TOP - 8}" x2="{x:.1f}" y2="{_HEIGHT}"'
        yield f'<line class="mark" {line}><title>{words}</title></line>'


def _balance(values: Mapping[str, Any]) -> Iterator[str]:
    yield (
        '<p class="lead">A window is so many neighbouring positions. Its deviation (TV) is the share of its tokens '
        "that would have to change their group to have the mixture that the run is measured against: its own, or, of "
        "one dataset, that dataset's. Groups of one name are one group in all datasets.</p>"
    )
    rows = [
        [
            each["family"],
            each["order"],
            f"{each['window_size']:,}",
            *(_known(each[name], "{:.4f}") for name in ("mean", "worst", "floor")),
            _known(each["gap_closed"], "{:.1%}"),
        ]
        for each in sorted(values["measures"], key=lambda row: (row["family"], row["window_size"]))
    ]
    columns = ["Family", "Order", "Window", "Mean TV", "Worst", "Floor", "Gap closed"]
    yield _scroll(_table(columns, rows, texts=2), "Measures of the run")
    for family in dict.fromkeys(each["family"] for each in values["curves"]):
        sizes = sorted({each["window_size"] for each in values["curves"] if each["family"] == family})
        size = sizes[len(sizes) // 2]
        shown = [each for each in values["curves"] if (each["family"], each["window_size"]) == (family, size)]
        yield _deviation(values, family, size, shown)
    if values["repeats"]:
        rows = [
            [each["order"], f"{each['window_size']:,}", f"{each['mean']:.2f}", f"{each['floor']:.2f}"]
            for each in sorted(values["repeats"], key=lambda row: row["window_size"])
        ]
        yield '<h3 class="titled">Documents met again</h3>'
        yield '<p class="hint">Sequences of a window beyond the first of each document.</p>'
        yield _scroll(_table(["Order", "Window", "Repeats, mean", "Floor"], rows), "Repeats of documents")


def _deviation(values: Mapping[str, Any], family: str, size: int, shown: Sequence[Mapping[str, Any]]) -> str:
    """The windows' TV along the run: the run's curve over its shuffle's."""
    total = values["num_positions"]
    top = max((value for each in shown for value in each["curve"]["max"]), default=0.0) or 1.0
    shapes = []
    for each in shown:  # the shuffle is the first
        points = zip(each["curve"]["position"], each["curve"]["max"], strict=True)
        # A curve's position is a window's end; a shuffle of one epoch ends before a run of several.
        places = [(_x(min(at, total), total), _y(value / top)) for at, value in points]
        kind = ' class="shuffle"' if each is shown[0] else ""
        shapes.append(f'<polyline{kind} points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in places)}"/>')
    words = f"{family}: TV of windows of {size:,}"
    ticks = _text(_LEFT - 8, _TOP + 8, f"{top:.3f}", "end") + _text(_LEFT - 8, _HEIGHT, "0", "end")
    rows = [
        [each["order"], f"{at:,.0f}", f"{mean:.4f}", f"{worst:.4f}"]
        for each in shown
        for at, mean, worst in zip(*(each["curve"][name] for name in ("position", "mean", "max")), strict=True)
    ]
    table = _table(["Order", "Up to position", "Mean TV", "Worst"], rows)
    return (
        f"<figure><h3>{escape(words)}</h3>{_svg(words, ''.join([*shapes, *_marks(values)]) + _axis(total) + ticks, 24)}"
        "<figcaption>The worst window of neighbouring ones; grey is the shuffle. Low and flat is good.</figcaption>"
        f"{_in_numbers(table)}</figure>"
    )


def _axis(total: int) -> str:
    line = f'<line class="axis" x1="{_LEFT}" y1="{_HEIGHT}" x2="{_RIGHT}" y2="{_HEIGHT}"/>'
    ends = _text(_LEFT, _HEIGHT + 18, "0") + _text(_RIGHT, _HEIGHT + 18, f"{total:,}", "end")
    return line + ends + _text((_LEFT + _RIGHT) / 2, _HEIGHT + 18, "position", "middle")


def _svg(label: str, content: str, below: int) -> str:
    box = f"0 0 {_WIDTH} {_HEIGHT + below}"
    return f'<svg class="plot" viewBox="{box}" role="img" aria-label="{escape(label)}">{content}</svg>'


def _text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _x(position: float, total: int) -> float:
    return _LEFT + (_RIGHT - _LEFT) * position / total


def _y(part: float) -> float:
    return _HEIGHT - (_HEIGHT - _TOP) * part


def _known(value: float | None, form: str) -> str:
    """A number; a dash where there is none."""
    return "-" if value is None else form.format(value)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
