"""Where a build runs: in this process, in several processes, on several hosts, or on a Ray cluster."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from jax_diversity import __version__
from jax_diversity.foundation.checks import as_weight, as_whole_number
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.executors import Executor, Processes
from jax_diversity.foundation.mirror import local_folder
from jax_diversity.foundation.object_store import is_address
from jax_diversity.foundation.own_functions import only_given
from jax_diversity.pipeline.settings import BuildConfig


@dataclass(frozen=True)
class ExecutionConfig:
    """Where a build runs. The dataset is the same, byte for byte, so it does not depend on these settings."""

    processes: int = 0
    """Number of processes that work at the same time on this machine. 0 means one per core, or only one process if
    others would cost more time than they save. Choose fewer if memory is short."""
    shard: str | None = None
    """The number of this host among n hosts that run the same command with a shared folder or bucket, as i/n: 0/8,
    1/8 ... 7/8. `auto` takes it from Slurm, from GKE or from jax.process_index()."""
    shard_minutes: float = 60.0
    """How long a shard waits for another one that has not started or gives no sign."""
    ray: bool = False
    """Run the work as tasks of a Ray cluster; its machines must share the file system of `out`."""

    def place(self) -> tuple[int, int]:
        """Check the settings; return the number of this host and the number of hosts.

        Raises:
            UserError: a number is out of range, or both `shard` and `ray` are set.
        """
        as_whole_number("processes", self.processes, 0)
        as_weight("shard_minutes", self.shard_minutes)
        if self.shard is None:
            return 0, 1
        if self.ray:
            raise UserError("Expected either shard or ray, found both; a Ray cluster is started with one command.")
        from jax_diversity.foundation.shards import parse_shard

        return parse_shard(self.shard)


@contextmanager
def executing(config: BuildConfig, execution: ExecutionConfig) -> Iterator[Executor]:
    """Yield the executor of a build, in this process or on the first host of several.

    Raises:
        UserError: see `ExecutionConfig.place`.
    """
    index, count = execution.place()
    if index:
        raise UserError(f"Expected shard 0/{count} to run the build, found {index}/{count}; follow the build instead.")
    if execution.ray and is_address(config.out):
        raise UserError(
            f"Expected a folder that all machines of the Ray cluster share (out), found the address {config.out}; name "
            "a folder, or use shards (--shard)."
        )
    if execution.ray:
        from jax_diversity.foundation.ray_cluster import RayCluster

        yield RayCluster()
    elif count == 1:
        yield Processes(execution.processes)
    else:
        from jax_diversity.foundation.shards import FirstShard

        inner, seconds = Processes(execution.processes), 60 * execution.shard_minutes
        with FirstShard(local_folder(config.out), count, inner, _shared(config), seconds) as executor:
            yield executor


def follow_build(config: BuildConfig, execution: ExecutionConfig) -> int:
    """Do the jobs of this host in the build that the first host runs, until it ends; returns the number of jobs.

    Raises:
        UserError: a job or the first host failed, or hosts have different settings.
    """
    from jax_diversity.foundation.shards import follow

    index, count = execution.place()
    inner, seconds = Processes(execution.processes), 60 * execution.shard_minutes
    with only_given(dataclasses.asdict(config)):
        return follow(local_folder(config.out), index, count, inner, _shared(config), seconds)


def _shared(config: BuildConfig) -> dict[str, Any]:
    """The settings and versions that must be the same on all hosts."""
    from jax_diversity.pipeline.build import flat
    from jax_diversity.pipeline.stages import all_stages

    settings = {name: value for name, value in flat(dataclasses.asdict(config)).items() if name != "out"}
    packages = {package for stage in all_stages(config) for package in stage.packages}
    return {**settings, "version of jax-diversity": __version__} | {
        f"version of {package}": _version(package) for package in packages
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
