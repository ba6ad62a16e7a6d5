"""Find methods by name. A method is imported when it is used; its options are read from its source, without an import.

A method is a function, or a dataclass with the name in camel case (`exact_duplicates`: `ExactDuplicates`). There is one
table for each kind of methods, with the module of every method; several methods may share a module. A function's
keyword parameters and a dataclass's fields are the method's *options*. The *contract* of a kind are parameters that all
its methods may have; they are not options. In settings the field `options` holds the options; they are checked against
the source.
"""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from jax_diversity.foundation.errors import UserError, did_you_mean, quoted
from jax_diversity.foundation.settings import parse_yaml
from jax_diversity.foundation.signatures import default_of

_LIST, _NUMBERS, _TEXTS = "tuple[str, ...]", "Mapping[str, float]", "Mapping[str, str]"
_WORDS = {
    **{"int": "a whole number", "float": "a number", "bool": "True or False", "str": "text", "None": "None"},
    **{_LIST: "a list of texts", _NUMBERS: "a number for each name", _TEXTS: "a text for each name"},
}

Kind = str | tuple[Any, ...]
"""A type by its name, or the values of a `Literal`."""


@dataclass(frozen=True)
class Parameter:
    """A keyword parameter or field of a method: the types of its value, and its default as source (None: required)."""

    kinds: tuple[Kind, ...]
    default: str | None

    def in_words(self) -> str | None:
        """The types in words, for messages; None if settings cannot contain the value, such as a mesh of devices."""
        words = [
            _WORDS.get(kind) if isinstance(kind, str) else f"one of {', '.join(map(str, kind))}" for kind in self.kinds
        ]
        return None if None in words else " or ".join(map(str, words))

    def has_entry(self, name: str) -> bool:
        """Whether the default is a mapping that has an entry of this name."""
        return bool({_NUMBERS, _TEXTS}.intersection(self.kinds)) and name in parse_yaml(self.default or "{}")

    def read(self, value: Any) -> Any:
        """Parse a list or mapping that is given as text, as on the command line; other values are returned unchanged.

        A text that begins with a bracket or brace is YAML. Any other text is a list with one element.
        """
        if isinstance(value, str) and {_LIST, _NUMBERS, _TEXTS}.intersection(self.kinds):
            if value.lstrip().startswith(("[", "{")):
                value = parse_yaml(value)
            elif _LIST in self.kinds:
                value = [value]
        if isinstance(value, Mapping):
            return {str(name): entry for name, entry in value.items()}
        return tuple(value) if isinstance(value, list) else value


def _is_of(kind: Kind, value: Any) -> bool:
    if isinstance(kind, tuple):
        return value in kind
    if kind == _LIST:
        return isinstance(value, tuple) and all(isinstance(item, str) for item in value)
    if kind in (_NUMBERS, _TEXTS):
        of = "float" if kind == _NUMBERS else "str"
        return isinstance(value, Mapping) and all(_is_of(of, entry) for entry in value.values())
    if isinstance(value, float) and math.isnan(value):
        return False
    # The exact type is compared: in Python True is an int, but for users it is not a whole number.
    names = {"float": ("int", "float"), "None": ("NoneType",)}.get(kind, (kind,))
    return type(value).__name__ in names


