"""Run jobs on the machines of a Ray cluster; results have the order of the jobs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from jax_diversity.foundation.errors import UserError, in_one_line
from jax_diversity.foundation.libraries import optional

Result = TypeVar("Result")
_JOBS_A_PROCESS = 3
_RETRIES = 20
"""Twice as many as the documents of a part that may end their process."""


def map_in_ray(work: Callable[..., Result], jobs: Iterable[tuple], num_processes: int = 0) -> Iterator[Result]:
    """Yield the results of `work(*job)` in the order of the jobs; a few jobs are started in advance.

    Args:
        work: a function of a module that all machines have. It must be safe to run twice: if a machine is lost, its
            tasks run again.
        jobs: arguments that can be pickled; the iterable is read while results are taken.
        num_processes: the number of tasks that run at the same time; 0 means the number of cores of the cluster.

    Raises:
        UserError: Ray is not installed, its cluster cannot be reached, or a task was lost several times.
    """
    ray = optional("ray", "ray")
    from ray.exceptions import RayTaskError, WorkerCrashedError

    if not ray.is_initialized():
        try:
            # Connects to the cluster in RAY_ADDRESS, or starts one on this machine.
            ray.init(log_to_driver=False, include_dashboard=False)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise UserError(f"Expected a Ray cluster, found none: {in_one_line(error)}.") from None
    task: Any = ray.remote(max_retries=_RETRIES)(work)
    most = _JOBS_A_PROCESS * (num_processes or int(ray.cluster_resources().get("CPU", 1)))
    begun: deque = deque()
    try:
        for job in jobs:
            begun.append(task.remote(*job))
            if len(begun) >= most:
                yield ray.get(begun.popleft())
        while begun:
            yield ray.get(begun.popleft())
    except RayTaskError as error:
        if isinstance(error.cause, UserError):
            raise error.cause from None
        raise
    except WorkerCrashedError as error:
        raise UserError(
            f"Expected the tasks of Ray to finish, found a task that was lost {_RETRIES + 1} times "
            f"({in_one_line(error)}); run it again, which keeps finished work."
        ) from None
