"""The settings of the stage `cluster`: how vectors become topic clusters."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from jax_diversity.foundation.checks import at_least, seed
from jax_diversity.foundation.errors import UserError


@dataclass(frozen=True)
class ClusterConfig:
    """How vectors become topic clusters."""

    num_clusters: int = 1000
    """Number of clusters, k."""
    also: tuple[int, ...] = ()
    """Further clusterings of the same vectors with so many clusters: the families `cluster_100` ..."""
    backend: Literal["jax", "sklearn"] = "jax"
    """`jax`: jit-compiled Lloyd k-means; `sklearn`: MiniBatchKMeans."""
    start: Literal["k-means++", "k-means||", "random"] = "k-means++"
    """How the first centroids are drawn; `k-means||` draws many at once, for thousands of clusters in one level."""
    spherical: bool = False
    """Vectors and centroids are brought to length one: clusters by cosine alone."""
    coarse_clusters: int = 0
    """Two levels: so many coarse clusters first, each of which is then divided. 0 takes one level below 10,000
    clusters, and about the square root of their number from there on; 1 takes one level in any case."""
    max_iterations: int = 25
    """Most passes of Lloyd's algorithm."""
    train_documents: int = 200_000
    """Documents the centroids are computed from; the rest are assigned to the nearest."""
    label_field: str = "domain"
    """The metadata field that clusters are compared with in the report (purity); the source where it is absent."""
    seed: int = 0
    """Seed of the starting centroids and of the choice of training documents."""

    @property
    def clusterings(self) -> Mapping[str, ClusterConfig]:
        """Each clustering's family and settings: `cluster`, and `cluster_100` for 100 in `also`."""
        own = {"cluster": dataclasses.replace(self, also=())}
        levels = 1 if self.coarse_clusters == 1 else 0  # a number of coarse clusters suits the main clustering alone
        further = {
            f"cluster_{number}": dataclasses.replace(self, num_clusters=number, also=(), coarse_clusters=levels)
            for number in self.also
        }
        return own | further

    def check(self) -> None:
        """Refuse settings that no corpus could satisfy.

        Raises:
            UserError: the first such setting.
        """
        at_least(1, "cluster", self, "num_clusters", "max_iterations", "train_documents")
        seed("cluster", self.seed)
        at_least(0, "cluster", self, "coarse_clusters")
        for name, number in [("num_clusters", self.num_clusters), *(("also", number) for number in self.also)]:
            if not 1 <= number <= self.train_documents:
                raise UserError(
                    f"Expected cluster.{name} from 1 to cluster.train_documents ({self.train_documents}), "
                    f"found {number}."
                )
        if len({self.num_clusters, *self.also}) != 1 + len(self.also):
            raise UserError(
                f"Expected cluster.also to hold other numbers than cluster.num_clusters ({self.num_clusters}), each "
                f"once, found {', '.join(map(str, self.also))}; each makes a family of its own."
            )
        if self.coarse_clusters >= max(self.num_clusters, 2):
            raise UserError(
                f"Expected cluster.coarse_clusters below cluster.num_clusters ({self.num_clusters}), found "
                f"{self.coarse_clusters}; about the square root of their number is usual."
            )
        if self.backend == "sklearn" and (self.coarse_clusters > 1 or self.start == "k-means||"):
            raise UserError(
                "Expected cluster.coarse_clusters and cluster.start=k-means|| only with cluster.backend=jax, found "
                "sklearn; leave them out or change the backend."
            )
