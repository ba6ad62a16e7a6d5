"""Attacks: what tests check one by one, and what the benchmark of reliability draws from.

Every entry of the tables is an input and the pattern of the sentence that refuses it.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jax_diversity.foundation.artifacts import signed

ACTING = "\x1b]0;title\x07\x1b[2J\x9b31m\x7f\u202e\u2066\u200f\r\b\t\u2028"
NO_UTF8 = os.fsdecode(b"\xff\xfe caf\xe9")
LONG = "n" * 300
BOMB = "a: &a [x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in itertools.pairwise("abcdefghi")
)

# Files of settings.
SETTINGS = {
    "the same key twice": ("out: a\nout: b\n", "line 2, column 1 has 'out' again"),
    "the same key twice below": ("packing: {method: pad, method: concat}", "has 'method' again"),
    "an alias": ("packing: &a {method: pad}\ntrain: *a\n", "line 2, column 8 is an alias"),
    "a bomb of aliases": (BOMB, "line 2, column 8 is an alias"),
    "nested 5,000 deep": ("corpus: " + "[" * 5000, "is nested more than 16 levels deep"),
    "nested 5,000 deep in braces": ("{a: " * 5000, "is nested more than 16 levels deep"),
    "larger than a megabyte": (f"out: {'x' * 2**20}", "at most 1048576 bytes"),
    "a huge value": (f"out: [{'x' * 500_000}]", "Expected out to be str, found"),
    "a long name of a setting": (f"{'x' * 1000}: 1", "Unknown setting x"),
    "a huge name of a setting": (f"{'x' * 500_000}: 1", "column 500001 is not YAML"),
    "a list": ("[1, 2]", "Expected settings as names and values"),
    "a text": ("words", "Expected settings as names and values, .* found 'words'"),
    "a date without such a day": ("out: 2020-13-45", "month must be in 1..12"),
    "a number that is none": ("out: !!int many", "expected YAML with values that exist"),
    "a truth that is none": ("out: !!bool perhaps", "expected YAML with values that exist"),
    "a time that is none": ("out: !!timestamp noon", "expected YAML with values that exist"),
    "an object": ("out: !!python/object/apply:os.getcwd []", "could not determine a constructor"),
    "a control character": ("out: \x01", "special characters are not allowed"),
    "a list as a key": ("? [a]\n: 1\n", "unhashable"),
    "a decimal number of 5,000 digits": (f"packing: {{seed: {'9' * 5000}}}", "expected YAML with values that exist"),
    "a hexadecimal number of 5,000 digits": (f"packing: {{seed: 0x{'f' * 5000}}}", "at most 64 bits, found a huge int"),
    "a number beyond 64 bits": ("cluster: {options: {max_iterations: 9223372036854775808}}", "at most 64 bits"),
    "NUL in a folder's name": ('out: "a\\0b"', r"Expected out to be a text that can name a file, found 'a\\x00b'"),
    "half of a surrogate pair": ('out: "\\ud800"', "Expected out to be a text that can name a file"),
    "NUL in an ordering's name": ('orders: [{name: "a\\0b"}]', r"orders\[0\].name to be a text that can name a file"),
    "a long name of an ordering": (f"orders: [{{name: {LONG}}}]", "a plain file name of at most 200 bytes, found 'nnn"),
    "a line end in an ordering's name": ('orders: [{name: "a\\nb"}]', "a plain file name of at most 200 bytes"),
    "a long name of a family": (f"characteristics: {{families: [{LONG}]}}", "cannot be the name of a family"),
    "NUL in a family's name": ('characteristics: {families: ["a\\0"]}', "families to be a text that can name a file"),
    "bins without end": ("characteristics: {length_bins: 4611686018427387904}", "length_bins .* <= 1048576"),
    "a vocabulary of 10^11": ("tokenizer: {vocab_size: 100000000000}", "vocab_size >= 257 .* and <= 16777216"),
}

# Options on a dataset.
HUGE = str(2**63 - 1)
ON_A_DATASET = {
    "a step without a position": (["inspect", "--step", HUGE], "Expected --step of at most 72057594037927936 with"),
    "a batch without a position": (["inspect", "--batch-size", HUGE], "batch"),
    "a step with a large batch": (["inspect", "--step", str(2**62), "--batch-size", "2"], "Expected --step of at most"),
    "a negative step": (["inspect", "--step", "-1"], "step to be a whole number >= 0"),
    "as many hosts": (["inspect", "--num-hosts", HUGE, "--rank", "0"], "a number of hosts that divides"),
    "a number beyond 64 bits": (["inspect", "--step", str(2**70)], "at most 64 bits"),
    "a long name": (["order", "--name", LONG], "a plain file name of at most 200 bytes"),
    "NUL in a name": (["order", "--name", "a\0b"], "Expected name to be a text that can name a file"),
    "a long name of a folder": (["measure", "--out", LONG], "too long"),
    "a long name of an ordering": (["inspect", "--ordering", f"{LONG}.npy"], "nnn"),
    "a seed beyond 64 bits": (["order", "--name", "x", "--seed", str(2**64)], "at most 64 bits"),
    "a huge window": (["measure", "--windows", HUGE], "every window size"),
    "a huge pool": (["order", "--name", "x", "--options", "pool_size", str(2**64)], "at most 64 bits"),
}


# Datasets from elsewhere.
def sign_manifest(root: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a dataset's manifest and sign it again, as anyone can who knows how it is signed."""
    path = root / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(signed(manifest)))


