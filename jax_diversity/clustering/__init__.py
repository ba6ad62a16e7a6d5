"""Vectors -> topic clusters: jit-compiled k-means over a mesh, names for its clusters, a map of them."""
