"""The settings of the stage `characterize`: which families an ordering balances."""

from __future__ import annotations

from dataclasses import dataclass

from jax_diversity.foundation.checks import at_least, whole_number
from jax_diversity.foundation.errors import UserError

_COLUMNS = ("id", "text", "num_tokens", "length_bin", "duplicate_group", "documents", "groups")
"""Names that the table and the files of the characteristics have for other things."""
_LONGEST_FAMILY = 200  # bytes, of a file's name
_MOST_BINS = 2**20  # the bounds of all bins are computed, also where there are fewer documents


@dataclass(frozen=True)
class CharacteristicsConfig:
    """Which families an ordering balances."""

    families: tuple[str, ...] = ("cluster", "length")
    """The families that orderings see, the first being the one whose norm is balanced: `cluster` (and `cluster_100`
    ..., see cluster.also), `length`, `source`, `language`, `host` (of the address), `duplicate` (groups of equal
    texts), or the name of any metadata field. All that are not metadata fields are stored in any case."""
    length_bins: int = 100
    """Quantile bins of the documents' token counts."""
    url_field: str = "url"
    """The metadata field that holds a document's address, whose host is a family."""
    field_bins: int = 10
    """Quantile bins of a numeric metadata field."""
    max_groups: int = 1000
    """Groups of a family of names (source, language, host, metadata field): the largest; the rest are one group."""

    def check(self) -> None:
        """Refuse settings that no corpus could satisfy.

        Raises:
            UserError: the first such setting.
        """
        at_least(1, "characteristics", self, "length_bins", "field_bins")
        at_least(2, "characteristics", self, "max_groups")
        for name in ("length_bins", "field_bins"):
            whole_number(f"characteristics.{name}", getattr(self, name), 1, _MOST_BINS)
        if not self.families:
            raise UserError("Expected characteristics.families to name at least one family, found none.")
        if len(set(self.families)) != len(self.families):
            raise UserError(f"Expected characteristics.families without repeats, found {', '.join(self.families)}.")
        for family in self.families:  # each is the name of a file and of a column
            name_fits = family.isprintable() and 0 < len(family.encode()) <= _LONGEST_FAMILY
            if not name_fits or family.startswith(".") or "/" in family or family in _COLUMNS:
                raise UserError(
                    f"Expected characteristics.families to name families or metadata fields, found {family!r}, which "
                    "cannot be one's name; rename the field."
                )
