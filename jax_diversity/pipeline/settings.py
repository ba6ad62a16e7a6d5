"""The settings of a build, which contain the settings of all stages, and the settings of the demonstration."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, cast

from jax_diversity.foundation.artifacts import file_hash
from jax_diversity.foundation.checks import as_whole_number, check_folder_name
from jax_diversity.foundation.errors import UserError, quoted
from jax_diversity.foundation.libraries import MissingLibrary, together
from jax_diversity.foundation.warned import warn
from jax_diversity.lab.settings import TrainConfig
from jax_diversity.ordering.settings import OrderConfig
from jax_diversity.preparation.passes.settings import PreparationConfig
from jax_diversity.preparation.settings import PYTHON_ENVIRONMENT, CorpusConfig
from jax_diversity.sequences.characteristics.settings import CharacteristicsConfig
from jax_diversity.sequences.clustering.settings import ClusterConfig
from jax_diversity.sequences.embedding.settings import EmbeddingConfig
from jax_diversity.sequences.packing.settings import PackingConfig
from jax_diversity.sequences.tokenization.settings import TokenizerConfig, tokenizer_files
from jax_diversity.streaming.records.settings import RecordsConfig

__all__ = [
    "PYTHON_ENVIRONMENT",
    "BuildConfig",
    "CharacteristicsConfig",
    "ClusterConfig",
    "CorpusConfig",
    "EmbeddingConfig",
    "OrderConfig",
    "PackingConfig",
    "PreparationConfig",
    "RecordsConfig",
    "TokenizerConfig",
    "TrainConfig",
    "demo_config",
]  # users import all of them from here


_DEFAULT_ORDERS = (OrderConfig(method="uniform_shuffle"), OrderConfig(method="balance"))
_LARGEST_BATCH = 2**31 - 1
"""A number that is larger than the number of positions of any order."""


@dataclass(frozen=True)
class BuildConfig:
    """The settings of all stages, from a corpus to an ordered, stored, measured dataset."""

    out: str = "out"
    """The dataset's folder."""
    batch_size: int | None = None
    """The global batch size of your training, in sequences over all hosts: orderings without `windows` balance windows
    of this size, `greedy_block_shuffle` without a `block_size` shuffles blocks of this size, and measures, report and
    `inspect` show this size. Leave it out if it is unknown."""
    features_from: str | None = None
    """A built dataset whose tokenizer, embedder, clusters, length bins and families are used for these documents:
    nothing is fitted to these documents. The settings of these stages come from that dataset."""
    corpus: CorpusConfig = CorpusConfig()
    preparation: PreparationConfig = PreparationConfig()
    tokenizer: TokenizerConfig = TokenizerConfig()
    embedding: EmbeddingConfig = EmbeddingConfig()
    cluster: ClusterConfig = ClusterConfig()
    packing: PackingConfig = PackingConfig()
    characteristics: CharacteristicsConfig = CharacteristicsConfig()
    orders: tuple[OrderConfig, ...] = _DEFAULT_ORDERS
    """The orderings to make. With the packing method `partial_shuffle` the default is `corpus_order`, because every
    other order separates the batches that continue each other."""
    records: RecordsConfig = RecordsConfig()
    windows: tuple[int, ...] = (64, 256, 1024)
    """Window sizes, in sequences, at which orderings are measured."""
    train: TrainConfig = TrainConfig()

    def __post_init__(self) -> None:
        kind = self.tokenizer.kind_for(self.corpus.format)
        if kind != self.tokenizer.kind:
            object.__setattr__(self, "tokenizer", dataclasses.replace(self.tokenizer, kind=kind))
        if self.packing.continues_rows and self.orders is _DEFAULT_ORDERS:
            object.__setattr__(self, "orders", (OrderConfig(method="corpus_order"),))

    def check(self, sections: Collection[str] | None = None) -> None:
        """Check the settings: first each section separately, then all sections together.

        Args:
            sections: the sections of the stages that run; None means all. The files of other sections may be gone.

        Raises:
            UserError: the first invalid setting, by its dotted name.
        """
        check_folder_name("out", self.out)
        if self.batch_size is not None:
            as_whole_number("batch_size", self.batch_size, 1, _LARGEST_BATCH)
        names = [order.file_name for order in self.orders]
        with together() as missing:
            for field in dataclasses.fields(self):
                settings = getattr(self, field.name)
                if not dataclasses.is_dataclass(settings) or (sections is not None and field.name not in sections):
                    continue
                further = {RecordsConfig: [names], TokenizerConfig: [self.features_from is None]}
                try:
                    cast(Any, settings).check(*further.get(type(settings), []))
                except MissingLibrary as error:
                    missing.append(error)
        if "preparation" in (sections or ("preparation",)):
            self.preparation.check_corpus(self.corpus.format)
        if "packing" in (sections or ("packing",)):
            self.packing.check_batches(self.batch_size)
        # Another dataset's tokenizer is known from its stage on.
        if self.features_from is None or "tokenizer" in (sections or ()):
            self.tokenizer.check_corpus(self.corpus.format, PYTHON_ENVIRONMENT in self.corpus.paths)
        if self.features_from is None and "tokenizer" in (sections or ("tokenizer",)):
            self._warn_of_other_tokenizer()
        for index, order in enumerate(self.orders):
            where = f"orders[{index}]"
            try:
                order.for_batches(self.batch_size).check(where, self.characteristics.possible_families, names[:index])
            except UserError as error:
                if where not in str(error):
                    raise
                # A reader knows an ordering by its name, not by its number in the list.
                raise UserError(f"{error} {where} is the ordering {quoted(order.file_name)}.") from None
        if len(set(names)) != len(names):
            raise UserError(f"Expected orders with different names, found {names}; give each order its own `name`.")
        for size in self.windows:
            as_whole_number("windows", size, least=1)

    def _warn_of_other_tokenizer(self) -> None:
        """Warn if the chat template is that of a model whose tokenizer is not the tokenizer of the settings."""
        from jax_diversity.preparation.readers.chat_template import model_folder

        folder = model_folder(self.corpus.chat_template) if self.corpus.format == "chat" else None
        if folder is None or not (tokenizer := folder / "tokenizer.json").is_file():
            return
        path = self.tokenizer.path
        used = None if path is None else tokenizer_files(path)[0]
        if used is not None and (used.parent.samefile(folder) or file_hash(used) == file_hash(tokenizer)):
            return
        kind = "a new one" if path is None else f"that of {path}"
        warn(f"The chat template is that of {folder}, but the tokenizer is {kind}; add --tokenizer.path {folder}.")


def demo_config() -> BuildConfig:
    """The settings of the demonstration: some megabytes of texts of the Python packages, and a short training run."""
    return BuildConfig(
        out="demo",
        corpus=CorpusConfig(paths=(PYTHON_ENVIRONMENT,), max_bytes=24 * 2**20),
        tokenizer=TokenizerConfig(vocab_size=8192, train_bytes=8 * 2**20),
        packing=PackingConfig(sequence_length=256, validation_fraction=0.02),
        characteristics=CharacteristicsConfig(length_bins=50),
        train=TrainConfig(num_steps=60, batch_size=8, validate_every=30, checkpoint_every=30, diagnose_every=12),
    )
