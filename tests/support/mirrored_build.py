"""A small build of two stages with jobs, whose files are kept in an object store."""

from __future__ import annotations

from jax_diversity.foundation.artifacts import fingerprint, write_text
from jax_diversity.foundation.executors import Executor, Here
from jax_diversity.foundation.jobs import recorded_files
from jax_diversity.foundation.mirrored_folder import MirroredFolder, MirroringExecutor
from jax_diversity.foundation.stored import StoredStages
from tests.support import jobs
from tests.support.store_faults import ADDRESS


def build(
    settings: str = "a", inner: Executor | None = None, number: int = 3, address: str = ADDRESS
) -> MirroredFolder:
    """Make the stage `words`, and the stage `lengths` from it, in the way of the engine of builds."""
    folder = MirroredFolder(address)
    executor = MirroringExecutor(inner or Here(), folder)
    with folder.lock():
        for stage in ("words", "lengths"):
            key = fingerprint(stage, settings, number)
            if folder.is_current(stage, key):
                folder.remove_partials(stage)
                continue
            partial = folder.partial(stage, key, resume=True)
            if not (partial / "text").exists():
                write_text(partial / "text", settings)  # a file for the jobs, as a tokenizer is
            names = [str(partial / f"{stage}-{index}") for index in range(number)]
            if stage == "words":
                list(executor.map(jobs.read_beside, [(name, (str(partial / "text"),)) for name in names]))
            else:
                files = StoredStages(folder.root).names("words", "words/", ".txt")
                given = [(name, (str(folder.root), file)) for name, file in zip(names, files, strict=True)]
                list(executor.map(jobs.read_stored, given))
            entry = {"fingerprint": key, "config": {}, "inputs": {}, "counts": {}, "summary": ""}
            known = dict(recorded_files(partial))
            folder.publish(stage, partial, stage, entry, owns_folder=True, known=known)
    return folder
