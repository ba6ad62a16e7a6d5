"""Hostile documents through every reader, every step and every recipe: none may stop, delay or leave the run.

Documents of one format are read together in a fork, and pass some chains of steps there. If anything fails, or takes
longer than such texts should, halves are tried until single documents are found. Times are those of the processor, so
that other processes do not matter.
"""

from __future__ import annotations

import json
import os
import resource
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.reliability.forks import in_fork
from benchmarks.reliability.hostile_documents import FORMATS, PLAIN, Hostile, Steps, batches, chains
from benchmarks.reliability.small import Place, remove
from benchmarks.reliability.tally import Tally
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.executors import Here
from jax_diversity.preparation.passes.chain import Chain
from jax_diversity.preparation.readers.reading import read_documents
from jax_diversity.preparation.readers.records import ReadReport
from jax_diversity.preparation.settings import CorpusConfig
from jax_diversity.schema import Document

_LIMIT, _CHARACTERS_A_LIMIT = 10, 1_000_000
"""Seconds for a document in a reader or a step, and the characters from which on it has more, in proportion."""
_MEMORY = 2**30
"""Bytes beyond those of the process before."""
_SIZE, _BATCH, _CHAINS_EACH = 60_000, 40, 5
_SLOW, _CHARACTERS_A_SECOND = 1.0, 1_000_000
"""A batch that takes longer is looked at."""
_GROWTH = 8
"""Four times the size may take so many times as long."""
_READING = "reading"

Result = dict[str, Any]


def attack(folder: Path, count: int, seed: int, dataset: Place | None = None) -> dict[str, object]:
    """`count` documents, each in one format and through some of the chains."""
    known, rng = chains(folder), np.random.default_rng(seed)
    for steps in known.values():  # loads models and libraries once, for all forks
        list(Chain(steps, Here()).through([Document("plain", PLAIN, "web", "en")] * 2))
    campaign, names = _Campaign(Tally(seed), known, folder / "texts"), list[str]()
    for name, documents, extent in batches(count, _BATCH, rng):
        if len(names) < _CHAINS_EACH:
            names += [list(known)[place] for place in rng.permutation(len(known))]
        chosen, names = names[:_CHAINS_EACH], names[_CHAINS_EACH:]
        stages = {"some": chosen, "all": list(known), "none": []}[extent]
        campaign.attack(name, documents, [_READING, *stages])
    return campaign.tally.result


