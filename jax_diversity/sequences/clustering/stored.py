"""The artifacts of the stage `cluster`: assignments, descriptions and centroids of every clustering."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int32

from jax_diversity.foundation.artifacts import read_array, read_json
from jax_diversity.foundation.checks import check_one_of
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.stored import StoredStages

CLUSTERS = "clusters"


def assignments_name(family: str) -> str:
    """Return the name of the file with every document's cluster; the family is such as `cluster` or `cluster_100`."""
    return f"assignments{_ending(family)}.npy"


def clusters_name(family: str) -> str:
    """Return the name of the file that describes every cluster: name, terms, titles ..."""
    return f"clusters{_ending(family)}.json"


def centroids_name(family: str) -> str:
    """Return the name of the file with the centroids."""
    return f"centroids{_ending(family)}.npy"


def _ending(family: str) -> str:
    return family.removeprefix("cluster")


def centroids_file(stored: StoredStages, family: str) -> Path:
    """Return the path of the file with a clustering's centroids."""
    return _file(stored, family, centroids_name(family))


def _file(stored: StoredStages, family: str, name: str) -> Path:
    check_one_of("family", family, stored.counts("cluster")["clusterings"])
    return stored.file("cluster", f"{CLUSTERS}/{name}")


class ClusterArtifacts:
    """The artifacts of the stage `cluster`."""

    stored: StoredStages

    def assignments(self, family: str = "cluster") -> Int32[np.ndarray, " document"]:
        """The cluster of each document in one clustering, such as `cluster` or `cluster_100`.

        Raises:
            UserError: no such clustering, or a damaged file.
        """
        path = _file(self.stored, family, assignments_name(family))
        assignments = read_array(path, "cluster")
        num_clusters = self.stored.counts("cluster")["clusterings"][family]
        if len(assignments) and not 0 <= assignments.min() <= assignments.max() < num_clusters:
            raise UserError(
                f"{path} is damaged: expected clusters of 0 .. {num_clusters - 1}, found {assignments.min()} .. "
                f"{assignments.max()}; run `jax-diversity cluster` again."
            )
        return assignments

    def clusters(self, family: str = "cluster") -> list[dict[str, Any]]:
        """The descriptions of the clusters of one clustering: name, number of documents, terms, titles ...

        Raises:
            UserError: no such clustering, or a damaged file.
        """
        return read_json(_file(self.stored, family, clusters_name(family)), "cluster")
