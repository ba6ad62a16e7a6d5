"""Where a build runs: in this process, in several processes, or on a Ray cluster."""

from __future__ import annotations

from dataclasses import dataclass

from jax_diversity.foundation.checks import as_whole_number
from jax_diversity.foundation.executors import Executor, Processes


@dataclass(frozen=True)
class ExecutionConfig:
    """Where a build runs. The dataset is the same, byte for byte, so it does not depend on these settings."""

    processes: int = 0
    """Number of processes that work at the same time on this machine. 0 means one per core, or only one process if
    others would cost more time than they save. Choose fewer if memory is short."""
    ray: bool = False
    """Run the work as tasks of a Ray cluster: the one in RAY_ADDRESS (an address, or `auto`), or the one that was
    started on this machine. Its machines must share the file system of `out`."""

    def executor(self) -> Executor:
        """Return the executor of a build.

        Raises:
            UserError: `processes` is negative.
        """
        number = as_whole_number("processes", self.processes, 0)
        if self.ray:
            from jax_diversity.foundation.ray_cluster import RayCluster

            return RayCluster()
        return Processes(number)
