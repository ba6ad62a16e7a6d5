"""Import optional libraries, which are installed by the extras of this package or by the user."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from jax_diversity.foundation.errors import UserError, in_one_line

_DRIVERS = {"gs": "gcs", "gcs": "gcs", "s3": "s3", "s3a": "s3"}
"""Protocol of an object store -> the extra that installs its driver."""


class MissingLibrary(UserError):
    """Optional libraries that are not installed, or cannot be imported.

    Args:
        missing: for each library, its name, what pip installs, and the reason.
    """

    def __init__(self, missing: Sequence[tuple[str, str, str]]) -> None:
        self.missing = tuple(dict.fromkeys(missing))
        names = ", ".join(dict.fromkeys(name for name, _, _ in self.missing))
        reasons = "; ".join(dict.fromkeys(reason for _, _, reason in self.missing))
        packages = " ".join(f"'{package}'" for package in dict.fromkeys(install for _, install, _ in self.missing))
        noun = "library" if "," not in names else "libraries"
        super().__init__(
            f"Expected the {noun} {names}, found no {noun} that can be imported ({reasons}); pip install {packages}."
        )


@contextmanager
def together() -> Iterator[list[MissingLibrary]]:
    """Raise one error for all libraries that are missing: the errors that the block appends to the list.

    Raises:
        MissingLibrary: there is such an error.
    """
    errors: list[MissingLibrary] = []
    yield errors
    if errors:
        raise MissingLibrary([library for error in errors for library in error.missing])


def check_installed(name: str, extra: str) -> None:
    """Refuse a library that is not installed, without an import, which may take ten seconds."""
    if find_spec(name) is None:
        raise MissingLibrary([(name, f"jax-diversity[{extra}]", f"No module named {name!r}")])


def optional(name: str, extra: str | None, *, install: str | None = None) -> Any:
    """Import a module of a library that may not be installed.

    Args:
        name: the module.
        extra: the extra of this package that installs it; None if the user installs the library.
        install: the name of the library for pip, if it differs from the module's name.

    Raises:
        MissingLibrary: the library is not installed, or cannot be imported.

    Example:
        >>> ray = optional("ray", "ray")
    """
    try:
        return import_module(name)
    except Exception as error:  # an installed library may raise anything
        library = name.partition(".")[0]
        requirement = f"jax-diversity[{extra}]" if extra else install or library
        raise MissingLibrary([(library, requirement, in_one_line(error))]) from None


def missing_driver(protocol: str, error: ImportError) -> UserError:
    """The error for an object store without an installed driver; `error` is the exception of fsspec."""
    extra = _DRIVERS.get(protocol)
    advice = f"pip install 'jax-diversity[{extra}]'" if extra else in_one_line(error)
    return UserError(f"Expected a driver for {protocol}://, found no installed driver; {advice}.")
