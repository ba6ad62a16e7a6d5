"""The settings of the stage `characterize`: which families an ordering balances.

A *family* is a kind of characteristics, such as topic clusters, document lengths or sources. A *group* is one value of
a family, such as one cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from jax_diversity.foundation.checks import as_whole_number
from jax_diversity.foundation.errors import UserError
from jax_diversity.sequences.characteristics.stored import LOSS, TOKENS

_COLUMNS = ("id", "text", "num_tokens", "length_bin", "duplicate_group", "documents", "groups")
"""Names that already have another meaning in the table or the files of the characteristics."""
_LONGEST_FAMILY = 200  # in bytes: the family's name is part of a file name
_MAX_BINS = 2**20  # the bounds of all bins are computed, even if there are fewer documents
_MAX_CLUSTERS = 2**14  # every sequence is compared with every cluster
_DEFAULT_WEIGHTS = {"cluster": 1.0, "length": 2.0, "source": 0.5, "language": 0.4, LOSS: 4.0, TOKENS: 12.0}
"""The families that are balanced by default, and their weights λ; docs/log.md shows how the weights were chosen."""
_ALWAYS = ("cluster", "length")
"""Families that are kept even if they have only one group: the published objectives use them, in this order."""


def default_families(num_groups: Mapping[str, int]) -> dict[str, float]:
    """Return the families that are balanced by default, in their order, and their weights λ.

    Args:
        num_groups: family -> number of groups with tokens. A family with one group is balanced in any order.

    Example:
        >>> list(default_families({"cluster": 50, "length": 100, "source": 3, "language": 1, "tokens": 2048}))
        ['cluster', 'length', 'source', 'tokens']
    """
    return {
        family: weight
        for family, weight in _DEFAULT_WEIGHTS.items()
        if family in _ALWAYS or num_groups.get(family, 0) > 1
    }


def listed_weight(family: str) -> float:
    """Return the weight λ of a family that the settings list: 1, but for `tokens` its default.

    A sequence's tokens are spread over many groups, so their squares are small: with a weight of 1 the family would
    have no effect.
    """
    return _DEFAULT_WEIGHTS[TOKENS] if family == TOKENS else 1.0


@dataclass(frozen=True)
class CharacteristicsConfig:
    """Which families an ordering balances."""

    families: Literal["auto"] | tuple[str, ...] = "auto"
    """The families that orderings balance. The norm of the first family's counts is balanced, too. `auto` means
    `cluster` and `length`, `source` and `language` if they have more than one group, `tokens` (the token ids of the
    sequence itself), and `loss` if there are chats (the tokens that count towards the loss, and the others). A list may
    also name `cluster_100` ... (see cluster.also), `host` (of the address), `duplicate` (groups of equal texts),
    `sequence_cluster` (clusters of sequences with similar tokens), and any metadata field. All families except metadata
    fields and `sequence_cluster` are always stored."""
    length_bins: int = 100
    """Number of quantile bins of the documents' token counts."""
    length_bins_equal: Literal["documents", "tokens"] = "documents"
    """Of what the bins have equal numbers. With `tokens`, as in the source article, most bins are of long documents."""
    sequence_clusters: int = 500
    """Number of clusters of the family `sequence_cluster`, if it is listed; at most one for every 20 sequences."""
    url_field: str = "url"
    """The metadata field with a document's address. The host of the address is a family."""

    @property
    def possible_families(self) -> tuple[str, ...]:
        """The families that are balanced if the corpus has groups of them."""
        return tuple(_DEFAULT_WEIGHTS) if self.families == "auto" else self.families

    def check(self) -> None:
        """Raise an error for settings that are wrong for every corpus.

        Raises:
            UserError: there is a wrong setting; the error names the first.
        """
        as_whole_number("characteristics.length_bins", self.length_bins, 1, _MAX_BINS)
        as_whole_number("characteristics.sequence_clusters", self.sequence_clusters, 1, _MAX_CLUSTERS)
        if self.families == "auto":
            return
        if not self.families:
            raise UserError("Expected characteristics.families to name at least one family, found none.")
        if len(set(self.families)) != len(self.families):
            raise UserError(f"Expected characteristics.families without repeats, found {', '.join(self.families)}.")
        for family in self.families:  # each family is the name of a file and of a column
            name_fits = family.isprintable() and 0 < len(family.encode()) <= _LONGEST_FAMILY
            if not name_fits or family.startswith(".") or "/" in family or family in _COLUMNS:
                raise UserError(
                    f"Expected characteristics.families to name families or metadata fields, found {family!r}, which "
                    "cannot be the name of a family; rename the field."
                )
