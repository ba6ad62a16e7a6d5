"""Methods by name: imported when one is asked for; what they take is read from their source, without an import.

A method is a function. The table of its kind gives the module that it is in; several methods may share a module.
Parameters that all methods of a kind may take are the kind's *contract*; all other keyword parameters are the method's
*options*. Settings carry them as `options` and are checked against the signature.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from jax_diversity.foundation.errors import UserError, did_you_mean, quoted

_WORDS = {"int": "a whole number", "float": "a number", "bool": "True or False", "str": "text", "None": "None"}

Kind = str | tuple[Any, ...]
"""A type by its name, or the values of a `Literal`."""


@dataclass(frozen=True)
class Parameter:
    """A keyword parameter of a method: what it takes, and its default as source (None: it has none)."""

    kinds: tuple[Kind, ...]
    default: str | None

    def in_words(self) -> str | None:
        """What the parameter takes, for messages; None where settings cannot give it, such as a mesh of devices."""
        words = [
            _WORDS.get(kind) if isinstance(kind, str) else f"one of {', '.join(map(str, kind))}" for kind in self.kinds
        ]
        return None if None in words else " or ".join(map(str, words))


def _is_of(kind: Kind, value: Any) -> bool:
    if isinstance(kind, tuple):
        return value in kind
    # By name and exactly: True is an int for Python, but no whole number that a user means.
    names = {"float": ("int", "float"), "None": ("NoneType",)}.get(kind, (kind,))
    return type(value).__name__ in names


def _kinds(annotation: ast.expr | None) -> tuple[Kind, ...]:
    """The alternatives of an annotation, from its source: the types themselves may need libraries."""
    match annotation:
        case None:
            return ("object",)
        case ast.BinOp():
            return (*_kinds(annotation.left), *_kinds(annotation.right))
        case ast.Subscript(value=ast.Name("Literal")):
            values = ast.literal_eval(annotation.slice)
            return (values if isinstance(values, tuple) else (values,),)
    return (ast.unparse(annotation),)


class Methods(dict[str, str]):
    """The methods of one kind: name -> module below `package`, whose function of that name is the method.

    Attributes:
        kind: what a method is called, such as `ordering method`.
        package: the package below which the modules are.
        contract: parameters that are no options of a method's own.
    """

    def __init__(self, kind: str, package: str, modules: Mapping[str, str], contract: frozenset[str]) -> None:
        super().__init__(modules)
        self.kind, self.package, self.contract = kind, package, contract

    def find(self, name: str) -> Any:
        """Import a method; a `UserError` for an unknown name, as in `check_name`."""
        self.check_name(name)
        return getattr(import_module(f"{self.package}.{self[name]}"), name)

    def check_name(self, name: str) -> None:
        """Refuse an unknown name with a `UserError` that lists all methods and suggests the nearest."""
        if not isinstance(name, str) or name not in self:
            known = ", ".join(sorted(self))
            near = did_you_mean(str(name), self)
            raise UserError(f"Unknown {self.kind} {quoted(name)}: expected one of {known}{near}")

    def parameters(self, name: str) -> Mapping[str, Parameter]:
        """All of a method's parameters."""
        self.check_name(name)
        return _read_function(f"{self.package}.{self[name]}", name)[1]

    def takes(self, name: str, parameter: str) -> bool:
        """Tell whether a method has a parameter, an option or one of the contract."""
        return parameter in self.parameters(name)

    def check_takes(self, name: str, parameter: str, what: str) -> None:
        """Refuse a method without a parameter, which `what` calls by what it is for: `follow targets`."""
        if not self.takes(name, parameter):
            able = ", ".join(sorted(other for other in self if self.takes(other, parameter)))
            raise UserError(f"Method {name!r} cannot {what}; expected one of {able}.")

    def options(self, name: str) -> dict[str, Any]:
        """A method's options and their defaults as values, for which the method is imported."""
        parameters = inspect.signature(self.find(name)).parameters.values()
        return {parameter.name: parameter.default for parameter in parameters if parameter.name not in self.contract}

    def describe(self, name: str) -> tuple[str, dict[str, str | None]]:
        """A method's first sentence, and the options that settings can give with their defaults, as source."""
        sentence, parameters = _read_function(f"{self.package}.{self[name]}", name)
        own = {option: parameter for option, parameter in parameters.items() if option not in self.contract}
        return sentence, {option: each.default for option, each in own.items() if each.in_words() is not None}

    def option_names(self, name: str) -> list[str]:
        """A method's options, those that only Python can give too."""
        return [parameter for parameter in self.parameters(name) if parameter not in self.contract]

    def check_options(self, name: str, options: Iterable[str]) -> None:
        """Refuse options that a method does not have with a `UserError`; the method itself checks their values."""
        known = self.option_names(name)
        for option in options:
            if option not in known:
                expected = f"expected one of {', '.join(sorted(known))}" if known else "it takes none"
                raise UserError(f"Method {name!r} has no option {option!r}: {expected}{did_you_mean(option, known)}")

    def check_settings(self, name: str, options: Mapping[str, Any]) -> None:
        """Refuse the first option of settings that does not fit the method's signature: name, type, or missing."""
        self.check_options(name, options)
        for option, parameter in self.parameters(name).items():
            if option in self.contract:
                continue
            words = parameter.in_words()
            if option not in options:
                if parameter.default is None:
                    raise UserError(f"Method {name!r} needs the option {option!r} ({words}), found none.")
            elif words is None:
                raise UserError(f"The option {option!r} of method {name!r} can only be given in Python.")
            elif not any(_is_of(kind, options[option]) for kind in parameter.kinds):
                raise UserError(f"Expected the option {option!r} to be {words}, found {quoted(options[option])}.")


@cache
def _read_function(module: str, name: str) -> tuple[str, dict[str, Parameter]]:
    """First sentence and parameters of a function, from its source: a module's libraries may take seconds to load."""
    # Finding the source imports the packages above the module, whose `__init__` are light, but not the module.
    body = ast.parse(Path(str(cast(ModuleSpec, find_spec(module)).origin)).read_text(encoding="utf-8")).body
    function = next(node for node in body if isinstance(node, ast.FunctionDef) and node.name == name)
    given = function.args
    positional = [*given.posonlyargs, *given.args]
    # Python keeps the defaults of the last positional parameters only, but one, or None, of every keyword parameter.
    defaults = [*[None] * (len(positional) - len(given.defaults)), *given.defaults, *given.kw_defaults]
    pairs = zip([*positional, *given.kwonlyargs], defaults, strict=True)
    parameters = {
        argument.arg: Parameter(_kinds(argument.annotation), None if default is None else ast.unparse(default))
        for argument, default in pairs
    }
    return (ast.get_docstring(function) or "").partition("\n\n")[0].replace("\n", " "), parameters
