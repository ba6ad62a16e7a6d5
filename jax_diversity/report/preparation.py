"""Compute the values of preparation: documents left after each step, and removed by each rule, with examples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from jax_diversity.foundation.figures.plain import clean_text, round_value
from jax_diversity.schema.prepared import read_preparation
from jax_diversity.streaming.dataset.dataset import Dataset

MAX_PLACES, MAX_KINDS = 30, 20  # sources and languages; kinds of finds of a step
MAX_EXAMPLES, MAX_LINES, MAX_LINE = 10, 14, 240  # documents of a rule, lines of a document, characters of a line
MAX_INDENT = 24
MAX_CHARACTERS = 150_000
"""The number of characters of all examples together; a document shows at least `LEAST_CHARACTERS`."""
MOST_CHARACTERS, LEAST_CHARACTERS = 900, 160
_FIGURES = ("documents", "words", "bytes")
_CHANGED = ("-", "+")
_BEFORE = 40  # characters of a long line shown before the first difference


def stored_preparation(dataset: Dataset) -> dict[str, Any] | None:
    """The values if the stage `prepare` of the dataset had steps; otherwise None."""
    account = read_preparation(dataset.stored, "funnel")
    return None if account is None else preparation_values(account, read_preparation(dataset.stored, "examples") or {})


def preparation_values(account: Mapping[str, Any], examples: Mapping[str, Any]) -> dict[str, Any]:
    """The content of `funnel.json` and `examples.json`, shortened and cleaned; without the files, no examples."""
    steps = [step["step"] for step in account["steps"]]
    removed, edited = examples.get("removed", {}), examples.get("edited", {})
    number = sum(min(len(examples), MAX_EXAMPLES) for part in (removed, edited) for examples in part.values())
    characters = min(max(MAX_CHARACTERS // max(number, 1), LEAST_CHARACTERS), MOST_CHARACTERS)
    rules = [
        {
            "step": clean_text(step["step"], 60),
            "rule": clean_text(rule, 60),
            "phrase": clean_text(account.get("phrases", {}).get(f"{step['step']}.{rule}", "")),
            "removed": count,
            "share": round_value(count / max(step["documents_in"], 1)),
            "examples": [_removed(row, characters) for row in removed.get(f"{step['step']}.{rule}", [])[:MAX_EXAMPLES]],
        }
        for step in account["steps"]
        for rule, count in sorted(step["removed"].items(), key=lambda pair: -pair[1])
    ]
    return {
        "read": account["read"],
        "kept": account["kept"],
        "steps": [clean_text(step, 60) for step in steps],
        "places": [
            {"kind": "all", "name": "", **_left(account["steps"])},
            *_places(account, "source", steps),
            *_places(account, "language", steps),
        ],
        "rules": rules,
        "found": [_found(step) for step in account["steps"] if step["found"]],
        "edited": [
            {
                "step": clean_text(step["step"], 60),
                "documents": step["edited"],
                "examples": [
                    shown
                    for example in edited.get(step["step"], [])[:MAX_EXAMPLES]
                    if (shown := _edited(example, characters))[
                        "lines"
                    ]  # in the other documents only spaces were edited
                ],
            }
            for step in account["steps"]
            if step["edited"]
        ],
    }


def _places(account: Mapping[str, Any], kind: str, steps: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The sources or languages (places) with the most documents; 0 if a step left no documents of a place."""
    nothing = {f"{figure}_{side}": 0 for figure in _FIGURES for side in ("in", "out")}
    # A step may detect the language of documents. A language then appears only in later steps.
    names = {name for step in steps for name in account[kind].get(step, {})}
    ways = {name: _left([account[kind].get(step, {}).get(name, nothing) for step in steps]) for name in names}
    for name in sorted(names, key=lambda name: (-max(ways[name]["documents"]), name))[:MAX_PLACES]:
        yield {"kind": kind, "name": clean_text(name, 60), **ways[name]}


