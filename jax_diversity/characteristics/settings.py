"""The settings of the stage `characterize`: which families an ordering balances."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from jax_diversity.foundation.checks import as_whole_number
from jax_diversity.foundation.errors import UserError

_COLUMNS = ("id", "text", "num_tokens", "length_bin", "duplicate_group", "documents", "groups")
"""Names with another meaning in the table and the files of the characteristics."""
_LONGEST_FAMILY = 200  # bytes, of a file's name
_MOST_BINS = 2**20  # the bounds of all bins are computed, also where there are fewer documents
_DEFAULT_WEIGHTS = {"cluster": 1.0, "length": 1.5, "source": 0.3, "language": 0.3}
"""Families that are balanced by default, and their λ, the weights of squares; docs/log.md has the curve."""
_ALWAYS = ("cluster", "length")
"""Families that are kept even if they have one group: the published objectives use the first two, in this order."""


def default_families(num_groups: Mapping[str, int]) -> dict[str, float]:
    """The families that are balanced by default, in their order, and their weights λ.

    Args:
        num_groups: family -> groups with tokens; a family of one group is balanced in any order.

    Example:
        >>> list(default_families({"cluster": 50, "length": 100, "source": 3, "language": 1, "host": 9}))
        ['cluster', 'length', 'source']
    """
    return {
        family: weight
        for family, weight in _DEFAULT_WEIGHTS.items()
        if family in _ALWAYS or num_groups.get(family, 0) > 1
    }


@dataclass(frozen=True)
class CharacteristicsConfig:
    """Which families an ordering balances."""

    families: Literal["auto"] | tuple[str, ...] = "auto"
    """The families that orderings balance; the norm of the first one is balanced, too. `auto` takes `cluster` and
    `length`, and `source` and `language` if they have more than one group. A list may also name `cluster_100` ...
    (see cluster.also), `host` (of the address), `duplicate` (groups of equal texts), and any metadata field. All
    families except metadata fields are always stored."""
    length_bins: int = 100
    """Quantile bins of the documents' token counts."""
    url_field: str = "url"
    """The metadata field that holds a document's address, whose host is a family."""

    @property
    def possible_families(self) -> tuple[str, ...]:
        """The families that are balanced if the corpus has groups of them."""
        return tuple(_DEFAULT_WEIGHTS) if self.families == "auto" else self.families

    def check(self) -> None:
        """Refuse settings that no corpus could satisfy.

        Raises:
            UserError: the first such setting.
        """
        as_whole_number("characteristics.length_bins", self.length_bins, 1, _MOST_BINS)
        if self.families == "auto":
            return
        if not self.families:
            raise UserError("Expected characteristics.families to name at least one family, found none.")
        if len(set(self.families)) != len(self.families):
            raise UserError(f"Expected characteristics.families without repeats, found {', '.join(self.families)}.")
        for family in self.families:  # each is the name of a file and of a column
            name_fits = family.isprintable() and 0 < len(family.encode()) <= _LONGEST_FAMILY
            if not name_fits or family.startswith(".") or "/" in family or family in _COLUMNS:
                raise UserError(
                    f"Expected characteristics.families to name families or metadata fields, found {family!r}, which "
                    "cannot be a family's name; rename the field."
                )
