"""Compiled programs that outlive their process: the first ordering of a later one need not compile again.

A program is traced and lowered in every process, and looked up by a hash of what came out: the text of the lowered
program, the versions, JAX's settings, the devices. It is found among this process's programs, else in a file of the
user's cache folder, else it is compiled and written there. Files are written under another name and renamed, and hold a
hash of their content: several processes may share the folder, and a file that is damaged is compiled again. What cannot
be read or written, such as a home without permission to write, costs the time of compiling and nothing else.

Only this package's own programs are kept, and none where JAX has a compilation cache of its own
(`jax_compilation_cache_dir`), which then holds them, or where `jax_enable_compilation_cache` is off.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax

from jax_diversity.foundation.artifacts import atomic_path, fingerprint, remove_leftovers
from jax_diversity.foundation.folders import user_cache
from jax_diversity.foundation.progress import compilation

VARIABLE = "JAX_DIVERSITY_COMPILATION_CACHE"
"""Environment variable: a folder for compiled programs, or `off`; without it `compiled` in the user's cache folder."""
_MOST_BYTES = 2**28
"""Of all files together; the ones that were not used for the longest time are removed."""
_DIGEST_SIZE = hashlib.sha256().digest_size
_programs: dict[Any, Any] = {}


def call(function: Any, *arguments: Any, **static: Any) -> Any:
    """What a jitted function returns, by a program that an earlier call or process compiled where there is one.

    Args:
        function: what `jax.jit` made.
        arguments: arrays, or trees of them. Those on several devices are left to JAX.
        static: the function's static arguments, hashable.
    """
    leaves, tree = jax.tree.flatten(arguments)
    kinds = tuple((leaf.shape, leaf.dtype, getattr(leaf, "weak_type", False)) for leaf in leaves)
    settings = jax.config.values
    key = (function, tuple(static.items()), tree, kinds, tuple(settings.items()))
    if (program := _programs.get(key)) is not None:
        return program(*arguments)
    device = jax.local_devices()[0]
    places = {place for leaf in leaves if isinstance(leaf, jax.Array) for place in leaf.devices()}
    if places <= {device} and jax.process_count() == 1 and not settings["jax_disable_jit"]:
        program, result = _first_call(function.lower(*arguments, **static), device, arguments)
    else:
        program = functools.partial(function, **static)
        with compilation():  # and its first work, from which it cannot be told apart
            result = jax.block_until_ready(program(*arguments))
    _programs[key] = program
    return result


def forget_programs() -> None:
    """Forget this process's programs, as `jax.clear_caches` does those of JAX; files stay."""
    _programs.clear()


def cache_folder() -> Path | None:
    """Where compiled programs are kept; None where they are not, or where JAX itself keeps them."""
    given, settings = os.environ.get(VARIABLE), jax.config.values
    if given == "off" or settings["jax_compilation_cache_dir"] or not settings["jax_enable_compilation_cache"]:
        return None
    with suppress(RuntimeError):  # a user without a home
        return Path(given) if given else user_cache() / "compiled"
    return None


def _first_call(lowered: Any, device: Any, arguments: Any) -> tuple[Any, Any]:
    """The compiled program, and what it returns."""
    folder = cache_folder()
    path = None if folder is None else folder / f"{_identity(lowered, device)}.bin"
    if path is not None and (program := _read(path, lowered, device)) is not None:
        # A program that was itself read from JAX's own cache may be written and loaded, and yet not run.
        with suppress(jax.errors.JaxRuntimeError):
            return program, jax.block_until_ready(program(*arguments))
    with compilation():
        program = lowered.compile()
    if path is not None:
        _write(path, program)
    return program, program(*arguments)


def _identity(lowered: Any, device: Any) -> str:
    """A hash of all that the compiled program depends on."""
    client = device.client
    flags = {name: os.environ.get(name, "") for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")}
    settings = {name: repr(value) for name, value in sorted(jax.config.values.items())}
    machine = (device.platform, device.device_kind, client.platform_version, len(client.devices()), _processor())
    return fingerprint(lowered.as_text(), version("jax"), version("jaxlib"), settings, flags, machine)


def _processor() -> str:
    """What the processor can do: a home may be shared by machines of several kinds."""
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
        return "\n".join(line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part")))
    return platform.processor()


def _read(path: Path, lowered: Any, device: Any) -> Any:
    """The program of a file; None where there is none that is whole and this JAX can load."""
    from jax.experimental import serialize_executable

    try:
        # Loading runs what the file holds: it has to be this user's own.
        if path.stat().st_uid != os.getuid():
            return None
        content = path.read_bytes()
        digest, content = content[:_DIGEST_SIZE], content[_DIGEST_SIZE:]
        if hashlib.sha256(content).digest() != digest:
            return None
        os.utime(path)
        trees = lowered.in_tree, lowered.out_tree
        return serialize_executable.deserialize_and_load(content, *trees, execution_devices=[device])
    except Exception:  # whatever the file holds or JAX makes of it, the program can be compiled
        return None


def _write(path: Path, program: Any) -> None:
    """Keep a program; the folder is the user's alone."""
    from jax.experimental import serialize_executable

    try:
        content = serialize_executable.serialize(program)[0]
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with atomic_path(path) as temporary:
            temporary.write_bytes(hashlib.sha256(content).digest() + content)
        remove_leftovers(path.parent)
        _remove_oldest({each: each.stat() for each in path.parent.glob("*.bin")})
    except Exception:  # a disk that is full or read-only, a program that this JAX cannot write: it runs all the same
        return


def _remove_oldest(files: Mapping[Path, os.stat_result]) -> None:
    excess = sum(about.st_size for about in files.values()) - _MOST_BYTES
    for path in sorted(files, key=lambda path: files[path].st_mtime):
        if excess <= 0:
            return
        path.unlink(missing_ok=True)
        excess -= files[path].st_size
