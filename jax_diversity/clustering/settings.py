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
    """Number of clusters, k; `auto`: one for every twenty documents, from 1 to 1,000."""
    also: tuple[int, ...] = ()
    """Further clusterings of the same vectors, by their numbers of clusters: the families `cluster_100` ..."""
    method: str = "kmeans"
    """`kmeans`: Lloyd's algorithm, compiled by JAX; `minibatch_kmeans`: scikit-learn's MiniBatchKMeans."""
    options: dict[str, int | float | bool | str] = field(default_factory=dict)
    """The method's own options, such as `max_iterations 50` or `spherical True`; other options have their defaults."""
    train_documents: int = 200_000
    """Documents for computing the centroids; the others are assigned to the nearest centroid."""
    label_field: str = "domain"
    """The metadata field that the report compares clusters with (purity); the source if it is absent."""
    seed: int = 0
    """Seed of the starting centroids and of the choice of training documents."""

    @property
    def clusterings(self) -> Mapping[str, ClusterConfig]:
        """Each clustering's family and settings: `cluster`, and `cluster_100` for 100 in `also`."""
        # A number of coarse clusters suits the main clustering alone; 1 means "one level" for any number.
        options = {name: value for name, value in self.options.items() if name != "coarse_clusters" or value in (0, 1)}
        further = {
            f"cluster_{number}": dataclasses.replace(self, num_clusters=number, also=(), options=options)
            for number in self.also
        }
        return {"cluster": dataclasses.replace(self, also=())} | further

    def resolve_num_clusters(self, num_documents: int) -> int:
        """The number of clusters, which `auto` takes from the number of documents."""
        if self.num_clusters == "auto":
            wanted = round(num_documents / _DOCUMENTS_PER_CLUSTER)
            return max(1, min(wanted, _MOST_AUTOMATIC, self.train_documents))
        return self.num_clusters

    def check(self) -> None:
        """Check the settings."""
        from jax_diversity.clustering.base import METHODS
        from jax_diversity.clustering.rows import check_numbers

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
                f"Expected cluster.also to hold other numbers than cluster.num_clusters ({self.num_clusters}), each "
                f"once, found {', '.join(map(str, self.also))}; each is a separate family."
            )
        METHODS.check_settings(self.method, self.options)
        given: Any = {"max_iterations": 1, "coarse_clusters": 0} | self.options
        # The number for `auto`, and with it the bound of coarse clusters, depends on the number of documents.
        most = self.train_documents if self.num_clusters == "auto" else self.num_clusters
        check_numbers(most, given["max_iterations"], given["coarse_clusters"])
