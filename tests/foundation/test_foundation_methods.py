"""Methods and their options, read from the source of their functions: checking settings imports no method."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.methods import Methods

pytestmark = pytest.mark.core

SOURCE = '''
from __future__ import annotations
from typing import Literal
import a_library_that_is_not_installed

def shuffle(
    documents: list[str],
    *,
    seed: int,
    size: int,
    share: float = 0.5,
    keep: bool = True,
    how: Literal["fast", "slow"] = "fast",
    limit: int | None = None,
    mesh: Mesh | None = None,
) -> list[str]:
    """Shuffle the documents
    in parts.

    More on it.
    """
    return documents
'''
CLASSES = '''
from __future__ import annotations
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

def entries(**values: float | str) -> Any:
    return field(default_factory=lambda: dict(values))

@dataclass
class TwoWords:
    """Keep some documents.

    More on it.
    """

    kind: ClassVar[str] = "a constant"
    files: tuple[str, ...]
    names: tuple[str, ...] = ("a", "b")
    thresholds: Mapping[str, float] = entries(least=3, most=0.5)
    weights: Mapping[str, float] = entries()
    marks: Mapping[str, str] = entries(one="<one>")

    def __post_init__(self) -> None:
        self.number = len(self.names)
'''
LIGHT = '''
def plain(documents: list[str], seed: int = 0, reverse: bool = False) -> list[str]:
    """Leave the documents as they are."""
    return documents[::-1] if reverse else documents
'''


@pytest.fixture
def methods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Methods:
    folder = tmp_path / "toy_methods"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "parts.py").write_text(SOURCE)
    (folder / "plain.py").write_text(LIGHT)
    (folder / "classes.py").write_text(CLASSES)
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.startswith("toy_methods")]:
        monkeypatch.delitem(sys.modules, name)
    modules = {"shuffle": "parts", "plain": "plain", "two_words": "classes"}
    return Methods("toy method", "toy_methods", modules, contract=frozenset({"documents", "seed"}))


def test_a_method_is_found_by_name_and_imported_then(methods: Methods) -> None:
    assert dict(methods) == {"shuffle": "parts", "plain": "plain", "two_words": "classes"}
    assert "toy_methods.plain" not in sys.modules
    assert methods.find("plain")(["a", "b"], reverse=True) == ["b", "a"]
    assert methods.options("plain") == {"reverse": False}
    with pytest.raises(UserError, match=r"Unknown toy method 'shufle': expected one of plain, .*; did you mean"):
        methods.find("shufle")
    with pytest.raises(ModuleNotFoundError):
        methods.find("shuffle")


def test_a_method_is_described_without_being_imported(methods: Methods) -> None:
    sentence, options = methods.describe("shuffle")
    assert sentence == "Shuffle the documents in parts."
    assert options == {"size": None, "share": "0.5", "keep": "True", "how": "'fast'", "limit": "None"}
    assert methods.takes("shuffle", "seed")
    assert methods.takes("shuffle", "mesh")
    assert not methods.takes("plain", "size")


def test_a_method_may_be_a_class_of_fields(methods: Methods) -> None:
    sentence, options = methods.describe("two_words")
    assert sentence == "Keep some documents."
    assert options == {
        **{"files": None, "names": "[a, b]", "thresholds": "{least: 3, most: 0.5}", "weights": "{}"},
        "marks": "{one: <one>}",
    }
    assert "toy_methods.classes" not in sys.modules
    complete = methods.complete("two_words", {"files": "a.jsonl", "thresholds": "{most: 1}", "weights": {0.5: 2}})
    assert complete == {
        **{"files": ("a.jsonl",), "names": ("a", "b"), "thresholds": {"least": 3, "most": 1}},
        **{"weights": {"0.5": 2}, "marks": {"one": "<one>"}},
    }
    assert methods.find("two_words")(**complete).number == 2
    assert methods.complete("two_words", {"files": ["a", "b"], "names": "[c, 'd e']"})["names"] == ("c", "d e")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, r"needs the option 'files' \(a list of texts\)"),
        ({"files": [3]}, "'files' to be a list of texts, found"),
        ({"files": "[3]"}, "'files' to be a list of texts, found"),
        ({"files": "[a"}, "line 1, column 3 is not YAML"),
        ({"files": ["a"], "thresholds": ["a"]}, "'thresholds' to be a number for each name"),
        ({"files": ["a"], "thresholds": {"most": "much"}}, "'thresholds' to be a number for each name"),
        ({"files": ["a"], "thresholds": {"most": float("nan")}}, "'thresholds' to be a number for each name"),
        (
            {"files": ["a"], "least": 1},
            r"has no option 'least': expected one of .*; did you mean thresholds: {least: ...}\?",
        ),
        ({"files": ["a"], "thresholds": {"mots": 1}}, "Unknown name 'mots' .* of least, most; did you mean 'most'"),
        ({"files": ["a"], "marks": {"one": 1}}, "'marks' to be a text for each name"),
    ],
)
def test_lists_and_mappings_that_do_not_fit(methods: Methods, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        methods.complete("two_words", options)


@pytest.mark.parametrize(
    "options",
    [
        {"size": 3},
        {"size": 3, "share": 1, "keep": False, "how": "slow", "limit": None},
        {"size": 0, "share": 0.25, "limit": 7},
    ],
)
def test_settings_that_the_signature_allows(methods: Methods, options: dict[str, Any]) -> None:
    methods.check_settings("shuffle", options)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, r"Method 'shuffle' needs the option 'size' \(a whole number\), found none\."),
        ({"size": "3"}, "Expected the option 'size' to be a whole number, found '3'"),
        ({"size": True}, "'size' to be a whole number, found True"),
        ({"size": 3.0}, r"'size' to be a whole number, found 3\.0"),
        ({"size": 3, "share": "much"}, "'share' to be a number, found 'much'"),
        ({"size": 3, "share": True}, "'share' to be a number, found True"),
        ({"size": 3, "keep": 1}, "'keep' to be True or False, found 1"),
        ({"size": 3, "how": "fsat"}, "'how' to be one of fast, slow, found 'fsat'"),
        ({"size": 3, "limit": "none"}, "'limit' to be a whole number or None, found 'none'"),
        ({"size": 3, "mesh": 4}, "The option 'mesh' of method 'shuffle' can only be given in Python"),
        ({"size": 3, "sise": 4}, r"has no option 'sise': expected one of how, keep, .*; did you mean 'size'\?"),
        ({"size": 3, "seed": 4}, "Method 'shuffle' has no option 'seed'"),
    ],
)
def test_settings_that_it_does_not(methods: Methods, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        methods.check_settings("shuffle", options)


def test_of_python_any_value_is_the_methods_own_to_check(methods: Methods) -> None:
    methods.check_options("shuffle", ["mesh", "size"])
    with pytest.raises(UserError, match="Method 'plain' has no option 'size': expected one of reverse"):
        methods.check_options("plain", ["size"])


def test_types_reach_options_from_the_command_line_and_from_yaml() -> None:
    """Both give whole numbers, numbers, switches, texts and None their types; a table of methods checks them alike."""
    from jax_diversity.cli.main import all_verbs
    from jax_diversity.cli.parsing import parse_options

    words = ["--options", "pool_size", "20", "share", "0.5", "shuffle", "False", "how", "fast", "buffer", "None"]
    default = all_verbs()["order"].options
    given = parse_options(default, "order", words)
    options = {"pool_size": 20, "share": 0.5, "shuffle": False, "how": "fast", "buffer": None}
    assert given == dataclasses.replace(default, options=options)
    assert [type(value) for value in given.options.values()] == [int, float, bool, str, type(None)]


def test_the_checks_load_no_library() -> None:
    program = (
        "import sys\n"
        "from jax_diversity.ordering.base import METHODS\n"
        "for name in METHODS: METHODS.describe(name), METHODS.check_settings(name, {})\n"
        "print(sorted({'jax', 'sklearn', 'pyarrow'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
