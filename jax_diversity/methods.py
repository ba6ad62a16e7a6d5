"""Methods by name: found when asked for, their options read off their signatures."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from jax_diversity.errors import UserError


@dataclass(frozen=True)
class MethodTable:
    """The methods of one kind, which all meet one contract.

    Attributes:
        kind: what they are called, such as `ordering method`.
        package: the package below which their modules are.
        modules: name -> module, imported when its method is asked for; the function has the method's name.
        contract: parameters that are no options of a method's own.
    """

    kind: str
    package: str
    modules: Mapping[str, str]
    contract: frozenset[str]

    def find(self, name: str) -> Any:
        """Look a method up.

        Raises:
            UserError: unknown name; lists all and suggests the nearest.
        """
        if name not in self.modules:
            known = ", ".join(sorted(self.modules))
            raise UserError(f"Unknown {self.kind} {name!r}: expected one of {known}{_hint(name, self.modules)}")
        return getattr(import_module(f"{self.package}.{self.modules[name]}"), name)

    def parameters(self, name: str) -> Mapping[str, inspect.Parameter]:
        """All of a method's parameters."""
        return inspect.signature(self.find(name)).parameters

    def takes(self, name: str, parameter: str) -> bool:
        """Whether a method has a parameter, an option or one of the contract."""
        return parameter in self.parameters(name)

    def options(self, name: str) -> dict[str, Any]:
        """A method's options and their defaults."""
        parameters = self.parameters(name).values()
        return {
            parameter.name: parameter.default for parameter in parameters if parameter.name not in self.contract
        }

    def check_options(self, name: str, options: Iterable[str]) -> None:
        """Whether a method has these options; what values they take is the method's own to check.

        Raises:
            UserError: unknown method or option; lists those that there are and suggests the nearest.
        """
        known = self.options(name)
        for option in options:
            if option not in known:
                expected = f"expected one of {', '.join(sorted(known))}" if known else "it takes none"
                raise UserError(f"Method {name!r} has no option {option!r}: {expected}{_hint(option, known)}")


def _hint(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else "."
