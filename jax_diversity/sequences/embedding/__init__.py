"""Vectors of documents, in which similar topics are near each other; each method has its own file."""
