"""Tables of bad inputs: options of every verb, settings files, corpora, orderings, manifests."""

from __future__ import annotations

import copy
import gzip
import io
import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.reliability.small import BUILD, ORDER, TRAIN, Place
from jax_diversity.foundation import artifacts
from tests.support.hostile import BOMB, LONG, NO_UTF8, ON_A_DATASET, SETTINGS

RED = "\x1b[31mred"
HUGE = 10**30

_NUMBERS = ("x", "", "1.5", "-1", "0", "nan", "inf", "1e400", str(2**31), str(2**63 - 1), str(2**64), str(HUGE), RED)
_TEXTS = ("", RED, LONG, "../out", "/dev/null/a", "no\nline", "\u202eevil", NO_UTF8, "no-such-name", "-1", "None")
_VERBS = ("build", "prepare", "tokenize", "embed", "cluster", "pack", "characterize", "write", "report", "order")
_BASE_OPTIONS = {"build": BUILD.options, "train": TRAIN.options}
_OTHERS = ("measure", "inspect", "export", "train", "verify")


@dataclass(frozen=True)
class Input:
    """A command line to run in a place, after `prepare` has put files there."""

    about: str
    arguments: Callable[[Place], list[str]]
    prepare: Callable[[Place], None] = field(default=lambda place: None)
    may_succeed: bool = True
    """Whether the table allows it to be valid; then it must only end without a traceback."""


def _out(verb: str, place: Place) -> list[str]:
    words = ["--out", str(place.dataset)] + ([] if verb == "inspect" else ["--quiet"])
    if verb in ("build", "prepare"):
        words += ["--corpus.paths", f"{place.corpus}/*.jsonl"]
    if verb == "export":
        words += ["--target", str(place.exported)]
    return words


def option_inputs() -> Iterator[Input]:
    """Every option of every verb with invalid values."""
    from jax_diversity.cli.main import all_verbs
    from jax_diversity.cli.parsing import list_options

    for verb, about in all_verbs().items():
        if verb not in (*_VERBS, *_OTHERS):
            continue
        for option, kind, _, _ in list_options(about.options):
            section = option.removeprefix("--").split(".")[0]
            if verb in _VERBS[1:-1] and section not in (*about.sections, "windows"):
                continue  # the other sections belong to another verb
            if verb == "build" and section in ("out", "train"):
                continue
            values = _NUMBERS if ("int" in str(kind) or "float" in str(kind)) and "str" not in str(kind) else _TEXTS
            if "dict" in str(kind):
                values = ("one", "a b c", f"{RED} 1", "dimensions x", "dimensions 0", f"dimensions {HUGE}", LONG)
            if option == "--train.num-steps":
                values = [value for value in values if not value.isdigit()]  # a run of this length is valid
            for value in values:
                yield Input(f"{verb} {option} {value!r}", _with_option(verb, option, value))


def _with_option(verb: str, option: str, value: str) -> Callable[[Place], list[str]]:
    return lambda place: [verb, *_out(verb, place), *_BASE_OPTIONS.get(verb, ()), option, *_words(value)]


def _words(value: str) -> list[str]:
    return value.split(" ") if value else [""]


def _line_inputs() -> Iterator[Input]:
    """Command lines that are invalid as a whole."""
    for words in (
        ["nothing"],
        ["--out"],
        ["build", "--out"],
        ["build", "extra"],
        ["buidl"],
        [RED],
        [NO_UTF8],
        [LONG],
        ["verify", "--out", "/nowhere/at/all"],
        ["verify", "--out", ""],
        ["verify", "--out", "/dev/null"],
        ["verify", "--out", NO_UTF8],
        ["verify", "--out", LONG],
        ["verify", "--out", RED],
        ["measure", "--out", "s4://bucket/out"],
        ["measure", "--out", "://"],
        ["measure", "--out", "file://"],
        ["build", "--config"],
        ["build", "--config", "/nowhere.yaml"],
        ["build", "--config", "/"],
        ["build", "--config", LONG],
        ["build", "--config", NO_UTF8],
        ["build", "--quiet", "--quiet", "--nothing"],
        ["build", "-x"],
        ["build", "--=1"],
        ["build", "--"],
        ["build", "---"],
        ["inspect", "--", "--out"],
        ["", ""],
    ):
        yield Input(f"line {words!r}", lambda place, words=words: list(words), may_succeed=False)
    for about, (words, _) in ON_A_DATASET.items():
        yield Input(f"line: {about}", _on_the_dataset(*words), may_succeed=False)
    for verb in (*_VERBS[2:], *_OTHERS):
        for name, target in (("a missing folder", "nowhere"), ("an empty folder", "empty"), ("a file", "file")):
            yield Input(f"{verb} on {name}", _on(verb, target), _empty, may_succeed=False)


