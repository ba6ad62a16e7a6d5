"""The settings of the stage `pack`: how documents become sequences of one length."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from jax_diversity.foundation.checks import check_at_least
from jax_diversity.foundation.errors import UserError

_LONGEST_SEQUENCE = 2**24


@dataclass(frozen=True)
class PackingConfig:
    """How documents become sequences of one length."""

    method: str = "concat"
    """`concat` joins documents end to end and cuts every L tokens; docs/packing.md compares all methods."""
    options: dict[str, int | float | bool | str] = field(default_factory=dict)
    """Options of the method, such as `atom_size 256`; all options have defaults."""
    sequence_length: int = 512
    """L: tokens per sequence."""
    document_order: Literal["shuffle", "corpus", "spacing"] = "shuffle"
    """The order of the documents: random, as in the corpus, or spaced by topic cluster, as `document_spacing` does.
    With spacing, every cluster stays near its share from beginning to end, and short documents come first."""
    validation_fraction: float = 0.01
    """Share of the tokens that are kept for validation, as whole documents; copies of a text stay together."""
    validation_choice: Literal["balanced", "hash"] = "balanced"
    """Which documents are kept for validation: `balanced` chooses documents that together have the corpus's mixture of
    clusters, lengths, sources and languages, and packs all their tokens; `hash` chooses by a hash of their ids, and
    drops the tokens that the method drops, as earlier versions did."""
    validation_from: str | None = None
    """An earlier dataset of the same documents: its validation documents are kept for validation again, and its
    training documents never are. None means the build in the same folder before files were added to the corpus,
    if all other settings of documents and validation are the same."""
    weights: dict[str, float] = field(default_factory=dict)
    """How often documents appear in training: rules and their factors. Examples are `source=web-*` 2.5, `cluster=17` 3,
    `quality>=0.8` 2 (a metadata field), and `quality@cluster>=0.8` 2 (the mean of this field over the document's
    cluster). The factors of all rules that match a document are multiplied."""
    weight_field: str | None = "auto"
    """The metadata field with the weight of each document, which is multiplied with the factors of the rules. `auto`
    uses the field `weight` if a step of preparation adds it; None uses no field."""
    seed: int = 0
    """Seed of the random order of documents, of fractional weights, and of the random numbers of the method."""

    def check(self) -> None:
        """Check that the settings can be used with some corpus.

        Raises:
            UserError: a setting cannot be used with any corpus; the message names the first such setting.
        """
        from jax_diversity.packing.base import check_settings
        from jax_diversity.schema.weights import parse_rules

        check_at_least(2, "packing", self, "sequence_length")
        check_at_least(0, "packing", self, "seed")
        if self.sequence_length > _LONGEST_SEQUENCE:
            raise UserError(
                f"Expected packing.sequence_length <= {_LONGEST_SEQUENCE} (2^24), found {self.sequence_length}; it is "
                "the number of tokens that the model sees at once."
            )
        if not 0 <= self.validation_fraction < 1:
            raise UserError(f"Expected packing.validation_fraction in [0, 1), found {self.validation_fraction}.")
        parse_rules(self.weights, "packing.weights")
        check_settings(self.method, self.options, self.sequence_length, self.seed)
