"""A host other than the first one."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.executors import Here
from jax_diversity.foundation.shards import follow

ABOUT = {"tokenizer.vocab_size": 512, "version of jax": "1"}
"""Settings and versions of a build."""


class Follower:
    """A host other than the first one, in a thread."""

    def __init__(self, root: Path, index: int = 1, count: int = 2, about: dict[str, Any] = ABOUT) -> None:
        self.root, self.num_jobs, self.error = root, 0, None
        self._thread = threading.Thread(target=self._run, args=(root, index, count, about))
        self._thread.start()

    def _run(self, root: Path, index: int, count: int, about: dict[str, Any]) -> None:
        try:
            self.num_jobs = follow(root, index, count, Here(), about, 10.0)
        except UserError as error:
            self.error = str(error)

    def end(self) -> Follower:
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self
