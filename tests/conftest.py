"""Shapes and types of every public function are checked while tests run; in production they cost nothing.

Property tests draw the same examples on every run, so that a change is to blame for a failure; to search for new
ones, set HYPOTHESIS_PROFILE=default.
"""

import os

from hypothesis import settings
from jaxtyping import install_import_hook

import tests.typechecker  # noqa: F401 - the hook looks it up by name, but does not import it

install_import_hook("jax_diversity", "tests.typechecker.typecheck")
settings.register_profile("steady", derandomize=True, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))
