"""The settings of the stage `cluster`: how vectors become topic clusters."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from jax_diversity.foundation.checks import check_at_least, check_seed
from jax_diversity.foundation.errors import UserError

_DOCUMENTS_PER_CLUSTER = 20
_MOST_AUTOMATIC = 1000


@dataclass(frozen=True)
class ClusterConfig:
    """How vectors become topic clusters."""

    num_clusters: int | Literal["auto"] = "auto"
    """Number of clusters, k; `auto` means one cluster for every twenty documents, but from 1 to 1,000."""
    also: tuple[int, ...] = ()
    """More clusterings of the same vectors, given by their numbers of clusters; 100 makes the family `cluster_100`."""
    method: str = "kmeans"
    """`kmeans` is Lloyd's algorithm, compiled by JAX; `minibatch_kmeans` is scikit-learn's MiniBatchKMeans."""
    options: dict[str, int | float | bool | str] = field(default_factory=dict)
    """Options of the method, such as `max_iterations 50` or `spherical True`; all options have defaults."""
    train_documents: int = 200_000
    """Largest number of documents that the centroids are computed from; all documents are assigned to the nearest
    centroid."""
    label_field: str = "domain"
    """The metadata field that the report compares clusters with (purity). If no document has the field, the source is
    used."""
    seed: int = 0
    """Seed of the starting centroids and of the choice of training documents."""

    @property
    def clusterings(self) -> Mapping[str, ClusterConfig]:
        """Return the settings of each clustering by family: `cluster`, and `cluster_100` for 100 in `also`."""
        # A number of coarse clusters is meant only for the main clustering; 1 means one level for every clustering.
        options = {name: value for name, value in self.options.items() if name != "coarse_clusters" or value in (0, 1)}
        further = {
            f"cluster_{number}": dataclasses.replace(self, num_clusters=number, also=(), options=options)
            for number in self.also
        }
        return {"cluster": dataclasses.replace(self, also=())} | further

    def resolve_num_clusters(self, num_documents: int) -> int:
        """Return the number of clusters; `auto` computes it from the number of documents."""
        if self.num_clusters == "auto":
            num_clusters = round(num_documents / _DOCUMENTS_PER_CLUSTER)
            return max(1, min(num_clusters, _MOST_AUTOMATIC, self.train_documents))
        return self.num_clusters

    def check(self) -> None:
        """Check the settings."""
        from jax_diversity.sequences.clustering.base import METHODS
        from jax_diversity.sequences.clustering.rows import check_numbers

        check_at_least(1, "cluster", self, "train_documents")
        check_seed("cluster", self.seed)
        numbers = () if self.num_clusters == "auto" else (self.num_clusters,)
        for name, number in [*(("num_clusters", number) for number in numbers), *(("also", n) for n in self.also)]:
            if not 1 <= number <= self.train_documents:
                raise UserError(
                    f"Expected cluster.{name} from 1 to cluster.train_documents ({self.train_documents}), "
                    f"found {number}."
                )
        if len({*numbers, *self.also}) != len(numbers) + len(self.also):
            raise UserError(
                f"Expected cluster.also to contain numbers other than cluster.num_clusters ({self.num_clusters}), each "
                f"once, found {', '.join(map(str, self.also))}; each is a separate family."
            )
        METHODS.check_settings(self.method, self.options)
        options: Any = {"max_iterations": 1, "coarse_clusters": 0} | self.options
        # For `auto`, the number of clusters and so the bound of coarse clusters depend on the number of documents.
        most = self.train_documents if self.num_clusters == "auto" else self.num_clusters
        check_numbers(most, options["max_iterations"], options["coarse_clusters"])
