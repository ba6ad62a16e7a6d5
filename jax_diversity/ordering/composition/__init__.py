"""Orderings made of orderings: epochs, blocks, blends of datasets, parts of several hosts, copies kept apart."""