def name_command(root: Path, victim: Path, *, method: str = "os:system") -> None:
    """Name a command in all settings that a manifest records, which would make the file `victim`."""
    embedding = {"method": method, "options": {"command": f"touch {victim}"}}

    def change(manifest: dict[str, Any]) -> None:
        steps = [{"step": "python", "options": {"function": method}}]
        manifest["settings"] |= {"embedding": embedding, "preparation": {"steps": steps}}
        manifest["stages"]["embed"]["config"] = {"embedding": embedding}

    sign_manifest(root, change)


LINKS = (
    *("manifest.json", "build.log", ".lock", ".partial", ".cache", "training", "report.html"),
    *("embeddings", "embeddings/extra", "embeddings/embeddings-00000.npy", "orderings", "orderings/again.npy"),
    *("documents/documents-00000.parquet", "preparation", "training/balance", ".cache/embedding.json"),
)
"""Places in a dataset's folder where a link may be planted."""


def plant_link(root: Path, name: str, place: Path) -> Path:
    """Move what has this name to a folder elsewhere, and leave a link to it; returns that folder.

    A name of nothing gets a link to a new file, or to a folder with a file if it has no ending.
    """
    elsewhere = place / "elsewhere"
    elsewhere.mkdir()
    link, target = root / name, elsewhere / "victim"
    link.parent.mkdir(parents=True, exist_ok=True)
    if link.exists():
        link.rename(target)
    elif link.suffix:
        target.write_text("mine")
    else:
        target.mkdir()
        (target / "mine.txt").write_text("mine")
        (target / "mine.0123abcd.tmp").write_text("mine")
    link.symlink_to(target)
    return elsewhere


def contents(folder: Path) -> dict[str, bytes | None]:
    """The bytes of all files below a folder, by their paths; None for folders."""
    return {str(path.relative_to(folder)): None if path.is_dir() else path.read_bytes() for path in folder.rglob("*")}


def sign_schedule(root: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a run's `schedule.json` and sign it again."""
    path = root / "schedule.json"
    plain = json.loads(path.read_text())
    change(plain)
    path.write_text(json.dumps(signed(plain)))


def _slice(**changes: Any) -> Callable[[dict[str, Any]], object]:
    return lambda plain: plain["versions"][-1]["slices"][-1].update(changes)


SCHEDULES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "a slice beyond its part": (_slice(stop=10**6), "stop of a slice of version 1 to be a whole number >= 0 and <= "),
    "part 9": (_slice(part=9), "part of a slice of version 1 to be a whole number >= 0 and <= "),
    "a negative part": (_slice(part=-1), "part of a slice of version 1 to be a whole number >= 0"),
    "start after stop": (_slice(start=9, stop=3), "stop of a slice of version 1 to be a whole number >= 9"),
    "a negative start": (_slice(start=-5), "start of a slice of version 1 to be a whole number >= 0"),
    "half a start": (_slice(start=0.5), "cannot be followed"),
    "a text as a stop": (_slice(stop="9"), "cannot be followed"),
    "a number as a mark": (_slice(skipped=2), "cannot be followed"),
    "no versions": (lambda plain: plain.update(versions=[]), "the number of versions to be a whole number >= 1"),
    "versions that are a number": (lambda plain: plain.update(versions=3), "cannot be followed"),
    "no slices": (lambda plain: plain["versions"][-1].pop("slices"), "cannot be followed"),
    "more datasets": (
        lambda plain: plain["versions"][-1].update(num_datasets=2),
        "num_datasets of version 1 to be a whole number >= 1 and <= 1",
    ),
    "no datasets": (lambda plain: plain.update(datasets=[]), "num_datasets of version 1"),
    "a path that is a list": (lambda plain: plain["datasets"][0].update(path=["x"]), "cannot be followed"),
    "other num_sequences": (
        lambda plain: plain["datasets"][0].update(num_sequences=3),
        "Expected (num_sequences|sequences in 0)",
    ),
    "another length": (lambda plain: plain["datasets"][0].update(sequence_length=3), "Expected sequence_length "),
    "huge num_positions": (
        lambda plain: plain["parts"][0].update(num_positions=2**63),
        "num_positions of part-000000.npy to be a whole number >= 0 and <= ",
    ),
    "a part elsewhere": (
        lambda plain: plain["parts"][0].update(file="../web/orderings/balance.npy"),
        "which is outside it",
    ),
    "a seed that is a text": (lambda plain: plain["versions"][-1].update(seed="x"), "cannot be followed"),
}
"""Changes of a run's schedule with one dataset, and the pattern of the sentence that refuses each."""