def _on_the_dataset(verb: str, *given: str) -> Callable[[Place], list[str]]:
    return lambda place: [verb, *([] if "--out" in given else ["--out", str(place.dataset)]), *given]


def _on(verb: str, target: str) -> Callable[[Place], list[str]]:
    return lambda place: [verb, "--out", str(place.root / "beside" / target)]


def _empty(place: Place) -> None:
    (place.root / "beside" / "empty").mkdir(parents=True, exist_ok=True)
    (place.root / "beside" / "file").write_text("no dataset")


def _bombs() -> dict[str, bytes]:
    return {name: text.encode() for name, (text, _) in SETTINGS.items()} | {
        "bytes that are not text": b"\xff\xfe\x00\x01",
        "NUL": b"out: 'a\x00b'\n",
        "escapes in a key": f'"{RED}": 1\n'.replace("\x1b", "\\e").encode(),
        "escapes in a value": f'out: "{RED}"\n'.replace("\x1b", "\\e").encode(),
        "escapes in an option's name": b'packing: {options: {"\\e[31mred": 1}}\n',
        "raw escapes": f"{RED}: 1\n".encode(),
        "blocks nested 900 deep": b"".join(b" " * depth + b"a:\n" for depth in range(900)),
        "aliases as a value": (BOMB + "windows: *i\n").encode(),
        "aliases as a text": (BOMB + "out: *i\n").encode(),
        "a map of itself": b"packing: &a {options: *a}\n",
        "an unknown tag": b"out: !thing x\n",
        "a number": b"5\n",
        "tabs": b"packing:\n\tsequence_length: 8\n",
        "an open bracket": b"windows: [1, 2\n",
        "two documents": b"out: a\n---\nout: b\n",
        "a key that is a list": b"? [1, 2]\n: 3\n",
        "a key that is a map": b"? {a: 1}\n: 3\n",
        "a key that is null": b"~: 1\n",
        "a key that is a number": b"7: 1\n",
        "a date": b"out: 2020-01-01\n",
        "a set": b"windows: !!set {8, 32}\n",
        "bytes": b"out: !!binary aGVsbG8=\n",
        "bad bytes": b"out: !!binary '%%%'\n",
        "a sexagesimal number": b"packing: {sequence_length: 1:30}\n",
        "a merge key": b"<<: 5\n",
        "nothing but a comment": b"# nothing\n",
    }


_PLAIN_VALUES = (
    "[]",
    "{}",
    "~",
    "true",
    "text",
    "-1",
    "1.5",
    ".nan",
    ".inf",
    "1e400",
    str(HUGE),
    "2020-01-01",
    "[[1]]",
)
_SETTINGS = (
    *("corpus.paths", "corpus.format", "corpus.max_bytes", "corpus.strict", "tokenizer.vocab_size", "tokenizer.kind"),
    *("embedding.method", "embedding.options", "embedding.seed", "cluster.num_clusters", "cluster.also"),
    *("packing.options", "packing.sequence_length", "packing.validation_fraction", "characteristics.families"),
    *("orders", "orders.0", "records.layout", "windows", "train", "train.learning_rate", "out", "packing", "corpus"),
)


