"""Compiled programs: options for loops on processors, and JAX's own cache, which stores them for later processes.

The programs of the package (`call`) are always stored; `keep_compiled_programs` stores all programs of a process. A
folder is used only if it belongs to this user and no other user can write to it, because its programs are executed.
"""

from __future__ import annotations

import functools
import os
import stat
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from jax_diversity.foundation.folders import user_cache
from jax_diversity.foundation.progress import compilation

_MOST_BYTES = 2**28
_LEAST_SECONDS = 0.1
"""Programs that compile in less time are not stored: reading a stored program takes a few hundredths of a second."""
_FOR_ONE_THREAD: dict[str, Any] = {
    "xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED",
    "xla_cpu_enable_concurrency_optimized_scheduler": False,  # the same before jaxlib 0.10
}
"""By default XLA gives independent operations to several threads. In a loop of small operations this takes longer than
the operations, and twice the processor time."""
_FOR_FEW_STEPS: dict[str, Any] = {
    "xla_backend_optimization_level": 1,
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 1,
}
"""A program then compiles in half the time, and its steps take two to three times as long."""
_FEW_STEPS = 8192
"""With more steps, they take longer than the compilation that `_FOR_FEW_STEPS` saves after a few orders."""
_called: set[Any] = set()


def keep_compiled_programs(folder: str | Path | None = None) -> None:
    """Store all programs that JAX compiles in this process, so that later processes need not compile them again.

    The programs of orders are stored without this call. It also stores those of clustering, embedding and training, and
    those of your own code, at most 256 MiB: it sets JAX's persistent compilation cache for the process. It changes
    nothing if that cache is already set or turned off (`JAX_COMPILATION_CACHE_DIR`,
    `JAX_ENABLE_COMPILATION_CACHE=false`), or if the folder cannot be used. The command line calls this function.

    Args:
        folder: the folder for programs; None means `jax-diversity/compiled` in the user's cache folder. Programs from
            this folder are executed: a folder of another user, or one that other users can write to, is not used.

    Example:
        >>> import jax_diversity as jd
        >>> jd.keep_compiled_programs()
        >>> ordering = jd.order(characteristics)
    """
    if settings := _settings(folder):
        _set(settings)


def _settings(folder: str | Path | None = None) -> dict[str, Any]:
    """Return the settings of a cache in a folder; none if a cache is set or turned off, or the folder is unusable."""
    is_off = str(_setting("jax_enable_compilation_cache")).lower() in ("false", "0")
    if is_off or _setting("jax_compilation_cache_dir"):
        return {}
    with suppress(OSError, RuntimeError):  # RuntimeError: a user without a home
        path = Path(folder or user_cache() / "compiled").absolute()
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.lstat()
        is_own = status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if stat.S_ISDIR(status.st_mode) and is_own and os.access(path, os.W_OK):
            return {
                "jax_compilation_cache_dir": str(path),
                "jax_compilation_cache_max_size": _MOST_BYTES,
                "jax_persistent_cache_min_compile_time_secs": _LEAST_SECONDS,
            }
    return {}


_storing = threading.RLock()
_num_storing = 0
_settings_before: dict[str, Any] = {}


@contextmanager
def _stored() -> Iterator[None]:
    """Store the programs that are compiled now; the settings of the process are then as before."""
    global _num_storing, _settings_before
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    def update(settings: Mapping[str, Any]) -> None:
        for name, value in settings.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()  # JAX reads the settings when it compiles for the first time

    with _storing:
        if not _num_storing and (settings := _settings()):
            _settings_before = {name: jax.config.values[name] for name in settings}
            update(settings)
        _num_storing += 1
    try:
        yield
    finally:
        with _storing:
            _num_storing -= 1
            if not _num_storing and _settings_before:
                update(_settings_before)
                _settings_before = {}


def _setting(name: str) -> Any:
    jax = sys.modules.get("jax")
    return os.environ.get(name.upper()) if jax is None else jax.config.values[name]


def _set(settings: Mapping[str, Any]) -> None:
    for name, value in settings.items():
        # JAX reads the environment when it is imported; light commands never import JAX. Child processes also read it.
        os.environ[name.upper()] = str(value)
        if (jax := sys.modules.get("jax")) is not None:
            jax.config.update(name, value)


def call(function: Any, *arguments: Any, num_steps: int | None = None, **static: Any) -> Any:
    """Call a jitted function; the first call with new shapes of arguments is shown as compilation.

    Args:
        function: the result of `jax.jit`.
        arguments: arrays, or trees of them.
        num_steps: of a loop of steps of some ten microseconds, the number of steps in all calls together; None for
            other functions. On a processor, the operations of such a loop are scheduled for one thread, and a loop of
            few steps is compiled in less time.
        static: the function's static arguments, hashable.
    """
    import jax

    leaves, tree = jax.tree.flatten(arguments)
    if num_steps is not None:
        devices = [device for leaf in leaves if isinstance(leaf, jax.Array) for device in leaf.devices()]
        if {device.platform for device in devices} == {"cpu"}:
            function = _for_small_steps(function, tuple(static), num_steps <= _FEW_STEPS)
    key = (function, tuple(static.items()), tree, tuple((leaf.shape, leaf.dtype) for leaf in leaves))
    if key in _called:
        return function(*arguments, **static)
    with compilation(), _stored():  # this includes the first execution, which cannot be timed separately
        result = jax.block_until_ready(function(*arguments, **static))
    _called.add(key)
    return result


@functools.cache
def _for_small_steps(function: Any, static_names: tuple[str, ...], are_few: bool) -> Any:
    import jax

    options = _supported(_FOR_ONE_THREAD) | (_supported(_FOR_FEW_STEPS) if are_few else {})
    return jax.jit(function, static_argnames=static_names, compiler_options=options)


def _supported(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that this version of XLA has."""
    return {name: value for name, value in options.items() if _is_supported(name, value)}


@functools.cache
def _is_supported(name: str, value: Any) -> bool:
    import jax

    with suppress(jax.errors.JaxRuntimeError):
        jax.jit(lambda: 0, compiler_options={name: value}).lower().compile()
        return True
    return False
