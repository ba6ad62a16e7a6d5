"""The settings of the stage `write`: how sequences are stored for training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from jax_diversity.foundation.checks import check_at_least
from jax_diversity.foundation.errors import UserError


@dataclass(frozen=True)
class RecordsConfig:
    """How sequences are stored for training."""

    layout: Literal["packed", "ordered"] = "packed"
    """The order of the stored sequences. `packed`: the order of packing; orderings are read through their permutation.
    `ordered`: the order of the ordering in the setting `ordering`."""
    ordering: str = "balance"
    """The ordering for the ordered layout."""
    sequences_per_file: int = 65_536
    """Maximum number of records in a file."""

    def check(self, orderings: Sequence[str]) -> None:
        """Check the settings; `orderings` are the names of the build's orderings."""
        check_at_least(1, "records", self, "sequences_per_file")
        if self.layout == "ordered" and self.ordering not in orderings:
            raise UserError(
                f"Expected records.ordering to be one of the orders ({', '.join(orderings) or 'none'}), "
                f"found {self.ordering!r}; add it to orders or choose records.layout=packed."
            )
