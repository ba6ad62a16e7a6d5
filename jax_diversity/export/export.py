"""The verb `export`: an ordering of a dataset, written for another stack."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jax_diversity.dataset import Dataset, open_dataset
from jax_diversity.export import megatron
from jax_diversity.export.files import Written
from jax_diversity.export.maxtext import write_maxtext
from jax_diversity.export.olmo import write_olmo, write_olmo_tokens
from jax_diversity.export.permutation import document_order, write_permutation
from jax_diversity.export.rows import OrderedSequences, Sequences
from jax_diversity.export.settings import ExportConfig
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.folders import hold
from jax_diversity.foundation.progress import Progress


def export(out: str | Path, config: ExportConfig, progress: Progress) -> list[str]:
    """Write an ordering of a dataset for another stack; returns a line for everything that was written."""
    exports = {"npy": _npy, "megatron": _megatron, "olmo": _olmo, "maxtext": _maxtext}
    dataset, target = open_dataset(out), Path(config.target)
    # The files of one export belong together: two at the same time could each leave some.
    with hold(target):
        return [each.line for each in exports[config.to](dataset, target, config, progress)]


def _npy(dataset: Dataset, target: Path, config: ExportConfig, progress: Progress) -> list[Written]:
    ordering, stem = dataset.find_ordering(config.ordering), Path(config.ordering).stem
    arrays = {f"{stem}.npy": ordering.indices}
    if config.documents:
        segments = dataset.segments
        documents = document_order(segments.sequence_index, segments.document_index, ordering)
        arrays[f"{stem}-documents.npy"] = documents
    return [write_permutation(array, target / name, overwrite=config.overwrite) for name, array in arrays.items()]


def _megatron(dataset: Dataset, target: Path, config: ExportConfig, progress: Progress) -> list[Written]:
    ordering, options = dataset.find_ordering(config.ordering), config.megatron
    indices = megatron.packed_indices(dataset)
    lengths, length = dataset.tokens.document_lengths, dataset.sequence_length
    written = []
    if options.description is not None:
        path, num_sequences = Path(options.description), dataset.num_sequences
        about = megatron.read_description(path, sequence_length=length, num_sequences=num_sequences)
        megatron.check_prefix(str(json.loads(about).get("dataset_path")), lengths)
    else:
        tokenizer, prefix = _identifiers(options.tokenizer), options.prefix
        if prefix is not None:
            megatron.check_prefix(prefix, lengths)
        elif len(dataset.tokens.files) == 1:
            prefix = str(dataset.tokens.files[0].prefix.resolve())
        else:
            prefix = str((target / "tokens").resolve())
            with progress.task("export tokens", dataset.tokens.num_tokens, "tokens") as advance:
                path, overwrite = Path(prefix), config.overwrite
                written.append(megatron.write_tokens(dataset.tokens, path, overwrite=overwrite, advance=advance))
        seed = dataset.settings["packing"]["seed"] if options.seed is None else options.seed
        about = megatron.Description(prefix, options.num_samples, seed, length, options.split, tokenizer).text
    arrays = indices.document_index, indices.sample_index
    return [*written, megatron.write_megatron(ordering, *arrays, about, target, overwrite=config.overwrite)]


def _olmo(dataset: Dataset, target: Path, config: ExportConfig, progress: Progress) -> list[Written]:
    ordering, length = dataset.find_ordering(config.ordering), dataset.sequence_length
    written = [write_olmo(ordering, target, config.olmo, sequence_length=length, overwrite=config.overwrite)]
    if config.olmo.tokens:
        sequences, path = Sequences(dataset), target / "sequences.npy"
        with progress.task("export tokens", len(sequences), "sequences") as advance:
            written.append(write_olmo_tokens(sequences, path, overwrite=config.overwrite, advance=advance))
    return written


def _maxtext(dataset: Dataset, target: Path, config: ExportConfig, progress: Progress) -> list[Written]:
    sequences = OrderedSequences(dataset, config.ordering)
    options = {"sequences_per_file": config.maxtext.sequences_per_file, "overwrite": config.overwrite}
    with progress.task("export records", len(sequences), "sequences") as advance:
        written = write_maxtext(sequences, target, **options, advance=advance)
    settings = written.files[-1].read_text(encoding="utf-8")
    return [Written(written.files, f"{written.line}\n\n{settings.rstrip()}")]


def _identifiers(tokenizer: str | None) -> Mapping[str, Any]:
    """The tokenizer's `unique_identifiers` from JSON or a file of it."""
    hint = (
        'give what its `unique_identifiers` holds, such as \'{"class": "...", "tokenizer_path": "..."}\', or the '
        "description that a run of yours left, --megatron.description"
    )
    if tokenizer is None:
        raise UserError(f"Expected --megatron.tokenizer, which decides the cache's name, found nothing; {hint}.")
    try:
        found = json.loads(Path(tokenizer).read_text("utf-8") if tokenizer.endswith(".json") else tokenizer)
    except (OSError, ValueError) as error:
        raise UserError(f"Expected JSON in --megatron.tokenizer, found {tokenizer!r} ({error}); {hint}.") from None
    if not isinstance(found, dict):
        raise UserError(f"Expected a JSON object in --megatron.tokenizer, found {found!r}; {hint}.")
    return found
