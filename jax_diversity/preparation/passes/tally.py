"""The counts of a preparation after its last phase, of the whole corpus or of a group of its parts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from jax_diversity.preparation.passes.account import Account
from jax_diversity.preparation.passes.blocks import damage_as_error, read_blocks, write_blocks
from jax_diversity.preparation.passes.parts import read_part
from jax_diversity.preparation.passes.phases import part_path
from jax_diversity.preparation.steps.base import Candidate


class Tally:
    """Counts of the candidates of some parts.

    Attributes:
        accounts: the account of every step.
        fields: the fields that steps added to kept documents.
        num_read: number of documents that were read.
        num_kept: number of documents that are kept.
        kept_bytes: bytes of the text of kept documents.
    """

    def __init__(self, num_steps: int) -> None:
        self.accounts = [Account() for _ in range(num_steps)]
        self.fields = set[str]()
        self.num_read = self.num_kept = self.kept_bytes = 0

    def of_parts(self, work: Path, last: int, indices: Iterable[int]) -> Iterator[Candidate]:
        """Yield the candidates of some parts after the last phase, and count them."""
        for index in indices:
            accounts, candidates = read_part(part_path(work, last, index))
            self._merge(accounts)
            self.num_read += len(candidates)
            for candidate in candidates:
                if candidate.removed is None:
                    self.num_kept += 1
                    self.fields.update(candidate.scores)
                    self.kept_bytes += candidate.size[1]
                yield candidate

    def add(self, other: Tally) -> None:
        """Add the counts of the parts that follow."""
        self._merge(other.accounts)
        self.fields |= other.fields
        self.num_read += other.num_read
        self.num_kept += other.num_kept
        self.kept_bytes += other.kept_bytes

    def _merge(self, accounts: list[Account]) -> None:
        for account, of_part in zip(self.accounts, accounts, strict=True):
            account.merge(of_part)

    def write(self, path: Path) -> None:
        """Store the counts."""
        plain = [[account.plain() for account in self.accounts], sorted(self.fields)]
        write_blocks(path, json.dumps([*plain, self.num_read, self.num_kept, self.kept_bytes]).encode())

    @classmethod
    def read(cls, path: Path) -> Tally:
        """Read stored counts; a damaged file is a `UserError`."""
        with damage_as_error(path):
            (block,) = read_blocks(path, 1)
            accounts, fields, *numbers = json.loads(bytes(block))
            tally = cls(0)
            tally.accounts, tally.fields = [*map(Account.of_plain, accounts)], set(fields)
            tally.num_read, tally.num_kept, tally.kept_bytes = map(int, numbers)
            return tally
