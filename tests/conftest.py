"""Shapes and types of every public function are checked while tests run; in production they cost nothing."""

from jaxtyping import install_import_hook

install_import_hook("jax_diversity", "beartype.beartype")
