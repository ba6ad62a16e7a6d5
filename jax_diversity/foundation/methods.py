"""Methods by name: found when asked for; what they take is read off their source, so that nothing is imported.

A method is a function in a module of its own that has the function's name. Parameters that all methods of a kind may
take are the kind's *contract*; all other keyword parameters are the method's *options*, declared there and nowhere
else. Settings carry them as `options` and are checked against the signature.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import sys
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from jax_diversity.foundation.errors import UserError

_WORDS = {"int": "a whole number", "float": "a number", "bool": "True or False", "str": "text", "None": "None"}


@dataclass(frozen=True)
class Parameter:
    """A keyword parameter of a method as its source declares it.

    Attributes:
        annotation: its type, as source.
        default: its default as source; None where a value has to be given.
    """

    annotation: str
    default: str | None

    def accepts(self, value: Any) -> bool:
        """Check a value of settings against the type, the way YAML and the command line give values."""
        return any(_is_of(kind, value) for kind in self._kinds())

    def in_words(self) -> str | None:
        """What the parameter takes, for messages; None where settings cannot give it, such as a mesh of devices."""
        if not all(isinstance(kind, tuple) or kind in _WORDS for kind in self._kinds()):
            return None
        words = [", ".join(map(str, kind)) if isinstance(kind, tuple) else _WORDS[kind] for kind in self._kinds()]
        return " or ".join(words)

    def _kinds(self) -> list[str | tuple[Any, ...]]:
        """The alternatives of the annotation: names of types, tuples of a `Literal`'s values."""
        node: ast.expr = ast.parse(self.annotation, mode="eval").body
        alternatives: list[ast.expr] = []
        while isinstance(node, ast.BinOp):
            alternatives.append(node.right)
            node = node.left
        kinds: list[str | tuple[Any, ...]] = []
        for part in [node, *reversed(alternatives)]:
            if isinstance(part, ast.Subscript) and ast.unparse(part.value) == "Literal":
                values = ast.literal_eval(part.slice)
                kinds.append(values if isinstance(values, tuple) else (values,))
            else:
                kinds.append(ast.unparse(part))
        return kinds


def _is_of(kind: str | tuple[Any, ...], value: Any) -> bool:
    if isinstance(kind, tuple):
        return value in kind
    if kind == "float":
        return type(value) in (int, float)
    return type(value).__name__ == ("NoneType" if kind == "None" else kind)


@dataclass(frozen=True)
class Methods(Mapping[str, str]):
    """The methods of one kind: name -> module below `package`, imported when its method is asked for.

    Attributes:
        kind: what a method is called, such as `ordering method`.
        package: the package below which the modules are.
        modules: name -> module; the function in it has the method's name.
        contract: parameters that are no options of a method's own.
    """

    kind: str
    package: str
    modules: Mapping[str, str]
    contract: frozenset[str]

    def __getitem__(self, name: str) -> str:
        return self.modules[name]

    def __iter__(self) -> typing.Iterator[str]:
        return iter(self.modules)

    def __len__(self) -> int:
        return len(self.modules)

    def find(self, name: str) -> Any:
        """Import a method.

        Raises:
            UserError: unknown name; lists all and suggests the nearest.
        """
        self.check_name(name)
        return getattr(import_module(f"{self.package}.{self.modules[name]}"), name)

    def check_name(self, name: str) -> None:
        """Refuse an unknown name.

        Raises:
            UserError: lists all methods and suggests the nearest.
        """
        if name not in self.modules:
            known = ", ".join(sorted(self.modules))
            raise UserError(f"Unknown {self.kind} {name!r}: expected one of {known}{_hint(name, self.modules)}")

    def parameters(self, name: str) -> Mapping[str, Parameter]:
        """All of a method's parameters."""
        self.check_name(name)
        return _read_function(f"{self.package}.{self.modules[name]}", name)[1]

    def takes(self, name: str, parameter: str) -> bool:
        """Tell whether a method has a parameter, an option or one of the contract."""
        return parameter in self.parameters(name)

    def options(self, name: str) -> dict[str, Any]:
        """A method's options and their defaults."""
        parameters = inspect.signature(self.find(name)).parameters.values()
        return {parameter.name: parameter.default for parameter in parameters if parameter.name not in self.contract}

    def describe(self, name: str) -> tuple[str, dict[str, str | None]]:
        """A method's first sentence, and the options that settings can give with their defaults, as source."""
        sentence, parameters = _read_function(f"{self.package}.{self.modules[name]}", name)
        return sentence, {
            option: parameter.default
            for option, parameter in parameters.items()
            if option not in self.contract and parameter.in_words() is not None
        }

    def check_options(self, name: str, options: Iterable[str]) -> None:
        """Refuse options that a method does not have; their values are the method's own to check.

        Raises:
            UserError: unknown method or option; lists those that there are and suggests the nearest.
        """
        known = [parameter for parameter in self.parameters(name) if parameter not in self.contract]
        for option in options:
            if option not in known:
                expected = f"expected one of {', '.join(sorted(known))}" if known else "it takes none"
                raise UserError(f"Method {name!r} has no option {option!r}: {expected}{_hint(option, known)}")

    def check_settings(self, name: str, options: Mapping[str, Any]) -> None:
        """Check the options of settings by the method's signature alone: known, of their types, none lacking.

        Raises:
            UserError: the first option that cannot be.
        """
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
            elif not parameter.accepts(options[option]):
                raise UserError(f"Expected the option {option!r} to be {words}, found {options[option]!r}.")


def _hint(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else "."


@cache
def _read_function(module: str, name: str) -> tuple[str, dict[str, Parameter]]:
    """First sentence and parameters of a module's function, from its source: its libraries may take seconds to load.

    The source is found without importing the module; its packages' `__init__` are light.
    """
    loaded = sys.modules.get(module)
    source = loaded.__file__ if loaded is not None else getattr(find_spec(module), "origin", None)
    assert source is not None, module
    body = ast.parse(Path(source).read_text(encoding="utf-8")).body
    function = next(node for node in body if isinstance(node, ast.FunctionDef) and node.name == name)
    given = function.args
    positional = [*given.posonlyargs, *given.args]
    lacking = [None] * (len(positional) - len(given.defaults))
    pairs = [*zip(positional, [*lacking, *given.defaults], strict=True)]
    pairs += zip(given.kwonlyargs, given.kw_defaults, strict=True)
    parameters = {
        argument.arg: Parameter(
            "object" if argument.annotation is None else ast.unparse(argument.annotation),
            None if default is None else ast.unparse(default),
        )
        for argument, default in pairs
    }
    return (ast.get_docstring(function) or "").partition("\n\n")[0].replace("\n", " "), parameters
