"""Orderings that are made from other orderings: block shuffles, several datasets, parts of several hosts.

Also a split of the documents into parts, so that copies of a document are far from each other.
"""