def settings_inputs() -> Iterator[Input]:
    """Settings files."""
    for about, content in _bombs().items():
        yield _config(f"settings: {about}", content)
    for name in _SETTINGS:
        for value in _PLAIN_VALUES:
            parts = name.split(".")
            text = "".join(f"{'  ' * depth}{part}:\n" for depth, part in enumerate(parts)).rstrip() + f" {value}\n"
            yield _config(f"settings: {name}: {value}", text.encode())


def _config(about: str, content: bytes) -> Input:
    def prepare(place: Place) -> None:
        (place.root / "beside").mkdir(exist_ok=True)
        (place.root / "beside" / "settings.yaml").write_bytes(content)

    def arguments(place: Place) -> list[str]:
        paths = [] if b"paths" in content else ["--corpus.paths", f"{place.corpus}/*.jsonl"]
        out = [] if content.startswith(b"out") else ["--out", str(place.root / "new")]
        return ["prepare", "--config", str(place.root / "beside" / "settings.yaml"), "--quiet", *paths, *out]

    return Input(about, arguments, prepare)


def _documents(**change: Any) -> bytes:
    rows = [{"id": f"d{index}", "text": "word " * 30, "source": "s", "n": 1} for index in range(20)]
    rows[7] |= change
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def _corpora() -> dict[str, tuple[str, bytes]]:
    good = _documents()
    line = good.split(b"\n")[0]

    def around(broken: bytes, name: str = "part.jsonl") -> tuple[str, bytes]:
        return name, good + broken + b"\n"

    deep = b'{"id": "deep", "text": "t", "m": ' + b'{"a": ' * 900 + b"1" + b"}" * 901
    values: dict[str, Any] = {
        "a number": 5, "null": None, "a list": ["a"], "a map": {"a": 1}, "empty": "", "white": " \n\t ", "red": RED,
        "NUL": "a\0b", "a surrogate": "\ud800", "long": "w" * 10**6, "controls": "".join(map(chr, range(32))),
        "bidirectional": "\u202eabc", "true": True, "huge": HUGE, "an emoji": "\U0001f600" * 50,
    }  # fmt: skip
    corpora = {
        f"{name} that is {about}": ("part.jsonl", _documents(**{name: value}))
        for name in ("text", "id", "source", "language", "title", "n")
        for about, value in values.items()
    }
    keys = {
        "red": RED,
        "empty": "",
        "NUL": "a\0b",
        "long": LONG,
        "a slash": "a/b",
        "dots": "..",
        "a surrogate": "\udc80",
    }
    corpora |= {f"a field named {about}": ("part.jsonl", _documents(**{key: 1})) for about, key in keys.items()}
    parquet_files = {
        "no text": {"id": ["a"]},
        "text of numbers": {"id": ["a"], "text": [1]},
        "null text": {"id": ["a", "b"], "text": [None, "t"]},
        "nested fields": {"id": ["a"], "text": ["t"], "m": [{"a": [{"b": 1}]}]},
        "binary text": {"id": ["a"], "text": [b"\xff\xfe"]},
        "numbers as ids": {"id": [1, 2], "text": ["t", "u"]},
        "a red field": {"id": ["a"], "text": ["t"], RED: [1]},
        "no rows": {"id": [], "text": []},
    }
    corpora |= {f"Parquet with {about}": ("part.parquet", _parquet(rows)) for about, rows in parquet_files.items()}
    whole = _parquet({"id": ["a"] * 50, "text": ["t" * 100] * 50})
    return corpora | {
        "bytes that are no UTF-8": around(b'{"id": "x", "text": "\xff\xfe"}'),
        "half a line": around(line[:20]),
        "an array as a line": around(b"[1, 2]"),
        "a number as a line": around(b"5"),
        "NaN": around(b'{"id": "x", "text": "t", "n": NaN}'),
        "1e400": around(b'{"id": "x", "text": "t", "n": 1e400}'),
        "5,000 digits": around(b'{"id": "x", "text": "t", "n": ' + b"9" * 5000 + b"}"),
        "a number of 10^30": around(b'{"id": "x", "text": "t", "n": %d}' % HUGE),
        "duplicate keys": around(b'{"id": "x", "text": "t", "text": "u"}'),
        "duplicate ids": around(line),
        "lists nested 100,000 deep": around(b"[" * 100_000),
        "metadata nested 900 deep": around(deep),
        "metadata nested 90 deep": around(deep.replace(b'{"a": ' * 810, b"").replace(b"}" * 811, b"}")),
        "NUL bytes": around(b"\0" * 100),
        "a byte order mark": ("part.jsonl", b"\xef\xbb\xbf" + good),
        "UTF-16": ("part.jsonl", good.decode().encode("utf-16")),
        "CRLF": ("part.jsonl", good.replace(b"\n", b"\r\n")),
        "CR alone": ("part.jsonl", good.replace(b"\n", b"\r")),
        "nothing": ("part.jsonl", b""),
        "blank lines": ("part.jsonl", b"\n \n\t\n"),
        "one document": ("part.jsonl", line),
        "gzip that is cut": ("part.jsonl.gz", gzip.compress(good * 100)[:-30]),
        "gzip that is none": ("part.jsonl.gz", good),
        "gzip with a byte changed": ("part.jsonl.gz", _changed(gzip.compress(good * 100))),
        "zstd that is none": ("part.jsonl.zst", good),
        "Parquet that is none": ("part.parquet", good),
        "Parquet that is cut": ("part.parquet", whole[: len(whole) // 2]),
        "Parquet with a byte changed": ("part.parquet", _changed(whole)),
        "Parquet that is empty": ("part.parquet", b""),
        "a picture as text": ("part.txt", b"\x89PNG\r\n\x1a\n" + bytes(range(256))),
        "an unknown ending": ("part.xyz", good),
        "no ending": ("part", good),
        "an index that is none": ("part.idx", b"MMIDIDX\0\0" + bytes(50)),
        "records that are none": ("part.array_record", good),
        "a name that is no UTF-8": (NO_UTF8 + ".jsonl", good),
        "a red name": (RED + ".jsonl", good),
        "a name with a line end": ("two\nlines.jsonl", good),
        "a red name of a broken file": (RED + ".parquet", good),
        "a name with brackets": ("[a].jsonl", good),
    }


def _changed(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 255]) + content[middle + 1 :]


def _parquet(columns: dict[str, list[Any]]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


def corpus_inputs() -> Iterator[Input]:
    """Corpora, each prepared with and without `strict`, and built if it is valid."""
    corpora = _corpora()
    for about, (name, content) in corpora.items():
        for verb, extra in (("build", ()), ("prepare", ("--corpus.strict",))):
            yield _corpus(f"corpus: {about}, {verb}", verb, name, content, extra)
    for kind in ("megatron", "tokens"):
        for about in ("an index that is none", "records that are none", "half a line", "Parquet that is none"):
            name, content = corpora[about]
            extra = ("--corpus.format", kind, "--tokenizer.kind", "stored", "--tokenizer.end-id", "1")
            yield _corpus(f"corpus: {about} as {kind}", "build", name, content, extra)
    for about, make in (("folder", Path.mkdir), ("pipe", os.mkfifo), ("dangling link", _dangling), ("loop", _loop)):
        yield _corpus(f"corpus: a {about}", "prepare", "part.jsonl", None, (), make)


def _dangling(path: Path) -> None:
    path.symlink_to(path.parent / "nowhere")


def _loop(path: Path) -> None:
    path.symlink_to(path)


def _corpus(
    about: str,
    verb: str,
    name: str,
    content: bytes | None,
    extra: tuple[str, ...],
    make: Callable[[Path], None] | None = None,
) -> Input:
    def prepare(place: Place) -> None:
        folder = place.root / "beside" / "texts"
        folder.mkdir(parents=True)
        if make is not None:
            make(folder / name)
        elif content is not None:
            (folder / name).write_bytes(content)

    def arguments(place: Place) -> list[str]:
        paths = ["--corpus.paths", f"{place.root}/beside/texts/*"]
        options = BUILD.options if verb == "build" else ()
        return [verb, "--out", str(place.root / "new"), "--quiet", *options, *paths, *extra]

    return Input(about, arguments, prepare)


def _npy(array: Any, **options: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, **options)
    return buffer.getvalue()


def ordering_inputs() -> Iterator[Input]:
    """Orderings in files, given to every verb that takes one."""
    whole = np.arange(400)
    files = {
        "text": b"1\n2\n3\n",
        "nothing": b"",
        "a cut header": _npy(whole)[:40],
        "a cut array": _npy(whole)[:-8],
        "numbers with fractions": _npy(whole / 2),
        "two dimensions": _npy(whole.reshape(2, -1)),
        "objects": _npy(whole.astype(object), allow_pickle=True),
        "texts": _npy(whole.astype(str)),
        "too few": _npy(whole[:10]),
        "repeats": _npy(np.zeros_like(whole)),
        "negative": _npy(whole - 1),
        "beyond the end": _npy(whole + 1),
        "unsigned": _npy(whole.astype(np.uint64)),
        "other bytes first": _npy(whole.astype(">i8")),
        "an archive": _archive(),
        "a header of nonsense": b"\x93NUMPY\x01\x00\x10\x00{'descr': (((}}}",
        "a header of 4 GB": b"\x93NUMPY\x02\x00\xff\xff\xff\xff{",
        "a scalar": _npy(np.int64(3)),
        "truth values": _npy(whole > 5),
        "no numbers": _npy(np.zeros(0, np.int64)),
    }
    verbs = (("measure", "--order"), ("inspect", "--ordering"), ("export", "--ordering"), ("measure", "--orderings"))
    for verb, option in (*verbs, ("train", "--train.ordering")):
        for about, content in files.items():
            yield Input(f"{verb} {option}: {about}", _with_file(verb, option, "mine.npy"), _file("mine.npy", content))
        for name in ("nowhere.npy", f"{RED}.npy", f"{LONG}.npy", NO_UTF8 + ".npy", "..", "/", "", RED):
            yield Input(f"{verb} {option} {name!r}", _with_name(verb, option, name), may_succeed=False)


def _archive() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, np.arange(400))
    return buffer.getvalue()


def _file(name: str, content: bytes) -> Callable[[Place], None]:
    def prepare(place: Place) -> None:
        (place.root / "beside").mkdir(exist_ok=True)
        (place.root / "beside" / name).write_bytes(content)

    return prepare


def _with_file(verb: str, option: str, name: str) -> Callable[[Place], list[str]]:
    return lambda place: [verb, *_out(verb, place), option, str(place.root / "beside" / name)]


def _with_name(verb: str, option: str, name: str) -> Callable[[Place], list[str]]:
    return lambda place: [verb, *_out(verb, place), option, name]


def manifest_inputs() -> Iterator[Input]:
    """Manifests from other sources, for verbs that read, write and delete."""
    for about, change in _MANIFEST_CHANGES.items():
        for verb, options in (
            ("verify", ()),
            ("inspect", ()),
            ("prepare", ()),
            ("order", ORDER.options),
            ("report", ()),
        ):
            yield Input(f"manifest: {about}, {verb}", _plain(verb, options), _rewritten(change))


def _plain(verb: str, options: tuple[str, ...]) -> Callable[[Place], list[str]]:
    return lambda place: [verb, *_out(verb, place), *options]


def _rewritten(change: Callable[[dict[str, Any]], Any]) -> Callable[[Place], None]:
    def prepare(place: Place) -> None:
        (place.root / "beside").mkdir(exist_ok=True)
        (place.root / "beside" / "victim.txt").write_text("kept")
        path = place.dataset / "manifest.json"
        manifest = json.loads(path.read_text())
        victim = str(place.root / "beside" / "victim.txt")
        changed = change(copy.deepcopy(manifest))
        text = changed if isinstance(changed, str) else json.dumps(changed)
        text = text.replace(_VICTIM, victim)
        with suppress(ValueError, RecursionError, AttributeError):  # only a mapping can have a hash
            text = json.dumps(artifacts.signed(json.loads(text)))  # so that it is not damaged, but made on purpose
        path.write_text(text)

    return prepare


def _with(*keys: Any, value: Any) -> Callable[[dict[str, Any]], Any]:
    def change(manifest: dict[str, Any]) -> Any:
        inner: Any = manifest
        for key in keys[:-1]:
            inner = inner[key]
        inner[keys[-1]] = value
        return manifest

    return change


def _with_names(rename: Callable[[str], str]) -> Callable[[dict[str, Any]], Any]:
    def change(manifest: dict[str, Any]) -> Any:
        for entry in manifest["stages"].values():
            first = next(iter(entry["files"]))
            entry["files"] = {rename(name) if name == first else name: about for name, about in entry["files"].items()}
            entry["fingerprint"] = "0" * 64
        return manifest

    return change


_VICTIM = "/path-of-the-victim"
"""A placeholder for the absolute path of a file outside the dataset, which must not be removed."""
_MANIFEST_CHANGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a file above": _with_names(lambda name: "../beside/victim.txt"),
    "an absolute file": _with_names(lambda name: _VICTIM),
    "a red file": _with_names(lambda name: f"{RED}.bin"),
    "a file with NUL": _with_names(lambda name: "a\0b"),
    "a long file": _with_names(lambda name: LONG),
    "an empty file": _with_names(lambda name: ""),
    "a lone surrogate": _with_names(lambda name: "\ud800"),
    "no JSON": lambda manifest: "{",
    "nothing": lambda manifest: "",
    "a list": lambda manifest: "[]",
    "null": lambda manifest: "null",
    "nested 100,000 deep": lambda manifest: "[" * 100_000,
    "a huge version": _with("format_version", value=HUGE),
    "a version of text": _with("format_version", value=RED),
    "an infinite version": lambda manifest: '{"format_version": 1e999, "stages": {}}',
    "5,000 digits": lambda manifest: '{"format_version": ' + "9" * 5000 + ', "stages": {}}',
    "stages in a list": _with("stages", value=[]),
    "a stage that is null": _with("stages", "pack", value=None),
    "a red stage": _with("stages", RED, value={"fingerprint": "0", "inputs": {}, "counts": {}, "files": {}}),
    "files in a list": _with("stages", "pack", "files", value=[]),
    "no counts": _with("stages", "pack", "counts", value={}),
    "counts of text": _with("stages", "pack", "counts", value={"num_sequences": "many", "sequence_length": RED}),
    "huge counts": _with("stages", "pack", "counts", "num_sequences", value=HUGE),
    "negative counts": _with("stages", "pack", "counts", "num_sequences", value=-1),
    "a fraction of sequences": _with("stages", "pack", "counts", "num_sequences", value=400.5),
    "a sequence length of 0": _with("stages", "pack", "counts", "sequence_length", value=0),
    "a huge vocabulary": _with("stages", "tokenize", "counts", "vocab_size", value=HUGE),
    "no settings": _with("settings", value=None),
    "settings of text": _with("settings", value=RED),
    "a red setting": _with("settings", "packing", value={RED: 1}),
    "a huge setting": _with("settings", "packing", "sequence_length", value=HUGE),
    "no documents": _with("stages", "prepare", "counts", "num_documents", value=0),
    "negative bytes": _with(
        "stages", "pack", "files", value={"sequences/segments.parquet": {"bytes": -1, "sha256": ""}}
    ),
    "inputs of text": _with("stages", "pack", "inputs", value=RED),
    "families of numbers": _with("stages", "characterize", "counts", "families", value=[1, None]),
}


def all_inputs() -> dict[str, list[Input]]:
    """Every table by its name."""
    return {
        "options": list(option_inputs()),
        "lines": list(_line_inputs()),
        "settings": list(settings_inputs()),
        "corpora": list(corpus_inputs()),
        "orderings": list(ordering_inputs()),
        "manifests": list(manifest_inputs()),
    }
