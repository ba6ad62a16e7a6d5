"""Run the jobs of a stage on the machines of a Ray cluster, which share the file system of the dataset's folder."""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from jax_diversity.foundation.errors import UserError, in_one_line
from jax_diversity.foundation.executors import run_in_worker, thread_limits
from jax_diversity.foundation.jobs import Job, Work
from jax_diversity.foundation.libraries import optional

_JOBS_A_CORE = 3
"""Submitted jobs per core of the cluster without a taken result."""
_RETRIES = 20
"""Twice as many as the documents of a part that may end their process; machines that may be taken away also need it."""


class RayCluster:
    """Runs jobs as tasks of the Ray cluster in RAY_ADDRESS, or of one that was or is started on this machine."""

    def map(self, work: Work, jobs: Sequence[Job]) -> Iterator[Any]:
        """See `Executor.map`."""
        ray = optional("ray", "ray")
        from ray.exceptions import RayError, RayTaskError  # type: ignore[import-not-found]

        self._connect(ray)
        task: Any = ray.remote(run_on_machine)
        options: dict[str, Any] = {"max_retries": _RETRIES, "runtime_env": {"env_vars": thread_limits(1)}}
        if work.alone:  # one task a machine
            options = {
                "max_retries": _RETRIES,
                "num_cpus": self._smallest_machine(ray),
                "scheduling_strategy": "SPREAD",
            }
        task = task.options(**options)
        begun: deque = deque()
        try:
            for name, arguments in jobs:
                begun.append(task.remote(os.getcwd(), work.reference, name, arguments))
                # The number of cores is read again, because machines may join or leave.
                if len(begun) >= _JOBS_A_CORE * max(int(ray.cluster_resources().get("CPU", 1)), 1):
                    yield ray.get(begun.popleft())
            while begun:
                yield ray.get(begun.popleft())
        except RayTaskError as error:
            if isinstance(error.cause, UserError):
                raise error.cause from None
            raise
        except RayError as error:
            raise UserError(
                f"Expected the {work.what} tasks of Ray to finish, found a lost task ({in_one_line(error)}), which Ray "
                f"repeats up to {_RETRIES} times if its machine is lost or its memory is short; run the same command "
                "again, which keeps finished work."
            ) from None

    def _connect(self, ray: Any) -> None:
        if ray.is_initialized():
            return
        try:
            ray.init(log_to_driver=False, include_dashboard=False, logging_level="WARNING")
        except Exception as error:  # Ray raises many kinds; a wrong token of authentication is a failed connection
            raise UserError(
                f"Expected a Ray cluster (RAY_ADDRESS names one), found none that can be used: {in_one_line(error)}; "
                "start it, or set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN if it asks for a token."
            ) from None

    def _smallest_machine(self, ray: Any) -> int:
        cores = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
        return min((number for number in cores if number), default=1)


def run_on_machine(working_folder: str, reference: str, name: str, arguments: Sequence[Any]) -> Any:
    """Do a job on a machine of the cluster; relative paths have the meaning that they have for the command.

    Raises:
        UserError: the machine does not have the folder of the build, or the job fails.
    """
    if not (folder := Path(working_folder, name).parent).is_dir():
        raise UserError(
            f"Expected all machines of the Ray cluster to share the folder of the build (out), found no {folder} on "
            f"{socket.gethostname()}; name a folder on a file system that all of them mount."
        )
    with suppress(OSError):  # a machine may lack this folder if all paths are absolute
        os.chdir(working_folder)
    return run_in_worker(reference, name, arguments)
