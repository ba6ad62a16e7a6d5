"""Measure the removal of copies among many documents: seconds, memory, and the share of planted copies that is found.

    python benchmarks/preparation_scale.py FILES.jsonl.gz ... [--documents 500000 1000000] [--write]

Documents are made from real documents: a part of one document, then a part of another. One in ten has a copy later in
the corpus, and one in ten has a near copy with 5 % of the words edited. The stage `prepare` removes exact and near
duplicates with all cores. Seconds are wall time, with reading and storing; memory is the peak of this process
and the sum of its workers' peaks.

Recall is measured on real documents: 2,000 documents of 50 words or more get a copy with 5 % of the words edited.
`unrelated` is the number of pairs in a group that are not planted, and have less than a tenth of their runs of five
words in common.
"""

from __future__ import annotations

import argparse
import gzip
import json
import resource
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import results_file

from jax_diversity.foundation.executors import Here
from jax_diversity.foundation.text.words import split_words
from jax_diversity.pipeline.build import Build
from jax_diversity.pipeline.settings import BuildConfig, CorpusConfig, PreparationConfig
from jax_diversity.preparation.passes.chain import Chain
from jax_diversity.preparation.passes.settings import StepConfig
from jax_diversity.schema import Document

CURVES: dict[str, dict[str, Any]] = {
    "14 x 8": {},
    "28 x 4, similarity .5": {"bands": 28, "rows": 4, "similarity": 0.5},
}
PLANTED = 2000
_FILE_DOCUMENTS = 50_000


def read(paths: list[Path]) -> list[str]:
    texts = []
    for path in sorted(paths):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            texts += [json.loads(line)["text"] for line in file]
    return texts


def edited(words: list[str], rng: np.random.Generator, share: float = 0.05) -> list[str]:
    """Change a share of the words, at least one."""
    copy = words.copy()
    for place in rng.choice(len(words), max(1, round(share * len(words))), replace=False):
        copy[place] = f"edited{rng.integers(10**6)}"
    return copy


def made(texts: list[str], number: int, seed: int = 0) -> Iterator[str]:
    """Yield a number of texts; planted copies follow some thousands after their originals."""
    rng = np.random.default_rng(seed)
    words = [text.split(" ") for text in texts]
    waiting: list[str] = []
    for index in range(number):
        if index % 5 == 4 and len(waiting) > 1000:
            yield waiting.pop(int(rng.integers(len(waiting))))
            continue
        one, other = (words[int(place)] for place in rng.integers(len(words), size=2))
        cut, begin = int(rng.integers(len(one) + 1)), int(rng.integers(len(other)))
        parts = [*one[:cut], *other[begin:]]
        text = " ".join(parts)
        if index % 10 == 1:
            waiting.append(text)
        elif index % 10 == 2:
            waiting.append(" ".join(edited(parts, rng)))
        yield text


def write_corpus(folder: Path, texts: list[str], number: int) -> None:
    source = enumerate(made(texts, number))
    for start in range(0, number, _FILE_DOCUMENTS):
        with gzip.open(folder / f"made-{start // _FILE_DOCUMENTS:04d}.jsonl.gz", "wt", compresslevel=1) as file:
            for _ in range(min(_FILE_DOCUMENTS, number - start)):
                index, text = next(source)
                file.write(json.dumps({"id": f"d{index}", "text": text}) + "\n")


class Memory:
    """Watches the memory of this process and its children while a block runs."""

    def __enter__(self) -> Memory:
        self.largest = 0
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ends.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ends.wait(0.5):
            own = Path("/proc/self/task")
            children = [child for task in own.iterdir() for child in (task / "children").read_text().split()]
            self.largest = max(self.largest, sum(map(_anonymous_bytes, ["self", *children])))


def _anonymous_bytes(process: str) -> int:
    """Memory of a process without mapped files, which the system can reclaim."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:  # the process has just ended
        return 0
    return next((1024 * int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon")), 0)


def scale(texts: list[str], number: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        start = time.monotonic()
        write_corpus(Path(folder), texts, number)
        print(f"{number:,} documents made in {time.monotonic() - start:.0f} s", flush=True)
        steps = (StepConfig("exact_duplicates"), StepConfig("minhash"))
        config = BuildConfig(
            out=f"{folder}/out",
            corpus=CorpusConfig(paths=(f"{folder}/*.jsonl.gz",)),
            preparation=PreparationConfig(steps=steps),
        )
        start, processor = time.monotonic(), _processor_seconds()
        with Memory() as memory:
            counts = Build(config).run_stage("prepare").counts
        return {
            "documents": number,
            "gigabytes_of_text": round(counts["preparation"]["steps"][0]["bytes_in"] / 1e9, 2),
            "seconds": round(time.monotonic() - start, 1),
            "processor_seconds": round(_processor_seconds() - processor, 1),
            "gigabytes_of_memory": round(memory.largest / 1e9, 2),
            "removed": {each["step"]: sum(each["removed"].values()) for each in counts["preparation"]["steps"]},
        }


def _processor_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def recall(texts: list[str], options: Mapping[str, Any]) -> dict[str, Any]:
    """The share of planted near copies that are in the group of their originals."""
    rng = np.random.default_rng(1)
    candidates = [index for index, text in enumerate(texts) if len(text.split(" ")) >= 50]
    planted = rng.choice(candidates, PLANTED, replace=False)
    copies = [" ".join(edited(texts[place].split(" "), rng)) for place in planted]
    documents = [Document(str(index), text, "") for index, text in enumerate([*texts, *copies])]
    chain = Chain([("minhash", {**options, "mark": True})], Here())
    groups: dict[int, list[int]] = {}
    for document in chain.through(documents):
        if (group := document.metadata.get("minhash_group")) is not None:
            groups.setdefault(group, []).append(int(document.id))
    group_of = {index: number for number, members in groups.items() for index in members}
    found = sum(
        group_of.get(len(texts) + copy, -1) == group_of.get(int(place), -2) for copy, place in enumerate(planted)
    )
    runs = {index: _runs(documents[index].text) for members in groups.values() for index in members}
    unrelated = 0
    for members in groups.values():
        first = runs[members[0]]
        unrelated += sum(len(first & runs[other]) < 0.1 * len(first | runs[other]) for other in members[1:])
    return {"planted": PLANTED, "found": round(found / PLANTED, 4), "unrelated": unrelated}


def _runs(text: str) -> set[tuple[str, ...]]:
    words = [word for word in split_words(text.lower()) if word.isalnum()]
    return {tuple(words[place : place + 5]) for place in range(len(words) - 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--documents", nargs="*", type=int, default=[500_000, 1_000_000])
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/preparation-scale.json")
    options = parser.parse_args()
    texts = read(options.paths)
    results: dict[str, Any] = {"recall": {name: recall(texts, curve) for name, curve in CURVES.items()}}
    print(json.dumps(results), flush=True)
    results["scale"] = []
    for number in options.documents:
        results["scale"].append(scale(texts, number))
        print(json.dumps(results["scale"][-1]), flush=True)
    if options.write:
        results_file.write("preparation-scale", {"environment": results_file.environment("numpy"), **results})


if __name__ == "__main__":
    main()
