"""The type checker of the tests: beartype, with integers accepted where floats are."""

`jaxtyping.jaxtyped` binds the arguments of every call to a signature, and checks them twice if the function returns
something. In the tests, which call small functions millions of times, this took a tenth of the time. `check_shapes`
finds the same errors: beartype checks arguments and result, and the sizes of the axes are compared within one call.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
import typing
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jaxtyping
from beartype import BeartypeConf, beartype

typecheck = beartype(conf=BeartypeConf(is_pep484_tower=True))