def _left(accounts: Sequence[Mapping[str, Any]]) -> dict[str, list[int]]:
    """Documents, words and bytes at the beginning and after every step."""
    return {figure: [accounts[0][f"{figure}_in"], *(step[f"{figure}_out"] for step in accounts)] for figure in _FIGURES}


def _found(step: Mapping[str, Any]) -> dict[str, Any]:
    kinds = sorted(step["found"].items(), key=lambda pair: (-pair[1], pair[0]))
    return {
        "step": clean_text(step["step"], 60),
        "kinds": [{"kind": clean_text(kind, 100), "number": number} for kind, number in kinds[:MAX_KINDS]],
        "num_more": max(len(kinds) - MAX_KINDS, 0),
    }


def _about(example: Mapping[str, Any]) -> dict[str, Any]:
    return {"id": clean_text(example["id"], 200), "source": clean_text(example["source"], 60)}


def _removed(example: Mapping[str, Any], characters: int) -> dict[str, Any]:
    language = example.get("language")
    lines = [shown for line in example["text"][:4000].splitlines() if (shown := _line(line)).strip()]
    kept = _within(lines, characters)
    return {
        **_about(example),
        "language": None if language is None else clean_text(language, 40),
        "value": round_value(example["value"]),
        "threshold": round_value(example["threshold"]),
        "text": [*kept, *(["…"] if len(kept) < len(lines) else [])],
    }


def _edited(example: Mapping[str, Any], characters: int) -> dict[str, Any]:
    """The changed lines, with one line around each; `…` stands for lines that are left out."""
    lines = [
        (mark, cleaned)
        for _, run in groupby(example["lines"], key=lambda line: line[0] in _CHANGED)
        for mark, line in _differing(list(run))
        if (cleaned := _line(line)).strip()
    ]
    changed = {index for index, (mark, _) in enumerate(lines) if mark in _CHANGED}
    near = [index for index in range(len(lines)) if changed & {index - 1, index, index + 1}]
    near = near[: len(_within([lines[index][1] for index in near], characters))]
    shown: list[list[str]] = []
    for last, index in zip([-1, *near], near, strict=False):
        shown += [["…", ""]] if index > last + 1 else []
        shown.append([*lines[index]])
    shown += [["…", ""]] if near and near[-1] < len(lines) - 1 else []
    return {**_about(example), "lines": shown}


def _differing(run: Sequence[Sequence[str]]) -> Iterator[tuple[str, str]]:
    """Yield neighbouring lines with their marks; lines that differ only in spaces are unchanged.

    If the first difference is late in a long line, the beginning of the line is cut. If lines are equal after personal
    data is masked in both, the new line is shown.
    """
    gone, come = ([line for mark, line in run if mark == sign] for sign in _CHANGED)
    masked = {*gone} & {*come}
    equal = {line.strip() for line in gone} & {line.strip() for line in come} - {line.strip() for line in masked}
    starts = dict[str, int]()
    for old, new in zip(gone, come, strict=False):
        same = next((at for at, (one, other) in enumerate(zip(old, new, strict=False)) if one != other), 0)
        starts[old] = starts[new] = same - _BEFORE if same > MAX_LINE // 2 else 0
    for mark, line in run:
        if mark not in _CHANGED or (mark == "-" and line.strip() in equal):
            yield " ", line
        elif line.strip() not in equal and not (mark == "-" and line in masked):
            start = starts.get(line, 0)
            yield mark, f"…{line[start:]}" if start else line


def _line(line: str) -> str:
    """One clean line with its indentation, which matters in code and lists."""
    indent = len(line) - len(line.lstrip(" \t"))
    return "\u00a0" * min(indent, MAX_INDENT) + clean_text(line, MAX_LINE)


def _within(lines: Sequence[str], characters: int) -> Sequence[str]:
    """The first lines with at most `characters` characters in total, at least one line."""
    number, total = 0, 0
    while number < min(len(lines), MAX_LINES) and (not number or total + len(lines[number]) <= characters):
        total += len(lines[number])
        number += 1
    return lines[:number]