def _kinds(annotation: ast.expr | None) -> tuple[Kind, ...]:
    """The alternatives of an annotation, read from its source: evaluating the types could import libraries."""
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
    """The methods of one kind: name -> module below `package`.

    Attributes:
        kind: the word for a method in messages, such as `ordering method`.
        package: the package of the modules.
        contract: parameters that are not options.
    """

    def __init__(
        self, kind: str, package: str, modules: Mapping[str, str], contract: frozenset[str] = frozenset()
    ) -> None:
        super().__init__(modules)
        self.kind, self.package, self.contract = kind, package, contract

    def find(self, name: str) -> Any:
        """Import a method; raises a `UserError` for an unknown name, as in `check_name`."""
        self.check_name(name)
        module = import_module(f"{self.package}.{self[name]}")
        return getattr(module, name, None) or getattr(module, _class_name(name))

    def check_name(self, name: str) -> None:
        """Refuse an unknown name with a `UserError` that lists all methods and suggests the most similar name."""
        if not isinstance(name, str) or name not in self:
            all_names = ", ".join(sorted(self))
            near = did_you_mean(str(name), self)
            raise UserError(f"Unknown {self.kind} {quoted(name)}: expected one of {all_names}{near}")

    def parameters(self, name: str) -> Mapping[str, Parameter]:
        """All parameters of a method."""
        self.check_name(name)
        return _read_source(f"{self.package}.{self[name]}", name)[1]

    def takes(self, name: str, parameter: str) -> bool:
        """Whether a method has a parameter, either as an option or as part of the contract."""
        return parameter in self.parameters(name)

    def check_takes(self, name: str, parameter: str, what: str) -> None:
        """Refuse a method without a parameter; `what` is the purpose of the parameter, such as `follow targets`."""
        if not self.takes(name, parameter):
            able = ", ".join(sorted(other for other in self if self.takes(other, parameter)))
            raise UserError(f"Method {name!r} cannot {what}; expected one of {able}.")

    def options(self, name: str) -> dict[str, Any]:
        """A method's options and their defaults as values; the method is imported."""
        method = self.find(name)
        if is_dataclass(method):
            return {parameter.name: default_of(parameter) for parameter in fields(method) if parameter.init}
        parameters = inspect.signature(method).parameters.values()
        return {parameter.name: parameter.default for parameter in parameters if parameter.name not in self.contract}

    def complete(self, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """All options of a method, with the given values in place of the defaults.

        If an option is a mapping, given entries replace the default's entries of the same name.

        Raises:
            UserError: an option is unknown or missing, a value has the wrong type, or a mapping has an unknown name.
        """
        self.check_options(name, given)
        parameters, options = self.parameters(name), self.options(name)
        read = {option: parameters[option].read(value) for option, value in given.items()}
        self.check_settings(name, read)
        for option, value in read.items():
            default = options[option]
            if not isinstance(default, Mapping) or not default:
                options[option] = value
                continue
            for item in value:
                if item not in default:
                    names = ", ".join(default)
                    raise UserError(
                        f"Unknown name {quoted(item)} in the option {option!r} of method {name!r}: expected one of "
                        f"{names}{did_you_mean(item, default)}"
                    )
            options[option] = {**default, **value}
        return options

    def describe(self, name: str) -> tuple[str, dict[str, str | None]]:
        """The first sentence of a method's docstring, and its options for settings with their defaults as source."""
        sentence, parameters = _read_source(f"{self.package}.{self[name]}", name)
        own_parameters = {option: parameter for option, parameter in parameters.items() if option not in self.contract}
        return sentence, {
            option: parameter.default
            for option, parameter in own_parameters.items()
            if parameter.in_words() is not None
        }

    def option_names(self, name: str) -> list[str]:
        """A method's options, including options that only Python can give."""
        return [parameter for parameter in self.parameters(name) if parameter not in self.contract]

    def check_options(self, name: str, options: Iterable[str]) -> None:
        """Refuse unknown options with a `UserError`; the method itself checks the values."""
        option_names = self.option_names(name)
        for option in options:
            if option not in option_names:
                expected = f"expected one of {', '.join(sorted(option_names))}" if option_names else "it takes none"
                mappings = (entry for entry, parameter in self.parameters(name).items() if parameter.has_entry(option))
                within = next(mappings, None)
                near = (
                    did_you_mean(option, option_names)
                    if within is None
                    else f"; did you mean {within}: {{{option}: ...}}?"
                )
                raise UserError(f"Method {name!r} has no option {option!r}: {expected}{near}")

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


def _class_name(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


@cache
def _read_source(module: str, name: str) -> tuple[str, dict[str, Parameter]]:
    """First sentence and parameters of a method, from its source: importing the module could take seconds."""
    # `find_spec` imports the packages above the module, whose `__init__` are small, but not the module itself.
    body = ast.parse(Path(str(cast(ModuleSpec, find_spec(module)).origin)).read_text(encoding="utf-8")).body
    names = (name, _class_name(name))
    method = next(node for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in names)
    read = _of_function if isinstance(method, ast.FunctionDef) else _of_class
    parameters = {
        option: Parameter(_kinds(annotation), None if default is None else _as_source(default))
        for option, annotation, default in read(cast(Any, method))
    }
    return (ast.get_docstring(method) or "").partition("\n\n")[0].replace("\n", " "), parameters


_Declared = Iterator[tuple[str, ast.expr | None, ast.expr | None]]


def _of_function(function: ast.FunctionDef) -> _Declared:
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    # The syntax tree has defaults only for the last positional parameters, but an entry for every keyword parameter.
    defaults = [*[None] * (len(positional) - len(arguments.defaults)), *arguments.defaults, *arguments.kw_defaults]
    for argument, default in zip([*positional, *arguments.kwonlyargs], defaults, strict=True):
        yield argument.arg, argument.annotation, default


def _of_class(definition: ast.ClassDef) -> _Declared:
    """The fields of a dataclass that can be passed to it; fields of base classes are not read."""
    for node in definition.body:
        if isinstance(node, ast.AnnAssign) and not ast.unparse(node.annotation).startswith("ClassVar"):
            yield ast.unparse(node.target), node.annotation, node.value


def _as_source(default: ast.expr) -> str:
    """A default as a user writes it in YAML, if it is a list or mapping; otherwise as in Python."""
    match default:
        case ast.Tuple():
            return f"[{', '.join(ast.unparse(element).strip(chr(39)) for element in default.elts)}]"
        case ast.Call(func=ast.Name("entries")):
            pairs = ((keyword.arg, ast.unparse(keyword.value).strip(chr(39))) for keyword in default.keywords)
            return f"{{{', '.join(f'{name}: {value}' for name, value in pairs)}}}"
    return ast.unparse(default)
