"""Order language-model training data so that every window of training holds the corpus's own mixture.

>>> import jax_diversity as jd
>>> chars = jd.Characteristics.from_counts({"topic": counts})   # token counts (sequence, group)
>>> ordering = jd.order(chars, method="balance")
>>> jd.measure(chars, ordering, windows=(256,)).window_tv["topic"][256].mean()

The public names are listed in `__init__.pyi` alone. Each is imported when first used, so that importing the package
costs nothing.
"""

from typing import Any

import lazy_loader

_import_public, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

__version__ = "0.1.0"

_REPLACED = {
    "Blend": "jd.Run",
    "Document": "jax_diversity.schema.Document",
    "Evaluated": "jax_diversity.lab.evaluation.Evaluated",
    "Explanation": "jax_diversity.lab.explaining.explain.Explanation",
    "LossEstimate": "jax_diversity.lab.sampling.estimate.LossEstimate",
    "MeanLoss": "jax_diversity.lab.evaluation.MeanLoss",
    "Packed": "jax_diversity.sequences.packing.base.Packed",
    "PackingReport": "jax_diversity.sequences.packing.report.PackingReport",
    "RunSchedule": "jd.Run",
    "Schedule": "jd.make_run(dataset, positions=...)",
    "blend": "jd.create_schedule(path, datasets, weights=...)",
    "duplicate_gaps": "jax_diversity.ordering.measures.duplicates.duplicate_gaps",
    "measure_files": "jd.measure",
    "merge_orderings": "jax_diversity.ordering.composition.hosts.merge_orderings",
    "order_files": "jd.order",
    "partition_sequences": "jax_diversity.ordering.composition.hosts.partition_sequences",
    "repeat": "jd.create_schedule(path, dataset, num_epochs=...)",
    "replan": "jd.order(..., consumed=...)",
    "select_sequences": "jax_diversity.ordering.composition.hosts.select_sequences",
    "separate_duplicates": "jax_diversity.ordering.composition.duplicates.separate_duplicates",
    "truncate": "jd.make_run(dataset, positions=...)",
}
"""Former public names, and what to write in place of each."""


def __getattr__(name: str) -> Any:
    if name in _REPLACED:
        raise AttributeError(f"jax_diversity has no {name!r} any more; write {_REPLACED[name]} in place of jd.{name}.")
    return _import_public(name)
