"""Import optional libraries, which are installed by the extras of this package or by the user."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from jax_diversity.foundation.errors import UserError, in_one_line

_DRIVERS = {"gs": "gcs", "gcs": "gcs", "s3": "s3", "s3a": "s3"}
"""Protocol of an object store -> the extra that installs its driver."""


def optional(name: str, extra: str | None, *, install: str | None = None) -> Any:
    """Import a module of a library that may not be installed.

    Args:
        name: the module.
        extra: the extra of this package that installs it; None if the user installs the library.
        install: the name of the library for pip, if it differs from the module's name.

    Raises:
        UserError: the library is not installed, or cannot be imported.

    Example:
        >>> ray = optional("ray", "ray")
    """
    try:
        return import_module(name)
    except Exception as error:  # an installed library may raise anything
        library = name.partition(".")[0]
        raise UserError(
            f"Expected the library {library}, found no library that can be imported ({in_one_line(error)}); "
            f"pip install '{f'jax-diversity[{extra}]' if extra else install or library}'."
        ) from None


def missing_driver(protocol: str, error: ImportError) -> UserError:
    """The error for an object store without an installed driver; `error` is the exception of fsspec."""
    extra = _DRIVERS.get(protocol)
    what = f"pip install 'jax-diversity[{extra}]'" if extra else in_one_line(error)
    return UserError(f"Expected a driver for {protocol}://, found no installed driver; {what}.")