class _Campaign:
    """Forks in a folder; `known` are the chains."""

    def __init__(self, tally: Tally, known: dict[str, Steps], folder: Path) -> None:
        self.tally, self._known, self._folder = tally, known, folder
        self._log = folder.with_suffix(".log")
        self._failed = defaultdict[str, set[str]](set)
        """The documents that failed, by chain, or by format in the reader: they are not tried there again."""

    def attack(self, name: str, documents: list[Hostile], stages: list[str]) -> None:
        """Read documents in a format, and let them pass the other stages; documents that fail leave the batch."""
        self.tally.begin(len(documents))
        known = {about for stage in stages for about in self._failed[self._key(name, stage)]}
        left = [document for document in documents if document.about not in known]
        self.tally.add("repeated", len(documents) - len(left))
        while stages and left:
            results, found = self._fork(name, left, stages), list[Hostile]()
            for stage, result in results.items():
                if self._is_suspect(left, result):
                    found = self._search(name, left, stage, result)
                stages.remove(stage)
                self.tally.add("passages", len(left) - len(found))
                for kind, number in result.get("counts", {}).items():
                    self.tally.add(kind, number)
                if found:  # the other documents begin the next stage anew
                    self._failed[self._key(name, stage)] |= {document.about for document in found}
                    left = [document for document in left if document not in found]
                    break
            if not results:
                self.tally.fail("stopped", format=name, said="every reading of the batch fails")
                return

    def _key(self, name: str, stage: str) -> str:
        return name if stage == _READING else stage

    def _fork(
        self, name: str, documents: Sequence[Hostile], stages: Sequence[str], size: int = _SIZE
    ) -> dict[str, Result]:
        """The results of the stages up to the first at which the fork ended."""
        remove(self._folder)
        self._folder.mkdir()
        self._log.write_text("")
        chains = {stage: self._known.get(stage, []) for stage in stages}
        texts = [each.text(size) for each in documents]
        limit = int(_most_seconds(documents)) + 1
        if len(documents) == 1:
            limit = _LIMIT * max(1, len(texts[0]) // _CHARACTERS_A_LIMIT)
        work = partial(_run, self._folder, self._log, name, texts, chains, limit)
        outcome = in_fork(work, patience=120.0 * _LIMIT)
        results: dict[str, Result] = {}
        for line in self._log.read_text().splitlines():
            results |= json.loads(line)
        for result in results.values():
            if not result:  # the last, which was begun and did not end
                is_late = outcome.status is None or outcome.status == -24
                result |= {"fault": "hangs" if is_late else "crashes", "seconds": _LIMIT, "said": outcome.said}
        return results

    def _is_suspect(self, documents: Sequence[Hostile], result: Result) -> bool:
        return "fault" in result or result["seconds"] > _most_seconds(documents)

    def _search(self, name: str, documents: Sequence[Hostile], stage: str, result: Result) -> list[Hostile]:
        """Report the documents that cause a result; returns them."""
        if len(documents) == 1:
            [document] = documents
            if "fault" not in result:
                if not document.grows:
                    return []
                small = self._fork(name, documents, [stage], _SIZE // 4)[stage]["seconds"]
                if result["seconds"] < _GROWTH * max(small, 0.05):
                    return []
                result = {"fault": "growth", "said": f"{small:.2f} s at a quarter", **result}
            about = {"format": name, "stage": stage, "seconds": round(result["seconds"], 1)}
            self.tally.fail(result["fault"], document=document.about, **about, said=result.get("said", ""))
            return [document]
        found, middle = list[Hostile](), len(documents) // 2
        for half in (documents[:middle], documents[middle:]):
            part = self._fork(name, half, [stage]).get(stage, {"fault": "stopped", "seconds": 0})
            if self._is_suspect(half, part):
                found += self._search(name, half, stage, part)
        if not found and result.get("fault", "hangs") != "hangs":
            about = [document.about for document in documents[:5]]
            self.tally.fail(result["fault"], documents=about, format=name, stage=stage, said=result.get("said", ""))
        return found


def _most_seconds(documents: Sequence[Hostile]) -> float:
    return _SLOW + _SIZE * len(documents) / _CHARACTERS_A_SECOND


def _run(folder: Path, log: Path, name: str, texts: Sequence[str], stages: dict[str, Steps], limit: int) -> None:
    """All stages, in a fork; a line of the log says that a stage begins, and the next one how it ended."""
    form, found, documents = FORMATS[name], Result(), list[Document]()
    form.write(folder, [PLAIN, *texts])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + 3 * _MEMORY, in_use + 3 * _MEMORY))

    def read() -> Result:
        report = ReadReport()
        config = CorpusConfig(paths=(f"{folder}/{form.pattern}",), duplicate_ids="rename", **form.settings)
        documents.extend(read_documents(config, report))
        num_records = report.num_documents + report.num_problems + report.num_empty_documents
        num_texts = 1 + (len(texts) if form.is_exact else sum(map(bool, map(str.strip, texts))))
        if num_records < num_texts or (form.is_exact and num_records > num_texts):
            return {"fault": "lost", "said": f"{num_texts} written, {num_records} read: {report.problems[:2]}"}
        return {"counts": {"problems": report.num_problems + report.num_empty_documents}}

    with log.open("a") as file:

        def write(stage: str, result: Result) -> None:
            file.write(json.dumps({stage: result}) + "\n")
            file.flush()

        if _READING in stages:
            write(_READING, {})
        found = _measured(read, limit if _READING in stages else 10 * limit)
        if _READING in stages:
            write(_READING, found)
        if "fault" in found:
            return
        for number, (stage, steps) in enumerate(stages.items()):
            if stage != _READING:
                write(stage, {})
                write(stage, _measured(partial(_through, steps, documents, folder / f"chain-{number}"), limit))


def _through(steps: Steps, documents: Sequence[Document], folder: Path) -> Result:
    chain = Chain(steps, Here())
    folder.mkdir()
    try:
        num_kept = sum(1 for _ in chain.through(documents, folder))
    except UserError as error:
        if "to keep a document" not in str(error):
            raise
        num_kept = 0
    json.dumps([chain.account(), chain.examples()])
    removed = Counter[str]()
    for step in chain.funnel():
        removed += Counter(step["removed"])
    if num_kept + removed.total() != len(documents):
        return {"fault": "lost", "said": f"{len(documents)} read, {num_kept} kept, {removed.total()} removed"}
    caught = {f"{rule} in {steps[0][0]}": removed[rule] for rule in ("raised", "took_too_long") if removed[rule]}
    return {"counts": {"removed": removed.total(), **caught}}


def _measured(work: Callable[[], Result], limit: int) -> Result:
    """What work says, its time, and its fault; the process ends after some seconds beyond the limit."""
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + limit + 1, most))
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before, start = _peak(), time.process_time()
    result: Result
    try:
        result = work()
    except UserError as error:
        result = {"fault": "stopped", "said": ascii(str(error))[:300]}
    except MemoryError:
        result = {"fault": "memory", "said": "MemoryError"}
    except BaseException as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "jax_diversity" in frame.filename]
        where = f"{os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else "?"
        result = {"fault": "tracebacks", "said": f"{type(error).__name__} at {where}: {ascii(str(error))[:200]}"}
    result["seconds"] = time.process_time() - start
    if _peak() - before > _MEMORY:
        result = {"fault": "memory", "said": f"{(_peak() - before) / 2**20:.0f} MiB"} | result
    return result


def _peak() -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024
