"""Give functions with `**settings` the parameters and texts of a dataclass, so that they are declared only once."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import re
import textwrap
from collections.abc import Callable
from functools import cache
from typing import Any, Concatenate, ParamSpec, TypeVar

Settings = ParamSpec("Settings")
First = TypeVar("First")
Result = TypeVar("Result")


@cache
def field_texts(kind: type) -> dict[str, str]:
    """The docstring of every field, in one line; fields of base classes come first."""
    texts: dict[str, str] = {}
    for base in reversed([base for base in kind.__mro__ if "__dataclass_fields__" in vars(base)]):
        body: Any = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        for declared, text in itertools.pairwise(body.body):
            if isinstance(declared, ast.AnnAssign) and isinstance(text, ast.Expr):
                texts[ast.unparse(declared.target)] = " ".join(ast.literal_eval(text.value).split())
    return texts


def argument_texts(function: Callable[..., Any]) -> dict[str, str]:
    """The text of every argument in the docstring of a function, in one line."""
    _, _, arguments = inspect.cleandoc(function.__doc__ or "").partition("Args:\n")
    entries = re.findall(r"^    (\w+): ((?:.|\n(?!    \w|\n))*)", arguments, flags=re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}


def takes_settings(
    settings: Callable[Settings, Any], without: tuple[str, ...] = ()
) -> Callable[[Callable[Concatenate[First, ...], Result]], Callable[Concatenate[First, Settings], Result]]:
    """Give a function with the parameter `**settings` the signature and the texts of a dataclass's fields.

    The line `{settings}` of the function's docstring is replaced by the fields' texts.

    Args:
        settings: a dataclass whose fields are keywords, each with a text below it.
        without: fields that are not parameters of the function.
    """
    kind: Any = settings
    # The fields of a class come before the fields of its base classes.
    declared = [name for base in kind.__mro__ for name in vars(base).get("__annotations__", {})]
    fields = [setting for setting in dataclasses.fields(kind) if setting.name not in without]
    fields.sort(key=lambda setting: declared.index(setting.name))

    def describe(function: Any) -> Any:
        signature = inspect.signature(function)
        own_parameters = [
            parameter for parameter in signature.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD
        ]
        taken = [
            inspect.Parameter(
                setting.name, inspect.Parameter.KEYWORD_ONLY, default=default_of(setting), annotation=setting.type
            )
            for setting in fields
        ]
        function.__signature__ = signature.replace(parameters=[*own_parameters, *taken])
        if function.__doc__:
            texts = field_texts(kind)
            lines = [
                textwrap.fill(
                    f"{setting.name}: {texts[setting.name]}", 120, initial_indent=8 * " ", subsequent_indent=12 * " "
                )
                for setting in fields
            ]
            function.__doc__ = function.__doc__.replace("        {settings}", "\n".join(lines))
        return function

    return describe


def default_of(field: dataclasses.Field[Any]) -> Any:
    """A field's default; `inspect.Parameter.empty` if it is required."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
