"""`python -m evidence run FILE`, `python -m evidence show FILE` and `python -m evidence summary FILES`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial

from evidence import commands
from jax_diversity.cli.main import begin_program, call, in_sentences
from jax_diversity.cli.parsing import Signature, given_options, help_text, with_given
from jax_diversity.foundation.errors import UserError, did_you_mean
from jax_diversity.foundation.own_functions import only_given
from jax_diversity.foundation.terminal import show

PROGRAM = "python -m evidence"
VERBS: dict[str, Callable[..., None]] = {
    "run": commands.run,
    "show": commands.show_results,
    "summary": commands.summarize,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status: 0 if done, 2 after a user's mistake, 130 if interrupted."""
    if arguments is None:
        begin_program()
    return in_sentences(partial(_answer, sys.argv[1:] if arguments is None else list(arguments)), "evidence")


def _answer(arguments: list[str]) -> None:
    if not arguments or arguments[0] in ("-h", "--help"):
        verbs = "\n".join(f"  {name:<9}{_help_of(command)}" for name, command in VERBS.items())
        show(f"usage: {PROGRAM} COMMAND FILE [options]\n\n{verbs}")
        return
    name, *words = arguments
    if name not in VERBS:
        raise UserError(f"Unknown command {name!r}: expected run, show or summary{did_you_mean(name, VERBS)}")
    signature = Signature(VERBS[name])
    if {"-h", "--help"} & set(words):
        show(help_text(signature.default, name, _help_of(VERBS[name]), program=PROGRAM))
        return
    with only_given():
        call(signature, with_given(signature.default, given_options(signature.default, name, words, PROGRAM)))


def _help_of(command: Callable[..., None]) -> str:
    return (command.__doc__ or "").partition("\n")[0]


if __name__ == "__main__":
    sys.exit(main())
