"""The settings of the stage `pack`: how documents become sequences of one length."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Literal, get_args

from jax_diversity.foundation.checks import check_at_least, check_one_of
from jax_diversity.foundation.errors import UserError
from jax_diversity.sequences.packing.chats import LongChats

_LONGEST_SEQUENCE = 2**24


@dataclass(frozen=True)
class PackingConfig:
    """How documents become sequences of one length."""

    method: str = "auto"
    """`auto` packs chats with `best_fit` and other documents with `concat`. `concat` joins documents end to end and
    cuts every L tokens; `best_fit` keeps documents whole. docs/packing.md compares all methods."""
    options: dict[str, int | float | bool | str] = field(default_factory=dict)
    """Options of the method, such as `atom_size 256`; all options have defaults."""
    sequence_length: int = 512
    """L: tokens per sequence."""
    long_chats: LongChats = "cut"
    """Training chats with more than L tokens: `cut` divides them between turns, `drop` leaves them out, `truncate`
    keeps their first L tokens. It needs a method that keeps documents whole (`auto`, `best_fit`, `first_fit`,
    `pad`)."""
    drop_without_targets: bool = False
    """Leave out training sequences in which no token counts towards the loss. Only corpora of chats have them."""
    document_order: Literal["shuffle", "corpus", "spacing"] = "shuffle"
    """The order of the documents: random, as in the corpus, or spaced by topic cluster, as `document_spacing` does.
    With spacing, every cluster stays near its share from beginning to end, and short documents come first."""
    validation_fraction: float = 0.01
    """Share of the tokens that are kept for validation, as whole documents. Copies of a text stay together, also in
    other case or with other spaces. With 1 the dataset is for evaluation alone: all documents are held out, once and
    with all their tokens, and the build makes no order of training and no report."""
    validation_choice: Literal["balanced", "hash"] = "balanced"
    """Which documents are kept for validation: `balanced` chooses documents that together have the corpus's mixture of
    clusters, lengths, sources and languages, and packs all their tokens; `hash` chooses by a hash of their ids, and
    drops the tokens that the method drops, as earlier versions did."""
    validation_from: str | None = None
    """An earlier dataset: documents with the ids or the texts of its validation documents are kept for validation, and
    those of its training documents never are."""
    keep_validation: bool = True
    """Whether documents that the earlier build in the same folder held out stay held out, also if the corpus or other
    settings change. A smaller `validation_fraction` keeps a part of them, a larger one adds documents. `false` gives up
    the earlier choice: the build chooses as in a new folder."""
    weights: dict[str, float] = field(default_factory=dict)
    """How often documents appear in training: rules and their factors. Examples are `source=web-*` 2.5, `cluster=17` 3,
    `quality>=0.8` 2 (a metadata field), and `quality@cluster>=0.8` 2 (the mean of this field over the document's
    cluster). The factors of all rules that match a document are multiplied."""
    weight_field: str | None = "auto"
    """The metadata field with the weight of each document, which is multiplied with the factors of the rules. `auto`
    uses the field `weight` if a step of preparation adds it; `None` uses no field."""
    seed: int = 0
    """Seed of the random order of documents, of fractional weights, and of the random numbers of the method."""

    @property
    def methods(self) -> tuple[str, str]:
        """The methods for chats and for other documents."""
        return ("best_fit", "concat") if self.method == "auto" else (self.method, self.method)

    @property
    def continues_rows(self) -> bool:
        """Whether the rows of a batch continue the rows of the batch before, in the order in which they are packed."""
        from jax_diversity.sequences.packing.base import METHODS

        return any(METHODS.takes(method, "num_rows") for method in self.methods)

    def for_batches(self, batch_size: int | None) -> PackingConfig:
        """Return the settings with the batch size as number of rows, if the method divides the tokens into rows.

        If a number of rows is set, it stays.
        """
        if batch_size is None or not self.continues_rows:
            return self
        return dataclasses.replace(self, options={"num_rows": batch_size, **self.options})

    def check_batches(self, batch_size: int | None) -> None:
        """Check that the number of rows is the batch size of training.

        Raises:
            UserError: the two numbers are different.
        """
        num_rows = self.for_batches(batch_size).options.get("num_rows", batch_size)
        if self.continues_rows and batch_size is not None and num_rows != batch_size:
            raise UserError(
                f"Expected num_rows in packing.options to be the batch size, {batch_size}, so that every row of a "
                f"batch continues the row of the batch before, found {num_rows}; leave num_rows out."
            )

    @property
    def holds_out_all(self) -> bool:
        """Whether the dataset is for evaluation alone."""
        return self.validation_fraction == 1

    def check(self) -> None:
        """Check that the settings can be used with some corpus.

        Raises:
            UserError: a setting cannot be used with any corpus; the message names the first such setting.
        """
        from jax_diversity.schema.weights import parse_rules
        from jax_diversity.sequences.packing.base import KEEP_WHOLE, check_settings

        check_at_least(2, "packing", self, "sequence_length")
        check_at_least(0, "packing", self, "seed")
        if self.sequence_length > _LONGEST_SEQUENCE:
            raise UserError(
                f"Expected packing.sequence_length <= {_LONGEST_SEQUENCE} (2^24), found {self.sequence_length}; it is "
                "the number of tokens that the model sees at once."
            )
        if not 0 <= self.validation_fraction <= 1:
            raise UserError(f"Expected packing.validation_fraction in [0, 1], found {self.validation_fraction}.")
        if self.holds_out_all:
            for name, value, unset in (
                ("validation_choice", self.validation_choice, "balanced"),
                ("validation_from", self.validation_from, None),
                ("weights", self.weights, {}),
                ("long_chats", self.long_chats, "cut"),
            ):
                if value != unset:
                    raise UserError(
                        f"Expected no packing.{name} with packing.validation_fraction=1, which holds out every "
                        f"document once and whole, found {value}; leave it out."
                    )
        parse_rules(self.weights, "packing.weights")
        check_one_of("packing.long_chats", self.long_chats, get_args(LongChats))
        of_chats, of_text = self.methods
        if self.long_chats != "cut" and of_chats not in KEEP_WHOLE:
            raise UserError(
                f"Expected packing.method to be auto, {', '.join(KEEP_WHOLE)} with packing.long_chats={self.long_chats}"
                f", found {self.method}, which cuts documents of any length; choose one of these methods."
            )
        check_settings(of_text, self.options, self.sequence_length, self.seed)
