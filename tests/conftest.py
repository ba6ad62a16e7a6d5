"""Shapes and types of every public function are checked while tests run; in production they cost nothing."""

from jaxtyping import install_import_hook

import tests.typechecker  # noqa: F401 - the hook looks it up by name, but does not import it

install_import_hook("jax_diversity", "tests.typechecker.typecheck")
