"""Vectors -> topic clusters: k-means over a mesh of devices, names for its clusters, a map of them, their purity."""
